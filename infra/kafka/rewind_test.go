package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
)

// put publishes records in order to a partition of usage.raw.
func put(t testing.TB, p *kafka.Publisher, partition int16, values ...string) {
	t.Helper()
	var records []events.Record
	for _, v := range values {
		records = append(records, events.Record{Topic: events.TopicUsageRaw, Partition: partition, Value: []byte(v)})
	}
	must.OK(t, pipetest.Publish(context.Background(), p, records))
}

// reading subscribes, acknowledges all records and returns their values, until stop.
func reading(t testing.TB, sub message.Subscriber) (values <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	in, err := sub.Subscribe(ctx, events.TopicUsageRaw.Name())
	must.OK(t, err)
	out, done := make(chan string, 10_000), make(chan struct{})
	go func() {
		defer close(done)
		for msg := range in {
			records, err := kafka.Records(msg)
			if err != nil {
				t.Error(err)
			}
			for _, r := range records {
				out <- string(r.Value)
			}
			msg.Ack()
		}
	}()
	return out, func() {
		cancel()
		<-done
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	}
}

func next(t testing.TB, values <-chan string, n int) (got []string) {
	t.Helper()
	for range n {
		select {
		case v := <-values:
			got = append(got, v)
		case <-time.After(testTimeout):
			t.Fatalf("%d of %d records received: %v", len(got), n, got)
		}
	}
	return got
}

func want(t testing.TB, got []string, wanted ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("got %v, want %v", got, wanted)
	}
}

// A group whose committed offset is beyond the end of the topic, as after a broker lost its data but kept
// the offsets, starts at the oldest record. It does not wait for the committed offset.
func TestP11_OffsetBeyondTheEndDoesNotStallAGroup(t *testing.T) {
	for name, open := range map[string]func(kafka.SubscriberConfig) (message.Subscriber, error){
		"batches":  batches,
		"low rate": kafka.NewLowRateSubscriber,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			makeTopic(t, cfg, events.TopicUsageRaw)
			p := newPublisher(t, cfg)
			defer p.Close()
			put(t, p, 3, "a", "b", "c")
			at := kadm.Offsets{}
			at.AddOffset(cfg.TopicPrefix+"usage.raw", 3, 100_000, -1)
			must.OK(t, client(t).CommitAllOffsets(t.Context(), cfg.TopicPrefix+"g", at))
			sub, err := open(kafka.SubscriberConfig{Config: cfg, Group: "g"})
			must.OK(t, err)
			values, stop := reading(t, sub)
			defer stop()
			want(t, next(t, values, 3), "a", "b", "c")
			put(t, p, 3, "d")
			want(t, next(t, values, 1), "d")
		})
	}
}

// rewindRequest serves one rewind request.
type rewindRequest struct {
	ask  chan *watermill.Rewind
	now  *watermill.Rewind
	done chan []events.ReplayStep
}

func (d *rewindRequest) Due(context.Context) (*watermill.Rewind, error) {
	select {
	case d.now = <-d.ask:
	default:
	}
	return d.now, nil
}

func (d *rewindRequest) Done(_ context.Context, _ *watermill.Rewind, steps []events.ReplayStep, failure string) error {
	if failure != "" {
		return errors.New(failure)
	}
	d.now = nil
	d.done <- steps
	return nil
}

// A group goes back to the start, or to a time before records published since, while it reads. It never
// goes forward.
func TestAGroupIsRewoundWhileItReads(t *testing.T) {
	cfg := config(t)
	admin := makeTopic(t, cfg, events.TopicUsageRaw)
	p := newPublisher(t, cfg)
	defer p.Close()
	put(t, p, 3, "a", "b")
	put(t, p, 4, "x")
	rewinds := &rewindRequest{ask: make(chan *watermill.Rewind, 1), done: make(chan []events.ReplayStep, 1)}
	values, stop := reading(t, &watermill.Rewindable{
		Inner: newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"}), Group: "g", Rewinds: rewinds, Move: admin.Rewind,
		Logger: logger(), Every: 20 * time.Millisecond,
	})
	defer stop()
	next(t, values, 3)

	rewinds.ask <- &watermill.Rewind{From: -1}
	if steps := <-rewinds.done; !slices.Equal(steps, []events.ReplayStep{{Partition: 3, From: 2, To: 0}, {Partition: 4, From: 1, To: 0}}) {
		t.Errorf("went back %v", steps)
	}
	got := next(t, values, 3)
	slices.Sort(got)
	want(t, got, "a", "b", "x")

	rewinds.ask <- &watermill.Rewind{From: time.Now().Add(time.Hour).UnixMilli()}
	if steps := <-rewinds.done; len(steps) != 0 {
		t.Errorf("went forward to a future time: %v", steps)
	}
	put(t, p, 3, "c")
	want(t, next(t, values, 1), "c")

	rewinds.ask <- &watermill.Rewind{From: time.Now().Add(-10 * time.Minute).UnixMilli()}
	if steps := <-rewinds.done; len(steps) != 2 {
		t.Errorf("went back %v", steps)
	}
	if got := next(t, values, 4); len(got) != 4 {
		t.Error(got)
	}
}

// The offsets of a group with members are not moved: the members would continue at their current offsets.
func TestBusyGroupIsNotMoved(t *testing.T) {
	cfg := config(t)
	admin := makeTopic(t, cfg, events.TopicUsageRaw)
	p := newPublisher(t, cfg)
	defer p.Close()
	put(t, p, 3, "a", "b")
	values, stop := reading(t, newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"}))
	next(t, values, 2)
	var err error
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err = admin.Rewind(t.Context(), "g", "usage.raw", -1); err != nil {
			break // before the member's first commit there is no offset to move
		}
	}
	if !errors.Is(err, watermill.ErrGroupBusy) {
		t.Errorf("a group with a member was moved: %v", err)
	}
	stop()
	if steps, err := admin.Rewind(t.Context(), "g", "usage.raw", -1); err != nil || len(steps) != 1 {
		t.Errorf("the group is empty: %v %v", steps, err)
	}
}
