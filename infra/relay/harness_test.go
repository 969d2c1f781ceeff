package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

// relayFixture has a log in its own database, and its own topics.
type relayFixture struct {
	t      testing.TB
	url    string
	pool   *pgxpool.Pool
	log    *eventlog.Log
	recent *recent.Cache // of the log
	cfg    kafka.Config
	notify *relay.Notifier
	serial int
	relays int // made so far; the first one has the memory
}

// noDuplicates fails if records were published twice. Patient relays must publish once, even on a busy
// machine.
func (w *relayFixture) noDuplicates(repeats int) {
	w.t.Helper()
	if repeats != 0 {
		w.t.Errorf("%d records were sent twice", repeats)
	}
}

func newRelayFixture(t testing.TB, before ...func(kafka.Config)) *relayFixture {
	url := localtest.Migrated(t, postgres.Migrate)
	pool := openPool(t, url)
	w := &relayFixture{t: t, url: url, pool: pool, recent: recent.New(), notify: relay.NewNotifier(pool, slog.Default())}
	w.cfg = kafka.Config{Brokers: kafkatest.Broker(t).Brokers(), TopicPrefix: kafkatest.TopicPrefix(t), Logger: quiet()}
	w.log = openLog(t, pool, w.notify.Appended)
	for _, f := range before {
		f(w.cfg)
	}
	admin, err := kafka.NewAdmin(w.cfg)
	must.OK(t, err)
	defer admin.Close()
	must.OK(t, admin.Ensure(t.Context()))
	return w
}

func openPool(t testing.TB, url string) *pgxpool.Pool {
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func openLog(t testing.TB, pool *pgxpool.Pool, onAppend func([]int16)) *eventlog.Log {
	l, err := eventlog.New(t.Context(), pool, eventlog.Config{
		Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"}, OnAppend: onAppend,
		Written: localtest.CheckPayloads(t).Written,
	})
	must.OK(t, err)
	t.Cleanup(l.Close)
	return l
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// usage returns a recorded event with a payload of about the given size.
func (w *relayFixture) usage(tenant uuid.UUID, size int) events.Pending {
	w.serial++
	body, _ := json.Marshal(events.Usage{EventID: fmt.Sprintf("e%d", w.serial), Feature: "f", Amount: 1, Type: "usage",
		Source: strings.Repeat("x", size)})
	return events.Pending{
		EventID: newID(), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage(fmt.Sprintf("e%d", w.serial)),
		Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: "eu-relay-1", OccurredAt: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
		Payload: body,
		Counts:  events.Counts{Accepted: 1},
	}
}

func (w *relayFixture) append(pending ...events.Pending) []events.Position {
	w.t.Helper()
	var appended []events.Envelope
	err := pgx.BeginFunc(context.Background(), w.pool, func(tx pgx.Tx) (err error) {
		appended, err = w.log.AppendEventsTx(context.Background(), tx, pending)
		return err
	})
	if err != nil || len(appended) != len(pending) {
		w.t.Fatalf("%d of %d events were appended: %v", len(appended), len(pending), err)
	}
	for i := range appended {
		w.recent.Put([]*events.Envelope{&appended[i]})
	}
	w.notify.Appended(nil)
	positions := make([]events.Position, len(appended))
	for i := range appended {
		positions[i] = appended[i].Position
	}
	return positions
}

// appendUsage appends n events per tenant, alternating between tenants.
func (w *relayFixture) appendUsage(n int, tenants ...uuid.UUID) {
	w.t.Helper()
	var pending []events.Pending
	for range n {
		for _, tenant := range tenants {
			pending = append(pending, w.usage(tenant, 200))
		}
	}
	for len(pending) > 0 {
		k := min(len(pending), 5000)
		w.append(pending[:k]...)
		pending = pending[k:]
	}
}

func tenants(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = newID()
	}
	return ids
}

// tenantsOfAllPartitions returns one tenant per partition.
func tenantsOfAllPartitions() []uuid.UUID {
	ids := make([]uuid.UUID, events.Partitions)
	for left := len(ids); left > 0; {
		if id := newID(); ids[events.PartitionOf(id)] == uuid.Nil {
			ids[events.PartitionOf(id)] = id
			left--
		}
	}
	return ids
}

// relay returns a relay on the fixture's log and topics.
func (w *relayFixture) relay(instance string) *relay.Relay { return w.relayWith(instance, w.cfg) }

func (w *relayFixture) relayWith(instance string, cfg kafka.Config) *relay.Relay {
	publisher, err := kafka.NewPublisher(cfg)
	must.OK(w.t, err)
	w.t.Cleanup(func() { publisher.Close() })
	r := &relay.Relay{
		Pool: w.pool, Log: w.log, Appender: w.log, Publisher: publisher, Instance: instance,
		NewID: newID, Now: time.Now, Wake: w.notify.Wake(), Logger: quiet(), LeaseTTL: time.Second,
	}
	if w.relays++; w.relays == 1 {
		r.Recent = w.recent.Relay()
	}
	return r
}

// patientRelay has a long lease and waits long for the broker, so that on a busy machine no lease expires
// and no record is given up that the broker stores later.
func (w *relayFixture) patientRelay(instance string) *relay.Relay {
	cfg := w.cfg
	cfg.DeliveryTimeout = time.Minute
	r := w.relayWith(instance, cfg)
	r.LeaseTTL, r.CloseGrace = 10*time.Second, time.Minute
	return r
}

// start runs a relay. The returned function stops it and waits.
func (w *relayFixture) start(r *relay.Relay) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("the relay ended with %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// until waits for a condition that must become true. Its deadline only stops a broken build from hanging.
func (w *relayFixture) until(condition string, ok func() bool) {
	w.t.Helper()
	w.within(2*time.Minute, condition, ok)
}

func (w *relayFixture) within(limit time.Duration, condition string, ok func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s; cursors: %s", condition, w.cursors())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *relayFixture) awaitDrained() {
	w.t.Helper()
	w.until("the log is published", func() bool {
		return w.int(`SELECT count(*) FROM log_heads h JOIN relay_cursors c USING (partition) WHERE h.position <> c.position`) == 0
	})
}

func (w *relayFixture) cursors() string {
	var s string
	_ = w.pool.QueryRow(context.Background(),
		`SELECT string_agg(format('%s:%s/%s %s f%s %s', partition, c.position, h.position, owner, fence, last_error), ', '
			ORDER BY partition)
 FROM relay_cursors c JOIN log_heads h USING (partition) WHERE h.position <> c.position`).Scan(&s)
	return s
}

func (w *relayFixture) int(sql string, args ...any) (n int64) {
	w.t.Helper()
	must.OK(w.t, w.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// logged reads the whole log.
func (w *relayFixture) logged() []events.Envelope {
	w.t.Helper()
	var all []events.Envelope
	for p := range int16(events.Partitions) {
		for after := int64(0); ; {
			list, err := w.log.Read(context.Background(), p, after, 1<<60, 10000)
			must.OK(w.t, err)
			if len(list) == 0 {
				break
			}
			all = append(all, list...)
			after = list[len(list)-1].Position.Number
		}
	}
	return all
}

// published reads a topic from the beginning to its current end.
func (w *relayFixture) published(topic events.Topic) []*kgo.Record {
	w.t.Helper()
	name := w.cfg.TopicPrefix + topic.Name()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.cfg.Brokers...), kgo.ConsumeTopics(name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must.OK(w.t, err)
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(context.Background(), name)
	must.OK(w.t, err)
	want := int64(0)
	ends.Each(func(o kadm.ListedOffset) { want += o.Offset })
	var records []*kgo.Record
	for int64(len(records)) < want {
		fetches := client.PollFetches(context.Background())
		must.OK(w.t, fetches.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

// checkTopic compares a topic with the log: the same set of events, first occurrences in log order per
// partition, byte-identical repeats, and offsets as recorded in outbox_publications. It returns the
// number of repeats.
func (w *relayFixture) checkTopic(topic events.Topic) (repeated int) {
	w.t.Helper()
	var last [events.Partitions]int64
	first := map[events.Position]*kgo.Record{}
	offsets := map[events.Position][]int64{}
	for _, k := range w.published(topic) {
		r := toRecord(topic, k)
		at, err := codec.PositionOf(&r)
		if err != nil || int32(at.Position.Partition) != k.Partition {
			w.t.Fatalf("offset %d of partition %d: %+v %v", k.Offset, k.Partition, at, err)
		}
		offsets[at.Position] = append(offsets[at.Position], k.Offset)
		if seen := first[at.Position]; seen != nil {
			repeated++
			if !sameRecord(seen, k) {
				w.t.Errorf("%s was sent again with other bytes", at.Position)
			}
			continue
		}
		first[at.Position] = k
		if at.Previous != last[k.Partition] {
			w.t.Errorf("%s follows %d on the topic, but its header names %d", at.Position, last[k.Partition], at.Previous)
		}
		last[k.Partition] = at.Position.Number
	}
	for _, e := range w.logged() {
		if e.Subject.Topic() != topic {
			continue
		}
		want, _ := codec.ToRecord(&e)
		k := first[e.Position]
		if k == nil || !bytes.Equal(k.Value, want.Value) || !bytes.Equal(k.Key, want.Key) {
			w.t.Errorf("%s is not on the topic as the log has it", e.Position)
		}
		delete(first, e.Position)
	}
	if len(first) > 0 {
		w.t.Errorf("%d records on the topic are not in the log", len(first))
	}
	w.checkPublications(topic, offsets)
	return repeated
}

func (w *relayFixture) checkPublications(topic events.Topic, offsets map[events.Position][]int64) {
	w.t.Helper()
	rows, err := w.pool.Query(context.Background(), `SELECT l.partition, l.position,
 o.base_offset + rank() OVER (PARTITION BY l.partition, o.from_position ORDER BY l.position) - 1
 FROM event_log_rows l LEFT JOIN outbox_publications o ON o.partition = l.partition AND o.topic = l.topic
 AND l.position BETWEEN o.from_position AND o.to_position
 WHERE l.topic = $1`, int16(topic))
	must.OK(w.t, err)
	defer rows.Close()
	for rows.Next() {
		var p events.Position
		var offset *int64
		must.OK(w.t, rows.Scan(&p.Partition, &p.Number, &offset))
		found := false
		for _, o := range offsets[p] {
			found = found || offset != nil && o == *offset
		}
		if !found {
			w.t.Errorf("%s is at offsets %v, not at the one in outbox_publications", p, offsets[p])
		}
	}
}
