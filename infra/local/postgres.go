package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// PostgresConfig configures a PostgreSQL server.
type PostgresConfig struct {
	// DataDir holds the database and its passwords. It is created if missing.
	DataDir string
	// Log receives a few lines for the user. The server's own log is postgres/postgres.log in DataDir.
	Log io.Writer
	// Settings are added to the server's settings or replace them. Settings that make commits less
	// durable are refused.
	Settings map[string]string
	// Roles are made by the superuser at each start and granted to the owner, who then has no CREATEROLE: in PostgreSQL 15 that lets a role
	// join pg_execute_server_program. Without Roles the owner has CREATEROLE, as tests need it.
	Roles []string
	// Major is the major version of a new database. 0 means the installed one, else the newest. An
	// existing database keeps its version.
	Major int
	// BinDir is the folder of the server's programs. Empty means found or downloaded.
	BinDir string
}

// Postgres is a running PostgreSQL, owned by this process.
type Postgres struct {
	cfg       PostgresConfig
	dir       string // our files: passwords, lock, log
	home      string // of the cluster: dir, or a directory that its user can reach
	user      account.Account
	bin       binaries
	passwords passwords

	mu    sync.Mutex
	port  int
	proc  *child.Process
	locks []*folder.Lock
}

const (
	// postgresStart bounds a start. Recovery after a crash reads at most max_wal_size and takes seconds,
	// more on a loaded machine.
	postgresStart = 5 * time.Minute
	// postgresStop bounds a fast shutdown, which ends with a checkpoint. Afterwards the server is ended
	// forcibly and recovers at its next start.
	postgresStop = time.Minute
)

// StartPostgres starts PostgreSQL on cfg.DataDir with the existing data. It creates the cluster, the role
// and the database "meterplex" if they are missing. ctx bounds only the start; end the server with Stop.
// If another process uses the data, StartPostgres returns folder.ErrInUse with its process id.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresStart)
	defer cancel()
	if err := checkSettings(cfg.Settings); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	p := &Postgres{cfg: cfg, dir: filepath.Join(folder.Absolute(cfg.DataDir), "postgres")}
	if err := p.open(ctx); err != nil {
		p.close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("start the embedded PostgreSQL: %w", err)
	}
	return p, nil
}

func (p *Postgres) open(ctx context.Context) error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if err := p.lockDir(p.dir); err != nil {
		return err
	}
	if err := p.findHome(); err != nil {
		return err
	}
	if err := p.findBinaries(ctx); err != nil {
		return err
	}
	if err := p.endEarlier(ctx); err != nil {
		return err
	}
	if err := p.ensureCluster(ctx); err != nil {
		return err
	}
	if err := p.launch(ctx, 0); err != nil {
		return err
	}
	return p.bootstrap(ctx)
}

func (p *Postgres) lockDir(dir string) error {
	l, err := folder.TryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	p.locks = append(p.locks, l)
	return nil
}

func (p *Postgres) findHome() (err error) {
	user := account.OfServers()
	sum := sha256.Sum256([]byte(p.dir))
	server := account.Server{Name: "database", Folder: "database-" + hex.EncodeToString(sum[:8])}
	if p.home, err = user.Home(p.dir, server, p.cfg.Log); err != nil {
		return err
	}
	// After a copy, two data directories may point to the same database.
	if p.home != p.dir {
		if err := p.lockDir(p.home); err != nil {
			return err
		}
	}
	p.user, err = user.ForData(p.data())
	return err
}

func (p *Postgres) data() string    { return filepath.Join(p.home, "data") }
func (p *Postgres) logFile() string { return filepath.Join(p.dir, "postgres.log") }

// Dir returns the directory of the cluster's files. It is outside of DataDir if this process is root and
// the server's user cannot reach DataDir.
func (p *Postgres) Dir() string { return p.home }

// URL returns the address of the database "meterplex" for its owner, the role "meterplex", which is no superuser.
func (p *Postgres) URL() string {
	return p.url("meterplex", p.passwords.Owner, "meterplex")
}

// AdminURL returns the address of the database "postgres" for the superuser.
func (p *Postgres) AdminURL() string {
	return p.url("postgres", p.passwords.Superuser, "postgres")
}

func (p *Postgres) url(role, password, database string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(role, password), Host: child.Address(p.port),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// PID returns the process id of the postmaster.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.PID()
}

// Done returns a channel that is closed when the running postmaster has ended, for any reason.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.Done()
}

// Restart starts the server on the same port and data, e.g. after its postmaster was killed. A running
// one is stopped first.
func (p *Postgres) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, postgresStart)
	defer cancel()
	p.mu.Lock()
	proc, port, locked := p.proc, p.port, len(p.locks) > 0
	p.mu.Unlock()
	proc.Stop(ctx, postgresStop, syscall.SIGINT, syscall.SIGQUIT)
	if !locked {
		return errors.New("restart PostgreSQL: it was stopped permanently")
	}
	if err := p.launch(ctx, port); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// Halt shuts the server down, rolls back open transactions, and waits until the server has ended. Restart
// starts it again.
func (p *Postgres) Halt(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proc.Stop(ctx, postgresStop, syscall.SIGINT, syscall.SIGQUIT)
}

// Stop shuts the server down, rolls back open transactions, and waits until the server has ended. A
// second call has no effect.
func (p *Postgres) Stop(ctx context.Context) error {
	p.close(ctx)
	return nil
}

func (p *Postgres) close(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		p.proc.Stop(ctx, postgresStop, syscall.SIGINT, syscall.SIGQUIT)
	}
	for _, l := range p.locks {
		l.Release()
	}
	p.locks = nil
}

// endEarlier ends a postmaster that outlived the process that started it.
func (p *Postgres) endEarlier(ctx context.Context) error {
	b, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find a server of an earlier run: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || !child.Alive(pid, "postgres", p.data()) {
		return nil
	}
	fmt.Fprintf(p.cfg.Log, "Stopping PostgreSQL of an earlier run (process %d).\n", pid)
	return child.EndStale(ctx, pid, syscall.SIGINT, postgresStop, "postgres", p.data())
}

// command returns the postmaster's command. Its environment excludes our variables: PGDATA, PGOPTIONS
// and others would silently change it.
func (p *Postgres) command(port int, log *os.File) *exec.Cmd {
	args := append([]string{"-D", p.data()}, settingArgs(p.cfg.Settings, port)...)
	cmd := exec.Command(p.bin.path("postgres"), args...)
	cmd.Dir = p.data()
	cmd.Env = serverEnv(p.data())
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

func serverEnv(home string) []string {
	return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "HOME=" + home}
}
