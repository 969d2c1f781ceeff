// Package localkafka runs a real Apache Kafka as a child process, for a start without configuration and for
// tests. Package local describes its parts in common with the local
// PostgreSQL. The package is apart from that one, so that tests with PostgreSQL alone do not compile a Kafka client.
package localkafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// ErrNoJava means that no Java runtime of version 17 or later was found.
var ErrNoJava = errors.New("no Java 17 or later")

// ErrExited is the error of a broker that ended before it answered, e.g. because its data is damaged.
var ErrExited = errors.New("the broker exited during its start")

// ErrDamaged means that a broker's data directory cannot be used: a file that each has is missing or unreadable.
var ErrDamaged = errors.New("the broker's data are damaged")

// Config configures a Kafka broker.
type Config struct {
	// DataDir holds the topics. It is created if missing.
	DataDir string
	// CacheDir holds the downloaded program. Empty means download.CacheDir().
	CacheDir string
	// Log receives a few lines for the user. The broker's own log is kafka/kafka.log in DataDir.
	Log io.Writer
	// Port is the broker's port. 0 means the previous port if it is free, else any free port.
	Port int
	// Locked lets only clients with the user and password of Login use the broker, and only this process's user and the broker's read its
	// files. Otherwise every user of the machine has all rights, as tests need them.
	Locked bool
	// Quorum makes the broker one of several that replicate each other's records; nil: it is alone.
	Quorum *Quorum
	// Users are the passwords of users, by name. If there are any, the broker has a second listener with SASL/PLAIN
	// (SecuredBrokers), where ACLs bound the rights of a user. Clients of Brokers have all rights.
	Users map[string]string
	// TLS encrypts the listener of the users, who may use SCRAM as well, and adds a listener that identifies its clients by
	// their certificates (CertifiedBrokers). It needs Users.
	TLS *TLS
}

// TLS holds certificates in PEM form.
type TLS struct {
	Certificate, Key string // of the broker; the key is in the form PKCS #8
	ClientCA         string // that signs the certificates of clients
	// LogInAgain is the time after which clients of the users' listener authenticate again; 0: 2 s, so that a changed password is noticed.
	LogInAgain time.Duration
}

// Quorum is a broker among others. All of them are controllers: while a majority runs, the others can stop and restart.
type Quorum struct {
	ID          string // of the cluster, made by ClusterID
	Node        int    // 1, 2, …
	Controllers []int  // ports of the nodes 1, 2, …
}

// Broker is a running broker, owned by this process. The broker is also a controller.
type Broker struct {
	cfg  Config
	dir  string // our files: the password, the lock, the log
	home string // of the broker's files: dir, or a directory that its user can reach
	user account.Account

	java     java
	program  string // the folder of its jars and class archives
	jars     []string
	password string // of User if the broker is locked

	mu    sync.Mutex
	locks []*folder.Lock
	ports brokerPorts
	proc  *child.Process
	// archive is the file to which the running broker writes its class archive; "" if it does not.
	archive string
}

const (
	// startTime bounds a start, which took 3 s on an idle machine and up to 26 s on a loaded one.
	startTime = 3 * time.Minute
	// stopTime bounds an orderly stop, which flushes the logs.
	stopTime = 30 * time.Second
	// fetchTime bounds the download of 43 MB.
	fetchTime = 15 * time.Minute
)

// Available returns nil if Start can work here. Otherwise it returns an error that names the
// program to install and wraps ErrNoJava or download.ErrNoMaven. Maven is needed only until the broker's program
// is in the cache.
func Available() error {
	user := account.OfServers()
	if _, err := findJava(context.Background(), user); err != nil {
		return err
	}
	program, err := programDir(download.CacheDir(), user)
	if err != nil || folder.Exists(jarDir(program)) {
		return err
	}
	_, err = download.FindMaven()
	return err
}

// Start starts a broker on cfg.DataDir with the existing data. The first start on a machine
// downloads the program into the cache. ctx bounds only the start; end the broker with Stop. If another
// process uses the data, Start returns folder.ErrInUse with its process id.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	k, ports := newBroker(cfg), brokerPorts{broker: cfg.Port}
	if q := cfg.Quorum; q != nil {
		ports.controller = q.Controllers[q.Node-1]
	}
	if err := k.start(ctx, ports); err != nil {
		return nil, fmt.Errorf("start the embedded Kafka: %w", err)
	}
	return k, nil
}

func newBroker(cfg Config) *Broker {
	if cfg.CacheDir == "" {
		cfg.CacheDir = download.CacheDir()
	}
	cfg.CacheDir = folder.Absolute(cfg.CacheDir)
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	dir := filepath.Join(folder.Absolute(cfg.DataDir), "kafka")
	return &Broker{cfg: cfg, dir: dir, home: dir}
}

func (k *Broker) start(ctx context.Context, ports brokerPorts) error {
	err := k.open(ctx, ports)
	if err != nil {
		if k.proc != nil {
			k.Halt(context.WithoutCancel(ctx))
		}
		k.unlock()
	}
	return err
}

func (k *Broker) open(ctx context.Context, ports brokerPorts) (err error) {
	if k.user, err = account.OfServers().ForData(k.Dir()); err != nil {
		return err
	}
	if k.java, err = findJava(ctx, k.user); err != nil {
		return err
	}
	if err := k.makeDir(); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if err := k.lockDir(k.dir); err != nil {
		return err
	}
	if err := k.readPassword(); err != nil {
		return fmt.Errorf("read the password: %w", err)
	}
	if k.program, err = programDir(k.cfg.CacheDir, k.user); err != nil {
		return err
	}
	if k.jars, err = install(ctx, k.program, k.cfg.CacheDir, k.cfg.Log); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := k.endEarlier(ctx); err != nil {
		return err
	}
	if err := k.findHome(); err != nil {
		return err
	}
	return k.launch(ctx, ports)
}

func (k *Broker) lockDir(dir string) error {
	l, err := folder.TryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	k.locks = append(k.locks, l)
	return nil
}

func (k *Broker) unlock() {
	for _, l := range k.locks {
		l.Release()
	}
	k.locks = nil
}

// findHome finds the folder of the broker's files, and makes the broker's user the owner of its data, where that user reaches them.
func (k *Broker) findHome() (err error) {
	// A new folder each time: who moves damaged data away gets a broker without data, not the data of before.
	server := account.Server{Name: "broker", Folder: "broker-" + strings.ToLower(rand.Text()[:16])}
	if k.home, err = k.user.Home(k.dir, server, k.cfg.Log); err != nil {
		return err
	}
	// After a copy, two data directories may point to the same broker's files.
	if k.home != k.dir {
		if err := errors.Join(k.closeDir(k.home), k.lockDir(k.home)); err != nil {
			return err
		}
	}
	if k.user, err = k.user.ForData(k.Dir()); err != nil || !k.user.Drop || !folder.Exists(k.Dir()) {
		return err
	}
	return errors.Join(k.user.ChownAll(k.Dir()), os.Chmod(k.Dir(), 0o700))
}

// Brokers returns the broker's address.
func (k *Broker) Brokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{child.Address(k.ports.broker)}
}

// SecuredBrokers returns the broker's address for users with a password.
func (k *Broker) SecuredBrokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{child.Address(k.ports.secured)}
}

// CertifiedBrokers returns the broker's address for clients with a certificate.
func (k *Broker) CertifiedBrokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{child.Address(k.ports.certified)}
}

// PID returns the process id of the broker.
func (k *Broker) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc.PID()
}

// Done returns a channel that is closed when the running broker has ended, for any reason.
func (k *Broker) Done() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc.Done()
}

// Dir returns the directory of the broker's data. It is outside of DataDir if this process is root and the broker's user
// cannot reach DataDir. If it is removed while the broker is stopped, Restart creates it again, empty.
func (k *Broker) Dir() string { return filepath.Join(k.home, dataName) }

// Stop shuts the broker down and waits until it has ended. A second call has no effect.
func (k *Broker) Stop(ctx context.Context) error {
	k.Halt(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unlock()
	return nil
}

// Halt shuts the broker down (SIGTERM) and waits until it has ended. Restart starts it again.
func (k *Broker) Halt(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	grace := stopTime
	if k.archive != "" {
		_ = k.exercise(ctx) // what failed is left out of the archive
		grace = archiveTime
	}
	k.proc.Stop(ctx, grace, syscall.SIGTERM)
	k.saveArchive()
}

// Kill ends the broker at once (SIGKILL) and waits until it has ended. Restart starts it again.
func (k *Broker) Kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.proc.Stop(context.Background(), stopTime, syscall.SIGKILL)
	return nil
}

// Restart starts the broker on the same ports and data. A running broker is stopped first.
func (k *Broker) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	k.Halt(ctx)
	k.mu.Lock()
	ports, locked := k.ports, len(k.locks) > 0
	k.mu.Unlock()
	if !locked {
		return errors.New("restart Kafka: it was stopped permanently")
	}
	if err := k.launch(ctx, ports); err != nil {
		return fmt.Errorf("restart Kafka: %w", err)
	}
	return nil
}

func (k *Broker) pidFile() string { return filepath.Join(k.dir, "pid") }

// endEarlier ends a broker that outlived the process that started it. Acknowledged data survive, because
// the operating system has them.
func (k *Broker) endEarlier(ctx context.Context) error {
	b, err := os.ReadFile(k.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find a broker of an earlier run: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || !child.Alive(pid, k.mark()) {
		return nil
	}
	fmt.Fprintf(k.cfg.Log, "Stopping Kafka of an earlier run (process %d).\n", pid)
	return child.EndStale(ctx, pid, syscall.SIGTERM, stopTime, k.mark())
}
