package kafka_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// The offsets of an acknowledged batch are committed while its member reads on: each time, and those of a Nack are not.
func TestOffsetsAreCommittedAfterEachAck(t *testing.T) {
	cfg := config(t)
	admin := makeTopic(t, cfg, events.TopicUsageRaw)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"})
	defer sub.Close()
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	if err != nil {
		t.Fatal(err)
	}
	behind := func() (records int64) {
		lags, err := admin.Lag(t.Context(), "g")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lags {
			records += max(l.Lag, 0)
		}
		return records
	}
	for round := range 3 {
		if err := pipetest.Publish(t.Context(), pub, pipetest.Make(events.TopicUsageRaw, 70*round, 70)); err != nil {
			t.Fatal(err)
		}
		nacked, _ := receive(t, messages)
		nacked.Nack()
		for n := 0; n < 70; {
			msg, records := receive(t, messages)
			if n == 0 && behind() < int64(len(records)) {
				t.Errorf("round %d: offsets are committed before the Ack", round)
			}
			n += len(records)
			msg.Ack()
		}
		for end := time.Now().Add(testTimeout); behind() > 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("round %d: the offsets of %d acknowledged records are not committed", round, behind())
			}
		}
	}
}

// A broker that hangs when offsets are due to be committed does not block a stop.
func TestP11_ABrokerThatHangsDoesNotDelayAStop(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	broker := ownBroker(t)
	cfg := configAt(t, broker)
	makeTopic(t, cfg, events.TopicUsageRaw)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"})
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	if err != nil {
		t.Fatal(err)
	}
	publishAll(t, pub, events.TopicUsageRaw, 0, 10, 10, func(int) {})
	msg, _ := receive(t, messages)
	process, err := os.FindProcess(broker.PID())
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer process.Signal(syscall.SIGCONT)
	awaitStopped(t, process.Pid)
	msg.Ack()
	time.Sleep(500 * time.Millisecond) // a commit is under way
	began := time.Now()
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("the stop took %v", took)
	if took > time.Minute {
		t.Errorf("the stop took %v", took)
	}
}
