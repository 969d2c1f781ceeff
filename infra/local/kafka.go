package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// KafkaConfig configures a Kafka broker.
type KafkaConfig struct {
	// DataDir holds the topics. It is created if missing.
	DataDir string
	// CacheDir holds the downloaded program. Empty means CacheDir().
	CacheDir string
	// Log receives a few lines for the user. The broker's own log is kafka/kafka.log in DataDir.
	Log io.Writer
	// Port is the broker's port. 0 means the previous port if it is free, else any free port.
	Port int
	// Users are the passwords of users, by name. If there are any, the broker has a second listener with SASL/PLAIN
	// (SecuredBrokers), where ACLs bound the rights of a user. Clients of Brokers have all rights.
	Users map[string]string
	// TLS encrypts the listener of the users, who may use SCRAM as well, and adds a listener that identifies its clients by
	// their certificates (CertifiedBrokers). It needs Users.
	TLS *KafkaTLS
}

// KafkaTLS holds certificates in PEM form.
type KafkaTLS struct {
	Certificate, Key string // of the broker; the key is in the form PKCS #8
	ClientCA         string // that signs the certificates of clients
	// LogInAgain is the time after which clients of the users' listener authenticate again; 0: 2 s, so that a changed password is noticed.
	LogInAgain time.Duration
}

// Kafka is a running broker, owned by this process. The broker is also a controller.
type Kafka struct {
	cfg  KafkaConfig
	dir  string
	node int
	// id is the cluster's id, controllers are the ports of its nodes 1, 2, …. A single broker has
	// neither.
	id          string
	controllers []int

	java java
	jars []string
	lock *lock

	mu    sync.Mutex
	ports kafkaPorts
	proc  *process
	// archive is the file to which the running broker writes its class archive; "" if it does not.
	archive string
}

const (
	// kafkaStart bounds a start, which took 3 s on an idle machine and up to 26 s on a loaded one.
	kafkaStart = 3 * time.Minute
	// kafkaStop bounds an orderly stop, which flushes the logs.
	kafkaStop = 30 * time.Second
	// kafkaFetch bounds the download of 43 MB.
	kafkaFetch = 15 * time.Minute
)

// KafkaAvailable returns nil if StartKafka can work here. Otherwise it returns an error that names the
// program to install and wraps ErrNoJava or ErrNoMaven. Maven is needed only until the broker's program
// is in the cache.
func KafkaAvailable() error {
	if _, err := findJava(context.Background()); err != nil {
		return err
	}
	if exists(jarDir(CacheDir())) {
		return nil
	}
	_, err := findMaven()
	return err
}

// StartKafka starts a broker on cfg.DataDir with the existing data. The first start on a machine
// downloads the program into the cache. ctx bounds only the start; end the broker with Stop. If another
// process uses the data, StartKafka returns ErrInUse with its process id.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	k := newKafka(cfg, "kafka", 1)
	if err := k.start(ctx, kafkaPorts{broker: cfg.Port}); err != nil {
		return nil, fmt.Errorf("start the embedded Kafka: %w", err)
	}
	return k, nil
}

func newKafka(cfg KafkaConfig, folder string, node int) *Kafka {
	if cfg.CacheDir == "" {
		cfg.CacheDir = CacheDir()
	}
	cfg.CacheDir = absolute(cfg.CacheDir)
	return &Kafka{cfg: cfg, dir: filepath.Join(absolute(cfg.DataDir), folder), node: node}
}

func (k *Kafka) start(ctx context.Context, ports kafkaPorts) error {
	err := k.open(ctx, ports)
	if err != nil {
		if k.proc != nil {
			k.Halt(context.WithoutCancel(ctx))
		}
		k.lock.release()
	}
	return err
}

func (k *Kafka) open(ctx context.Context, ports kafkaPorts) (err error) {
	if k.java, err = findJava(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if k.lock, err = tryLock(filepath.Join(k.dir, "lock")); err != nil {
		return err
	}
	if k.jars, err = installKafka(ctx, k.cfg.CacheDir, k.cfg.Log); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, kafkaStart)
	defer cancel()
	if err := k.endEarlier(ctx); err != nil {
		return err
	}
	return k.launch(ctx, ports)
}

// Brokers returns the broker's address.
func (k *Kafka) Brokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{address(k.ports.broker)}
}

// SecuredBrokers returns the broker's address for users with a password.
func (k *Kafka) SecuredBrokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{address(k.ports.secured)}
}

// CertifiedBrokers returns the broker's address for clients with a certificate.
func (k *Kafka) CertifiedBrokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{address(k.ports.certified)}
}

// PID returns the process id of the broker.
func (k *Kafka) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc.pid()
}

// Done returns a channel that is closed when the running broker has ended, for any reason.
func (k *Kafka) Done() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc.done
}

// Dir returns the directory of the broker's data. If it is removed while the broker is stopped, Restart
// creates it again, empty.
func (k *Kafka) Dir() string { return filepath.Join(k.dir, dataName) }

// Stop shuts the broker down and waits until it has ended. A second call has no effect.
func (k *Kafka) Stop(ctx context.Context) error {
	k.Halt(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lock.release()
	k.lock = nil
	return nil
}

// Halt shuts the broker down (SIGTERM) and waits until it has ended. Restart starts it again.
func (k *Kafka) Halt(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	grace := kafkaStop
	if k.archive != "" {
		_ = k.exercise(ctx) // what failed is left out of the archive
		grace = archiveTime
	}
	k.proc.stop(ctx, grace, syscall.SIGTERM)
	k.saveArchive()
}

// Kill ends the broker at once (SIGKILL) and waits until it has ended. Restart starts it again.
func (k *Kafka) Kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.proc.stop(context.Background(), kafkaStop, syscall.SIGKILL)
	return nil
}

// Restart starts the broker on the same ports and data. A running broker is stopped first.
func (k *Kafka) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaStart)
	defer cancel()
	k.Halt(ctx)
	k.mu.Lock()
	ports, locked := k.ports, k.lock != nil
	k.mu.Unlock()
	if !locked {
		return errors.New("restart Kafka: it was stopped permanently")
	}
	if err := k.launch(ctx, ports); err != nil {
		return fmt.Errorf("restart Kafka: %w", err)
	}
	return nil
}

func (k *Kafka) pidFile() string { return filepath.Join(k.dir, "pid") }

// endEarlier ends a broker that outlived the process that started it. Acknowledged data survive, because
// the operating system has them.
func (k *Kafka) endEarlier(ctx context.Context) error {
	b, err := os.ReadFile(k.pidFile())
	if missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find a broker of an earlier run: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || !alive(pid, k.mark()) {
		return nil
	}
	note(k.cfg.Log, "Stopping Kafka of an earlier run (process %d).", pid)
	return endStale(ctx, pid, syscall.SIGTERM, kafkaStop, k.mark())
}
