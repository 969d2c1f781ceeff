package eventlog

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// ingestModel is a model of the answers to clients of two instances over one database:
// the stored event of each key, and the conflicts.
type ingestModel struct {
	logs      [2]*Log
	pool      *pgxpool.Pool
	tenants   []uuid.UUID
	stored    map[dedupe.Key]storedEvent
	conflicts map[string]bool
}

type storedEvent struct {
	hash     string
	position events.Position // zero before the first answer
}

func newIngestModel(logs [2]*Log, pool *pgxpool.Pool) *ingestModel {
	a, b := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	c := uuid.Must(uuid.NewV7())
	for events.PartitionOf(c) != events.PartitionOf(a) { // neighbours
		c = uuid.Must(uuid.NewV7())
	}
	return &ingestModel{logs, pool, []uuid.UUID{a, b, c}, map[dedupe.Key]storedEvent{}, map[string]bool{}}
}

// batch draws a submission, of one, a few or more than the shared writer takes, of
// ids that were seen and ids that were not. A probe is answered as of its moment, so
// that it has one answer only where it is sent once.
func (m *ingestModel) batch(rt *rapid.T, probes bool) (uuid.UUID, []metering.Submitted) {
	tenant := rapid.SampledFrom(m.tenants).Draw(rt, "tenant")
	sizes := rapid.SampledFrom([][2]int{{1, 1}, {2, smallRows}, {smallRows + 1, 60}}).Draw(rt, "kind")
	batch := make([]metering.Submitted, rapid.IntRange(sizes[0], sizes[1]).Draw(rt, "size"))
	for i := range batch {
		id := fmt.Sprint("e", rapid.IntRange(0, 200).Draw(rt, "id"))
		batch[i] = usageEvent(tenant, id, rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(rt, "amount"))
		if probes && rapid.IntRange(0, 9).Draw(rt, "fate") == 0 {
			batch[i].Refusal = domain.Refuse("c", "", "r")
		}
	}
	return tenant, batch
}

// take returns the expected result of one submission after the others.
func (m *ingestModel) take(batch []metering.Submitted) (want []metering.OutcomeStatus) {
	for i := range batch {
		p := &batch[i].Pending
		key := dedupe.KeyOf(p)
		was, known := m.stored[key]
		switch {
		case known && was.hash == hex.EncodeToString(codec.PayloadHash(p)):
			want = append(want, metering.Duplicate)
		case known:
			want = append(want, metering.Conflict)
			m.conflicts[key.Tenant.String()+p.DedupeKey+hex.EncodeToString(codec.PayloadHash(p))] = true
		case batch[i].Refusal != nil:
			want = append(want, metering.Denied)
		default:
			want = append(want, metering.Appended)
			m.stored[key] = storedEvent{hash: hex.EncodeToString(codec.PayloadHash(p))}
		}
	}
	return want
}

// compareAnswer compares an answer with the expected one. If an earlier answer was lost, or
// another client sent the same, a new event may be recorded already.
func (m *ingestModel) compareAnswer(rt *rapid.T, batch []metering.Submitted, want []metering.OutcomeStatus, outcomes []metering.Outcome,
	sentBefore bool) {
	for i, p := range outcomes {
		key := dedupe.KeyOf(&batch[i].Pending)
		was := m.stored[key]
		if p.Status != want[i] && (!sentBefore || want[i] != metering.Appended || p.Status != metering.Duplicate) {
			rt.Fatalf("%s is answered with %v, not %v", batch[i].DedupeKey, p, want[i])
		}
		if p.Status == metering.Denied {
			continue
		}
		if was.position == (events.Position{}) {
			was.position = p.Position
			m.stored[key] = was
		}
		if p.Position != was.position || p.Position.Partition != events.PartitionOf(key.Tenant) || p.Position.Number < 1 {
			rt.Fatalf("%s is reported at %s, and was at %s", batch[i].DedupeKey, p.Position, was.position)
		}
	}
}

func (m *ingestModel) via(rt *rapid.T) *Log { return m.logs[rapid.IntRange(0, 1).Draw(rt, "instance")] }

func (m *ingestModel) submit(rt *rapid.T) {
	tenant, batch := m.batch(rt, true)
	outcomes, err := m.via(rt).Submit(context.Background(), tenant, batch)
	must.OK(rt, err)
	m.compareAnswer(rt, batch, m.take(batch), outcomes, false)
}

// oneByOne sends each event of a batch in a submission of its own.
func (m *ingestModel) oneByOne(rt *rapid.T) {
	tenant, batch := m.batch(rt, true)
	for i := range min(len(batch), 8) {
		outcomes, err := m.via(rt).Submit(context.Background(), tenant, batch[i:i+1])
		must.OK(rt, err)
		m.compareAnswer(rt, batch[i:i+1], m.take(batch[i:i+1]), outcomes, false)
	}
}

// unknown goes away before it is answered, and sends the same again.
func (m *ingestModel) unknown(rt *rapid.T) {
	tenant, batch := m.batch(rt, false)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	want := m.take(batch)
	outcomes, err := m.via(rt).Submit(gone, tenant, batch)
	if err == nil { // the answer was faster
		m.compareAnswer(rt, batch, want, outcomes, false)
		return
	}
	if !errors.Is(err, commands.ErrUnavailable) {
		rt.Fatal(err)
	}
	again := make([]metering.Submitted, len(batch))
	for i := range batch {
		again[i] = batch[i]
		again[i].EventID = uuid.Must(uuid.NewV7())
	}
	if outcomes, err = m.via(rt).Submit(context.Background(), tenant, again); err != nil {
		rt.Fatal(err)
	}
	m.compareAnswer(rt, again, want, outcomes, true)
}

// together sends the same through both instances at once: for a new event, only one of
// them answers that it is new.
func (m *ingestModel) together(rt *rapid.T) {
	tenant, batch := m.batch(rt, false)
	want := m.take(batch)
	var answers [4][]metering.Outcome
	var errs [4]error
	var wait sync.WaitGroup
	for n := range answers {
		mine := append([]metering.Submitted(nil), batch...)
		for i := range mine {
			mine[i].EventID = uuid.Must(uuid.NewV7())
		}
		wait.Go(func() { answers[n], errs[n] = m.logs[n%2].Submit(context.Background(), tenant, mine) })
	}
	wait.Wait()
	must.OK(rt, errors.Join(errs[:]...))
	for i := range batch {
		appended := 0
		for n := range answers {
			if answers[n][i].Status == metering.Appended {
				appended++
			}
		}
		if want[i] == metering.Appended && appended != 1 {
			rt.Fatalf("%s is reported as new %d times", batch[i].DedupeKey, appended)
		}
	}
	for n := range answers {
		m.compareAnswer(rt, batch, want, answers[n], true)
	}
}

// TestP2_IngestMatchesItsModel: several tenants send through two instances, in any sizes,
// repeatedly, after lost answers, and concurrently: the answers equal the model's, and
// the log holds exactly the answered events.
func TestP2_IngestMatchesItsModel(t *testing.T) {
	one, pool, url := openLog(t)
	two, _ := openLogAt(t, url)
	localtest.FewChecks(t, 12)
	rapid.Check(t, func(rt *rapid.T) {
		m := newIngestModel([2]*Log{one, two}, pool)
		rt.Repeat(map[string]func(*rapid.T){"submit": m.submit, "send one by one": m.oneByOne, "lose the answer": m.unknown,
			"send together": m.together})
		m.compare(rt)
		checkDense(t, pool)
		if n := count(t, pool, `SELECT count(*) FROM log_heads h, LATERAL unnest(h.topic_positions) WITH ORDINALITY AS p (position, topic)
			WHERE p.position <> (SELECT coalesce(max(l.position), 0) FROM event_log l WHERE l.partition = h.partition
			AND l.topic = p.topic)`); n != 0 {
			rt.Fatalf("%d ends of topics are wrong", n)
		}
	})
}

// compare holds the log of the tenants against the model.
func (m *ingestModel) compare(rt *rapid.T) {
	rows, err := m.pool.Query(context.Background(),
		`SELECT tenant_id, dedupe_key, subject, partition, position, encode(l.payload_hash, 'hex') FROM event_log l
			WHERE tenant_id = ANY ($1)`, m.tenants)
	must.OK(rt, err)
	var key dedupe.Key
	var subject int16
	var at events.Position
	var hash *string
	known, conflicts := 0, 0
	if _, err = pgx.ForEachRow(rows, []any{&key.Tenant, &key.Key, &subject, &at.Partition, &at.Number, &hash}, func() error {
		if events.Subject(subject) == events.UsageConflicted {
			conflicts++
			return nil
		}
		known++
		if want := m.stored[key]; hash == nil || want.hash != *hash || want.position != at {
			return fmt.Errorf("%s of %s is at %s, and was told to be at %s", key.Key, key.Tenant, at, want.position)
		}
		return nil
	}); err != nil {
		rt.Fatal(err)
	}
	if known != len(m.stored) || conflicts != len(m.conflicts) {
		rt.Fatalf("the log holds %d events and %d conflicts, not %d and %d", known, conflicts, len(m.stored), len(m.conflicts))
	}
}
