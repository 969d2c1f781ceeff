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

// KafkaConfig says where a Kafka broker lies and how it runs.
type KafkaConfig struct {
	// DataDir holds the topics; it is made where missing.
	DataDir string
	// CacheDir holds the fetched program; empty: CacheDir().
	CacheDir string
	// Log receives a few lines for a person. The broker's own log is
	// kafka/kafka.log in DataDir.
	Log io.Writer
	// Port is what the broker listens on; 0: the one it had before if free,
	// else a free one.
	Port int
}

// Kafka is a running broker, which is a controller, too, that this process owns.
type Kafka struct {
	cfg  KafkaConfig
	dir  string
	node int
	// id is the cluster's, controllers are the ports of its nodes 1, 2 …; a
	// broker that is alone has neither.
	id          string
	controllers []int

	java java
	jars []string
	lock *lock

	mu    sync.Mutex
	ports kafkaPorts
	proc  *process
	// archive is what the running broker records its classes to; "" if it
	// does not.
	archive string
}

const (
	// kafkaStart bounds a start: 3 s on an idle machine, 26 s were seen on a
	// loaded one.
	kafkaStart = 3 * time.Minute
	// kafkaStop bounds an orderly stop, which flushes the logs.
	kafkaStop = 30 * time.Second
	// kafkaFetch bounds the one download of 43 MB.
	kafkaFetch = 15 * time.Minute
)

// KafkaAvailable says whether StartKafka can work here: nil, or an error with
// one line on what to install, wrapping ErrNoJava or ErrNoMaven. Maven is
// needed only until the broker's program is in the cache.
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

// StartKafka starts a broker on cfg.DataDir, with what it held before. The
// first start on a machine fetches the program into the cache. ctx bounds the
// start only; end the broker with Stop. ErrInUse is returned, with the other's
// process id, where another process has the data.
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
		return fmt.Errorf("make the data directory: %w", err)
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

// Brokers is the broker's address.
func (k *Kafka) Brokers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{address(k.ports.broker)}
}

// PID is the process id of the broker.
func (k *Kafka) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc.pid()
}

// Done is closed when the broker that runs now has ended, for whatever reason.
func (k *Kafka) Done() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc.done
}

// Dir is the directory of the broker's data. Removed while the broker is
// stopped, it is made anew, empty, by Restart.
func (k *Kafka) Dir() string { return filepath.Join(k.dir, dataName) }

// Stop shuts the broker down and returns when it is gone. A second call does
// nothing.
func (k *Kafka) Stop(ctx context.Context) error {
	k.Halt(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lock.release()
	k.lock = nil
	return nil
}

// Halt shuts the broker down (SIGTERM) and returns when it is gone. Restart
// brings it back.
func (k *Kafka) Halt(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.proc.stop(ctx, kafkaStop, syscall.SIGTERM)
	k.keepArchive()
}

// Kill ends the broker at once (SIGKILL) and returns when it is gone. Restart
// brings it back.
func (k *Kafka) Kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.proc.stop(context.Background(), kafkaStop, syscall.SIGKILL)
	return nil
}

// Restart starts the broker again on the same ports and data; one that still
// runs is stopped first.
func (k *Kafka) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaStart)
	defer cancel()
	k.Halt(ctx)
	k.mu.Lock()
	ports, locked := k.ports, k.lock != nil
	k.mu.Unlock()
	if !locked {
		return errors.New("restart Kafka: it was stopped for good")
	}
	if err := k.launch(ctx, ports); err != nil {
		return fmt.Errorf("restart Kafka: %w", err)
	}
	return nil
}

func (k *Kafka) pidFile() string { return filepath.Join(k.dir, "pid") }

// endEarlier ends a broker that outlived the process which started it. Its
// data survive: what it acknowledged lies with the operating system.
func (k *Kafka) endEarlier(ctx context.Context) error {
	b, err := os.ReadFile(k.pidFile())
	if missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a broker of an earlier run: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || !alive(pid, k.mark()) {
		return nil
	}
	note(k.cfg.Log, "Kafka of an earlier run (process %d) still runs: it is stopped first.", pid)
	return endStale(ctx, pid, syscall.SIGTERM, kafkaStop, k.mark())
}
