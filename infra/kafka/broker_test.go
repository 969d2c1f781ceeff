package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// testTimeout bounds waits in tests.
const testTimeout = must.Patience

// ledger collects the records that a consumer received.
type ledger struct {
	mu    sync.Mutex
	seen  map[string]int
	order map[int16][]string // first occurrences
}

func newLedger() *ledger { return &ledger{seen: map[string]int{}, order: map[int16][]string{}} }

func (l *ledger) consume(t testing.TB, messages <-chan *message.Message) {
	for msg := range messages {
		records, err := kafka.Records(msg)
		if err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		for _, r := range records {
			if l.seen[string(r.Value)]++; l.seen[string(r.Value)] == 1 {
				l.order[r.Partition] = append(l.order[r.Partition], string(r.Value))
			}
		}
		l.mu.Unlock()
		msg.Ack()
	}
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// await waits for n distinct records.
func (l *ledger) await(t testing.TB, n int) {
	t.Helper()
	must.Until(t, fmt.Sprint(n, " records are received"), func() bool { return l.count() >= n })
}

// inOrder checks that the first occurrences in each partition have ascending numbers.
func (l *ledger) inOrder(t testing.TB) {
	t.Helper()
	for p, values := range l.order {
		last := -1
		for _, v := range values {
			var n int
			fmt.Sscanf(v, "%d", &n)
			if n < last {
				t.Fatalf("partition %d: record %d received first after %d", p, n, last)
			}
			last = n
		}
	}
}

// publishAll publishes like the relay: it repeats the same records until all are stored. It returns the
// number of failed calls.
func publishAll(t testing.TB, pub *kafka.Publisher, topic events.Topic, from, to, batch int, published func(int)) (failures int) {
	t.Helper()
	end := time.Now().Add(testTimeout)
	for ; from < to; from += batch {
		records := pipetest.Make(topic, from, batch)
		for {
			err := pipetest.Publish(context.Background(), pub, records)
			if err == nil {
				break
			}
			failures++
			if time.Now().After(end) {
				t.Fatalf("publishing did not recover: %v", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		published(from + batch)
	}
	return failures
}

// TestP1_NothingIsLostWhenTheBrokerIsKilled kills the broker while the same clients publish and consume.
func TestP1_NothingIsLostWhenTheBrokerIsKilled(t *testing.T) {
	tier.AtSize(t)
	for name, c := range map[string]struct {
		topic        events.Topic
		open         func(kafka.SubscriberConfig) (message.Subscriber, error)
		total, batch int
		kills        []int
	}{
		"batches":  {events.TopicUsageRaw, batches, 9000, 50, []int{3000, 6000}},
		"low rate": {events.TopicCommands, kafka.NewLowRateSubscriber, 400, 20, []int{200}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := ownBroker(t)
			cfg := configAt(t, broker)
			cfg.DeliveryTimeout = 2 * time.Second
			makeTopic(t, cfg, c.topic)
			pub := newPublisher(t, cfg)
			sub, err := c.open(kafka.SubscriberConfig{Config: cfg, Group: "g", MaxRecords: 100})
			must.OK(t, err)
			messages, err := sub.Subscribe(t.Context(), c.topic.Name())
			must.OK(t, err)
			seen, consumed := newLedger(), make(chan struct{})
			go func() { seen.consume(t, messages); close(consumed) }()
			var restarts sync.WaitGroup
			failures := publishAll(t, pub, c.topic, 0, c.total, c.batch, func(n int) {
				if !slices.Contains(c.kills, n) {
					return
				}
				if err := broker.Kill(); err != nil {
					t.Error(err)
				}
				restarts.Go(func() {
					time.Sleep(3 * time.Second) // longer than the longest publish call
					if err := broker.Restart(context.Background()); err != nil {
						t.Error(err)
					}
				})
			})
			restarts.Wait()
			if failures == 0 {
				t.Error("no publish call failed: the fault was not reached")
			}
			seen.await(t, c.total)
			if err := errors.Join(pub.Close(), sub.Close()); err != nil {
				t.Error(err)
			}
			<-consumed
			seen.inOrder(t)
		})
	}
}

// batches opens the subscriber of topics with many records.
func batches(c kafka.SubscriberConfig) (message.Subscriber, error) { return kafka.NewSubscriber(c) }

// TestPublishReturnsWhileTheBrokerHangs stops the broker's process: connections stay open without
// answers.
func TestPublishReturnsWhileTheBrokerHangs(t *testing.T) {
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicCommands} {
		t.Run(topic.Name(), func(t *testing.T) { publishWhileTheBrokerHangs(t, kafkatest.Broker(t), topic) })
	}
}

func publishWhileTheBrokerHangs(t *testing.T, broker *localkafka.Broker, topic events.Topic) {
	cfg := configAt(t, broker)
	cfg.DeliveryTimeout = 2 * time.Second
	makeTopic(t, cfg, topic)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	publishAll(t, pub, topic, 0, 10, 10, func(int) {})
	process, err := os.FindProcess(broker.PID())
	must.OK(t, err)
	must.OK(t, process.Signal(syscall.SIGSTOP))
	awaitStopped(t, process.Pid)
	records := pipetest.Make(topic, 10, 10)
	err = pipetest.Publish(t.Context(), pub, records)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	byCaller := pipetest.Publish(ctx, pub, pipetest.Make(topic, 10, 10))
	must.OK(t, process.Signal(syscall.SIGCONT))
	var failed *kafka.PublishError
	if !errors.As(err, &failed) || len(failed.Failed) != 10 || len(failed.Permanent()) != 0 || records[0].Offset != -1 {
		t.Errorf("a broker that hangs gave %v", err)
	}
	if !errors.Is(byCaller, context.Canceled) {
		t.Errorf("a cancelled caller got %v", byCaller)
	}
	publishAll(t, pub, topic, 10, 20, 10, func(int) {})
}

// awaitStopped waits until all threads of a process have stopped: a signal takes effect with a delay.
func awaitStopped(t testing.TB, pid int) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 { // no /proc on this system
			time.Sleep(300 * time.Millisecond)
			return
		}
		running := 0
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if _, state, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(state, "T") {
				running++
			}
		}
		if running == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d threads still run after SIGSTOP", running, len(threads))
		}
	}
}

// continuesAfter publishes and consumes 100 records, calls happen, and expects the next 100 records to pass as
// well.
func continuesAfter(t *testing.T, cfg kafka.Config, happen func(admin *kafka.Admin)) {
	cfg.DeliveryTimeout = 2 * time.Second
	admin := ensure(t, cfg)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"})
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	seen, consumed := newLedger(), make(chan struct{})
	go func() { seen.consume(t, messages); close(consumed) }()
	publishAll(t, pub, events.TopicUsageRaw, 0, 100, 50, func(int) {})
	seen.await(t, 100)
	happen(admin)
	publishAll(t, pub, events.TopicUsageRaw, 100, 200, 50, func(int) {})
	seen.await(t, 200)
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	<-consumed
}

// TestWipedBrokerIsUsedAgain deletes all data of the broker, so that every topic gets a new id.
func TestWipedBrokerIsUsedAgain(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	broker := ownBroker(t)
	continuesAfter(t, configAt(t, broker), func(admin *kafka.Admin) {
		must.OK(t, broker.Kill())
		must.OK(t, os.RemoveAll(broker.Dir()))
		must.OK(t, broker.Restart(t.Context()))
		must.OK(t, admin.Ensure(t.Context()))
	})
}

// A broker that has lost its data gives out producer ids from the first one again, also that of a publisher that still runs. If both
// number their records alike, the broker takes the second one's for a repetition, and answers that it is stored.
func TestP11_AnEmptyBrokerStoresTheRecordsOfEachPublisher(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	broker := ownBroker(t)
	cfg := configAt(t, broker)
	admin := ensure(t, cfg)
	published := func(pub *kafka.Publisher, topic events.Topic, partition int16) int64 {
		records := pipetest.Make(topic, 0, 1)
		records[0].Partition = partition
		must.Until(t, "a record is published", func() bool { return pipetest.Publish(t.Context(), pub, records) == nil })
		return records[0].Offset
	}
	topics := []events.Topic{events.TopicCatalogue, events.TopicUsageRaw}
	old := newPublisher(t, cfg)
	defer old.Close()
	for _, topic := range topics {
		published(old, topic, 1)
	}
	must.OK(t, broker.Kill())
	must.OK(t, os.RemoveAll(broker.Dir()))
	must.OK(t, broker.Restart(t.Context()))
	must.OK(t, admin.Ensure(t.Context()))
	other := newPublisher(t, cfg)
	defer other.Close()
	for _, topic := range topics {
		first, second := published(old, topic, 2), published(other, topic, 2)
		if first != 0 || second != 1 {
			t.Errorf("%s: records have the offsets %d and %d, not 0 and 1", topic.Name(), first, second)
		}
	}
}

// TestRecreatedTopicIsUsedAgain deletes and creates the topics while both clients are running.
func TestRecreatedTopicIsUsedAgain(t *testing.T) {
	tier.AtSize(t)
	continuesAfter(t, config(t), func(admin *kafka.Admin) {
		must.OK(t, admin.DeleteTopics(t.Context()))
		must.Until(t, "the topics are made again", func() bool { return admin.Ensure(t.Context()) == nil })
	})
}

// Topics that others created have the publisher's timestamps until Ensure, and refuse records of a
// clock that is days ahead. Afterwards such records are accepted.
func TestTopicsOfOthersUseTheBrokersTime(t *testing.T) {
	cfg := config(t)
	name := cfg.TopicPrefix + "usage.raw"
	create(t, client(t), 32, nil, name)
	must.OK(t, newAdmin(t, cfg).Ensure(t.Context()))
	admin := client(t)
	for _, of := range []string{name, cfg.TopicPrefix + "usage.validated"} {
		// The broker changes an existing topic with a delay.
		must.Until(t, of+" is stamped by the broker", func() bool {
			described, err := admin.DescribeTopicConfigs(t.Context(), of)
			must.OK(t, err)
			return slices.ContainsFunc(described[0].Configs, func(c kadm.Config) bool {
				return c.Key == "message.timestamp.type" && c.MaybeValue() == "LogAppendTime"
			})
		})
	}
}
