package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func (w *relayFixture) replayStore() *repairs.Replays {
	return &repairs.Replays{Store: store.New(w.pool, w.log, store.Config{})}
}

func (w *relayFixture) replays() *repair.Replays {
	return &repair.Replays{Store: w.replayStore(), Now: time.Now, NewID: newID}
}

var operator = commands.Caller{KeyID: uuid.MustParse("01900000-0000-7000-8000-000000000001")}

// replayer returns a runner of replays.
func (w *relayFixture) replayer(publisher message.Publisher, log relay.ReplayLog) *commands.SagaRunner {
	r := &relay.Replayer{Pool: w.pool, Log: log, Publisher: publisher, Window: 50}
	return &commands.SagaRunner{Queue: &store.Sagas{Store: store.New(w.pool, w.log, store.Config{})},
		Kinds: []commands.SagaKind{w.replays().RangeKind(r.Publish)}, NewID: newID, Logger: quiet(), Every: 20 * time.Millisecond}
}

// runReplay runs runners until a replay has ended.
func (w *relayFixture) runReplay(id uuid.UUID, runners ...*commands.SagaRunner) repair.Replay {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, len(runners))
	for _, r := range runners {
		go func() { ended <- r.Run(ctx) }()
	}
	var now *repair.Replay
	w.until("the replay ends", func() bool {
		var err error
		now, err = w.replayStore().Replay(ctx, id)
		return err == nil && now.State != repair.ReplayRunning
	})
	stop()
	for range runners {
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
	return *now
}

// split separates the relay's records of a topic from the replayed ones, by position and in offset order.
func split(t testing.TB, topic events.Topic, records []*kgo.Record) (first map[events.Position]*kgo.Record,
	again map[events.Position][]*kgo.Record) {
	t.Helper()
	first, again = map[events.Position]*kgo.Record{}, map[events.Position][]*kgo.Record{}
	for _, k := range records {
		r := toRecord(topic, k)
		at, err := codec.PositionOf(&r)
		must.OK(t, err)
		if at.Replay {
			again[at.Position] = append(again[at.Position], k)
		} else {
			first[at.Position] = k
		}
	}
	return first, again
}

// unmarked returns a replayed record without its mark, which must be the last header.
func unmarked(t testing.TB, k *kgo.Record) *kgo.Record {
	t.Helper()
	last := len(k.Headers) - 1
	if k.Headers[last].Key != events.HeaderReplay || string(k.Headers[last].Value) != "1" {
		t.Fatalf("headers %v", k.Headers)
	}
	bare := *k
	bare.Headers = k.Headers[:last]
	return &bare
}

// interruptedPublisher calls stop after the n-th publish call, so that the runner loses its lease between
// publishing and moving its cursor.
type interruptedPublisher struct {
	message.Publisher
	calls, at atomic.Int64
	stop      func()
}

func (p *interruptedPublisher) Publish(topic string, msgs ...*message.Message) error {
	err := p.Publisher.Publish(topic, msgs...)
	if p.calls.Add(1) == p.at.Load() {
		p.stop()
	}
	return err
}

// A range is replayed byte for byte and counted once while events are appended, and another instance goes on with it while the first one is
// frozen between publishing and moving its cursor.
func TestAReplayedRangeHasTheSameBytes(t *testing.T) {
	w := newRelayFixture(t)
	all := tenants(5)
	w.appendUsage(200, all...)
	stop := w.start(w.patientRelay("a"))
	w.awaitDrained()
	before := w.int(`SELECT sum(position)::bigint FROM log_heads`)

	r, err := w.replays().Range(t.Context(), commands.Request{By: operator},
		repair.ReplayRange{Topic: "usage.raw", FromTime: time.Unix(0, 0), Reason: "test"})
	if err != nil || r.Remaining != before {
		t.Fatalf("%+v %v", r, err)
	}
	w.appendUsage(50, all...)
	const cursors = `SELECT sum(cursor)::bigint FROM replay_units`
	var other sync.WaitGroup
	defer other.Wait()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	freezing := &interruptedPublisher{Publisher: w.relay("").Publisher, stop: func() {
		at := w.int(cursors)
		_, _ = w.pool.Exec(context.Background(), `UPDATE sagas SET lease = NULL, next_at = now() WHERE kind = 'replay'`)
		other.Go(func() { _ = w.replayer(w.relay("").Publisher, w.log).Run(ctx) })
		w.until("the other runner moves the cursor", func() bool { return w.int(cursors) > at })
	}}
	freezing.at.Store(3)
	done := w.runReplay(r.ID, w.replayer(freezing, w.log))
	w.awaitDrained()
	stop()
	records := int64(0)
	for _, u := range done.Units {
		records += u.Records
	}
	if done.State != repair.ReplayDone || records != 1000 || done.Remaining != 0 {
		t.Errorf("%s, %d records: %+v", done.State, records, done)
	}
	first, again := split(t, events.TopicUsageRaw, w.published(events.TopicUsageRaw))
	if len(first) != 1250 || len(again) != 1000 {
		t.Fatalf("%d published, %d replayed", len(first), len(again))
	}
	twice := 0
	for at, copies := range again {
		twice += len(copies) - 1
		for _, k := range copies {
			if !sameRecord(first[at], unmarked(t, k)) {
				t.Errorf("%s was replayed with other bytes", at)
			}
		}
	}
	if twice == 0 {
		t.Error("the runner that was frozen left no chunk to be published again")
	}
	if n := w.int(`SELECT count(*) FROM event_log_rows WHERE subject IN ($1, $2)`, int16(events.ReplayRequested),
		int16(events.ReplayDone)); n != 2 {
		t.Errorf("%d replay events", n)
	}
}

// A replay is limited to one tenant, or to a range of positions.
func TestReplayOfATenantAndOfPositions(t *testing.T) {
	w := newRelayFixture(t)
	all := tenants(40) // more tenants than partitions
	w.appendUsage(20, all...)
	stop := w.start(w.patientRelay("a"))
	w.awaitDrained()
	defer stop()
	_, err := w.replays().Range(t.Context(), commands.Request{By: operator}, repair.ReplayRange{Topic: "usage.raw", TenantID: all[0],
		FromTime: time.Unix(0, 0), Reason: "x"})
	if err == nil {
		t.Error("a replay of an unknown tenant was accepted")
	}
	w.tenant(all[0])
	one, err := w.replays().Range(t.Context(), commands.Request{By: operator}, repair.ReplayRange{Topic: "usage.raw", TenantID: all[0],
		FromTime: time.Unix(0, 0), Reason: "x"})
	must.OK(t, err)
	w.runReplay(one.ID, w.replayer(w.relay("").Publisher, w.log))
	_, again := split(t, events.TopicUsageRaw, w.published(events.TopicUsageRaw))
	if len(again) != 20 {
		t.Errorf("%d records of the tenant replayed, want 20", len(again))
	}
	for at, copies := range again {
		if key := string(copies[0].Key); key != all[0].String() {
			t.Errorf("%s is of %s", at, key)
		}
	}
	p := events.PartitionOf(all[1])
	from, to := events.Position{Partition: p, Number: 5}, events.Position{Partition: p, Number: 9}
	two, err := w.replays().Range(t.Context(), commands.Request{By: operator}, repair.ReplayRange{Topic: "usage.raw", From: &from, To: &to,
		Reason: "x"})
	must.OK(t, err)
	was := len(again)
	if done := w.runReplay(two.ID, w.replayer(w.relay("").Publisher, w.log)); done.Units[0].Records != 5 {
		t.Errorf("%+v", done)
	}
	_, again = split(t, events.TopicUsageRaw, w.published(events.TopicUsageRaw))
	if more := len(again) - was; more < 1 || more > 5 { // positions of the tenant replayed before are not counted
		t.Errorf("%d more positions replayed", more)
	}
}

func (w *relayFixture) tenant(id uuid.UUID) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), `INSERT INTO tenants VALUES ($1, 'T', 'small', 'ACTIVE', now())`, id); err != nil {
		w.t.Fatal(err)
	}
}

// The relay is rewound repeatedly while it publishes and events are appended. No event is missing, all
// records are unchanged, and the receipts have the newest offsets.
func TestRelayRewoundUnderLoad(t *testing.T) {
	tier.AtSize(t)
	w := newRelayFixture(t)
	all := tenants(6)
	stops := []func(){w.start(w.patientRelay("a")), w.start(w.patientRelay("b"))}
	for round := range 6 {
		w.appendUsage(40, all...)
		to := repair.RewindToStart
		if round%2 == 1 {
			to = time.Now().Add(-50 * time.Millisecond).UTC().Format(time.RFC3339Nano)
		}
		if _, err := w.replays().Rewind(t.Context(), commands.Request{By: operator},
			repair.Rewind{To: to, Reason: fmt.Sprint("round ", round)}); err != nil {
			t.Fatal(err)
		}
	}
	w.awaitDrained()
	last := w.int(`SELECT count(*) FROM event_log_rows`)
	if _, err := w.replays().Rewind(t.Context(), commands.Request{By: operator},
		repair.Rewind{To: repair.RewindToStart, Reason: "all of it"}); err != nil {
		t.Fatal(err)
	}
	w.awaitDrained()
	for _, stop := range stops {
		stop()
	}
	if offsets, _ := w.checkOffsetsAgain(); len(offsets) != 6*40*6 || last < int64(len(offsets)) {
		t.Errorf("%d events are on the topic", len(offsets))
	}
}

// A rewind after the publications have expired publishes all events again, and receipts have the new offsets.
func TestRelayRewoundBehindExpiredPublications(t *testing.T) {
	tier.AtSize(t)
	w := newRelayFixture(t)
	w.appendUsage(40, tenants(3)...)
	stop := w.start(w.patientRelay("a"))
	defer stop()
	w.awaitDrained()
	must.Exec(t, w.pool, `UPDATE outbox_publications SET published_at = now() - interval '3 hours'`)
	expiry := &relay.Expiry{
		Pool: w.pool, Deleted: func(int64) {},
		Retention: func(context.Context) (map[events.Topic]time.Duration, error) {
			return map[events.Topic]time.Duration{events.TopicUsageRaw: time.Hour}, nil
		},
	}
	must.OK(t, expiry.Look(t.Context()))
	const count = `SELECT count(*) FROM outbox_publications WHERE topic = 1`
	if n := w.int(count); n != 0 {
		t.Fatalf("%d publications are left", n)
	}
	if _, err := w.replays().Rewind(t.Context(), commands.Request{By: operator},
		repair.Rewind{To: repair.RewindToStart, Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.awaitDrained()
	must.OK(t, expiry.Look(t.Context()))
	if w.int(count) == 0 {
		t.Error("no publication is left after the rewind")
	}
	if _, repeated := w.checkOffsetsAgain(); repeated != 3*40 {
		t.Errorf("%d records were published again", repeated)
	}
}

// checkOffsetsAgain compares the offsets of receipts with the last offset of each record on usage.raw, and returns these offsets and
// the number of records that were published again.
func (w *relayFixture) checkOffsetsAgain() (offsets map[events.Position]int64, repeated int) {
	w.t.Helper()
	offsets = map[events.Position]int64{}
	for _, k := range w.published(events.TopicUsageRaw) {
		r := toRecord(events.TopicUsageRaw, k)
		at, err := codec.PositionOf(&r)
		must.OK(w.t, err)
		if _, seen := offsets[at.Position]; seen {
			repeated++
		}
		offsets[at.Position] = max(offsets[at.Position], k.Offset)
	}
	for p, want := range offsets {
		if got := w.int(`SELECT coalesce((SELECT broker_offset FROM broker_place($1, 1::smallint, $2)), -1)`, p.Partition,
			p.Number); got != want {
			w.t.Errorf("%s lies at %d, the receipt says %d", p, want, got)
		}
	}
	return offsets, repeated
}

// A rewind that would skip unpublished events is refused.
func TestRelayIsNotMovedForward(t *testing.T) {
	w := newRelayFixture(t)
	w.appendUsage(10, tenants(1)...)
	p := events.Position{Partition: w.logged()[0].Position.Partition, Number: 5}
	_, err := w.replays().Rewind(t.Context(), commands.Request{By: operator}, repair.Rewind{Positions: []events.Position{p}, Reason: "x"})
	if err == nil || w.int(`SELECT max(position) FROM relay_cursors`) != 0 {
		t.Errorf("the relay went on to %s: %v", p, err)
	}
}

type permanentlyRefusingPublisher struct{}

func (permanentlyRefusingPublisher) Publish(string, ...*message.Message) error {
	return watermill.NewPublishError([]watermill.FailedRecord{{Index: 0, Permanent: true, Err: errors.New("refused")}}, 1)
}

func (permanentlyRefusingPublisher) Close() error { return nil }

func toRecord(topic events.Topic, k *kgo.Record) events.Record {
	r := events.Record{Topic: topic, Partition: int16(k.Partition), Offset: k.Offset, Key: k.Key, Value: k.Value}
	for _, h := range k.Headers {
		r.Headers = append(r.Headers, events.Header(h))
	}
	return r
}

func sameRecord(a, b *kgo.Record) bool {
	if !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !bytes.Equal(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}
