package pgpipe_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/watermill/pipetest"
)

func send(t testing.TB, p *pgpipe.Publisher, value string) {
	t.Helper()
	if err := pipetest.Publish(context.Background(), p, []events.Record{{Topic: events.TopicUsageRaw, Partition: 3, Value: []byte(value)}}); err != nil {
		t.Fatal(err)
	}
}

// read reads n records and acknowledges them.
func read(t testing.TB, messages <-chan *message.Message, n int) (all string) {
	t.Helper()
	for n > 0 {
		msg, records := receive(t, messages)
		for _, r := range records {
			all += string(r.Value)
			n--
		}
		msg.Ack()
	}
	return all
}

// A group goes back to a time, and to the oldest row, while it reads. It never goes forward.
func TestAGroupIsRewoundWhileItReads(t *testing.T) {
	cfg, owner := config(t)
	p := newPublisher(t, cfg)
	defer p.Close()
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g"})
	for _, v := range []string{"a", "b", "c"} {
		send(t, p, v)
	}
	if got := read(t, messages, 3); got != "abc" {
		t.Fatalf("read %s", got)
	}
	back := func(from map[int16]int64) []events.ReplayStep {
		t.Helper()
		for {
			steps, err := pgpipe.Rewind(t.Context(), cfg, "g", "usage.raw", from)
			if err != nil {
				t.Fatal(err)
			}
			if len(steps) > 0 || from[3] > 0 {
				return steps
			}
			time.Sleep(20 * time.Millisecond) // the acknowledgement is being committed
		}
	}
	back(map[int16]int64{3: -1})
	if got := read(t, messages, 3); got != "abc" {
		t.Errorf("from the start: %s", got)
	}
	if _, err := owner.Exec(`UPDATE "pipe_usage_raw" SET created_at = created_at - interval '1 hour' WHERE "offset" < (SELECT max("offset") FROM "pipe_usage_raw")`); err != nil {
		t.Fatal(err)
	}
	if steps := back(map[int16]int64{3: time.Now().Add(time.Hour).UnixMilli()}); len(steps) != 0 {
		t.Errorf("went forward: %v", steps)
	}
	send(t, p, "d")
	if got := read(t, messages, 1); got != "d" {
		t.Errorf("next: %s", got)
	}
	for done := false; !done; time.Sleep(20 * time.Millisecond) {
		steps := back(map[int16]int64{3: time.Now().Add(-10 * time.Minute).UnixMilli(), 4: time.Now().UnixMilli()})
		done = len(steps) > 0
	}
	if got := read(t, messages, 2); got != "cd" {
		t.Errorf("from ten minutes ago: %s", got)
	}
	if steps, err := pgpipe.Rewind(t.Context(), cfg, "nobody", "usage.raw", map[int16]int64{3: -1}); err != nil || len(steps) != 0 {
		t.Errorf("a group that never read: %v %v", steps, err)
	}
}
