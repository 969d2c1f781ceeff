package relay_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/relay"
)

// childEnv makes this test binary run a relay in a separate process, which can be stopped and killed.
const childEnv = "METERPLEX_TEST_RELAY"

type childConfig struct {
	URL, Prefix, Instance string
	Brokers               []string
	Signal                syscall.Signal // sent to the process itself after the broker acknowledged a batch
	After                 int64          // number of that batch
}

// startChild starts a relay process and collects the lines of its log.
func (w *relayFixture) startChild(instance string, signal syscall.Signal, after int64) (*exec.Cmd, *lines) {
	w.t.Helper()
	config, _ := json.Marshal(childConfig{w.url, w.cfg.TopicPrefix, instance, w.cfg.Brokers, signal, after})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	out, err := cmd.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	l := &lines{done: make(chan struct{})}
	go l.read(bufio.NewScanner(out))
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-l.done
	})
	return cmd, l
}

type lines struct {
	mu   sync.Mutex
	all  []string
	done chan struct{}
}

func (l *lines) read(s *bufio.Scanner) {
	defer close(l.done)
	for s.Scan() {
		l.mu.Lock()
		l.all = append(l.all, s.Text())
		l.mu.Unlock()
	}
}

func (l *lines) contain(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

func runChild(config string) {
	if err := child(config); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func child(config string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	ctx := context.Background()
	pool, err := postgres.Open(ctx, postgres.Config{URL: c.URL})
	if err != nil {
		return err
	}
	log, err := eventlog.New(ctx, pool, eventlog.Config{})
	if err != nil {
		return err
	}
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: c.Brokers, TopicPrefix: c.Prefix, Logger: quiet()})
	if err != nil {
		return err
	}
	r := &relay.Relay{
		Pool: pool, Log: log, Appender: log, Publisher: &signallingPublisher{Publisher: publisher, signal: c.Signal, after: c.After},
		Instance: c.Instance, NewID: newID, Now: time.Now, LeaseTTL: time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), MaxEvents: 300,
	}
	return r.Run(ctx)
}

// signallingPublisher sends a signal to its own process between the broker's acknowledgement and the move of the
// cursor.
type signallingPublisher struct {
	message.Publisher
	signal syscall.Signal
	after  int64
	calls  atomic.Int64
}

func (s *signallingPublisher) Publish(topic string, msgs ...*message.Message) error {
	err := s.Publisher.Publish(topic, msgs...)
	if err == nil && s.calls.Add(1) == s.after {
		fmt.Fprintln(os.Stderr, "fault reached")
		_ = syscall.Kill(os.Getpid(), s.signal)
		time.Sleep(10 * time.Millisecond) // the signal arrives before this ends
	}
	return err
}

func TestP2_KilledBetweenTheBrokersAckAndTheCursor(t *testing.T) {
	w := newRelayFixture(t)
	w.appendUsage(40, tenantsOfAllPartitions()...)
	cmd, out := w.startChild("killed", syscall.SIGKILL, 2)
	<-out.done // before Wait, which closes the pipe even if it was not read to the end
	_ = cmd.Wait()
	if !out.contain("fault reached") {
		t.Fatalf("the relay was not killed at the kill point: %v", out.all)
	}
	w.start(w.relay("next"))
	w.awaitDrained()
	if w.checkTopic(events.TopicUsageRaw) == 0 {
		t.Error("no record was published twice: the kill tested nothing")
	}
}

func TestP2_StoppedRelayComesBackAsAZombie(t *testing.T) {
	w := newRelayFixture(t)
	w.appendUsage(40, tenantsOfAllPartitions()...)
	cmd, out := w.startChild("zombie", syscall.SIGSTOP, 2)
	w.until("the zombie is stopped", func() bool { return out.contain("fault reached") })
	w.start(w.relay("next"))
	w.awaitDrained()
	fences := w.int(`SELECT sum(fence) FROM relay_cursors`)
	w.appendUsage(5, tenantsOfAllPartitions()...)
	_ = cmd.Process.Signal(syscall.SIGCONT)
	w.within(30*time.Second, "the zombie's step is refused", func() bool { return out.contain("cursors not moved") })
	w.awaitDrained()
	if fences < 2 {
		t.Errorf("no partition changed hands")
	}
	if w.checkTopic(events.TopicUsageRaw) == 0 {
		t.Error("no record was published twice: the zombie tested nothing")
	}
}
