package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// PostgresConfig says where a PostgreSQL lies and how it runs.
type PostgresConfig struct {
	// DataDir holds the database and its passwords; it is made where missing.
	DataDir string
	// Log receives a few lines for a person. The server's own log is
	// postgres/postgres.log in DataDir.
	Log io.Writer
	// Settings are added to or replace the server's settings, save those that
	// would make a commit less than durable: these are refused.
	Settings map[string]string
	// Major is the major version of a new database; 0: the installed one, else the
	// newest. A database that exists keeps its own.
	Major int
	// BinDir names the server's programs; empty: found or fetched.
	BinDir string
}

// Postgres is a running PostgreSQL that this process owns.
type Postgres struct {
	cfg       PostgresConfig
	dir       string // ours: passwords, lock, log
	home      string // what holds the cluster: dir, or a place its user reaches
	who       account
	bin       binaries
	passwords passwords

	mu    sync.Mutex
	port  int
	proc  *process
	locks []*lock
}

const (
	// postgresStart bounds a start. Recovery after a crash reads at most
	// max_wal_size and takes seconds; a machine under load takes longer.
	postgresStart = 5 * time.Minute
	// postgresStop bounds a fast shutdown, which ends with a checkpoint; after
	// it the server is stopped the hard way and recovers at its next start.
	postgresStop = time.Minute
)

// StartPostgres starts PostgreSQL on cfg.DataDir, with what it held before. It
// makes the cluster, the role and the database "meterplex" where they are
// missing. ctx bounds the start only; end the server with Stop. ErrInUse is
// returned, with the other's process id, where another process has the data.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresStart)
	defer cancel()
	if err := checkSettings(cfg.Settings); err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg, dir: filepath.Join(absolute(cfg.DataDir), "postgres")}
	if err := p.open(ctx); err != nil {
		p.close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("start the embedded PostgreSQL: %w", err)
	}
	return p, nil
}

func (p *Postgres) open(ctx context.Context) error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := p.lockDir(p.dir); err != nil {
		return err
	}
	if err := p.place(); err != nil {
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
	l, err := tryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	p.locks = append(p.locks, l)
	return nil
}

func (p *Postgres) place() (err error) {
	who := serverAccount()
	if p.home, err = clusterHome(p.dir, who, p.cfg.Log); err != nil {
		return err
	}
	// Two data directories may point to one place after a copy.
	if p.home != p.dir {
		if err := p.lockDir(p.home); err != nil {
			return err
		}
	}
	p.who, err = who.forData(p.data())
	return err
}

func (p *Postgres) data() string    { return filepath.Join(p.home, "data") }
func (p *Postgres) logFile() string { return filepath.Join(p.dir, "postgres.log") }

// Dir is the directory that holds the cluster's files: in DataDir, or
// elsewhere where this process is root and the server's user cannot reach it.
func (p *Postgres) Dir() string { return p.home }

// URL is the address of the database "meterplex" for its owner, the role
// "meterplex": no superuser, with CREATEROLE.
func (p *Postgres) URL() string {
	return p.url("meterplex", p.passwords.Owner, "meterplex")
}

// AdminURL is the address of the database "postgres" for the superuser.
func (p *Postgres) AdminURL() string {
	return p.url("postgres", p.passwords.Superuser, "postgres")
}

func (p *Postgres) url(role, password, database string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(role, password), Host: address(p.port),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// PID is the process id of the postmaster.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.pid()
}

// Done is closed when the postmaster that runs now has ended, for whatever
// reason.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.done
}

// Restart starts the server again on the same port and data, after its
// postmaster was killed; one that still runs is stopped first.
func (p *Postgres) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, postgresStart)
	defer cancel()
	p.mu.Lock()
	proc, port, locked := p.proc, p.port, len(p.locks) > 0
	p.mu.Unlock()
	proc.stop(ctx, postgresStop, syscall.SIGINT, syscall.SIGQUIT)
	if !locked {
		return errors.New("restart PostgreSQL: it was stopped for good")
	}
	if err := p.launch(ctx, port); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// Stop shuts the server down, open transactions being rolled back, and returns
// when it is gone. A second call does nothing.
func (p *Postgres) Stop(ctx context.Context) error {
	p.close(ctx)
	return nil
}

func (p *Postgres) close(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		p.proc.stop(ctx, postgresStop, syscall.SIGINT, syscall.SIGQUIT)
	}
	for _, l := range p.locks {
		l.release()
	}
	p.locks = nil
}

// endEarlier ends a postmaster that outlived the process which started it.
func (p *Postgres) endEarlier(ctx context.Context) error {
	b, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a server of an earlier run: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || !alive(pid, "postgres", p.data()) {
		return nil
	}
	note(p.cfg.Log, "PostgreSQL of an earlier run (process %d) still runs: it is stopped first.", pid)
	return endStale(ctx, pid, syscall.SIGINT, postgresStop, "postgres", p.data())
}

// command is the postmaster's. Its environment holds nothing of ours: PGDATA,
// PGOPTIONS and the like would change it in silence.
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
