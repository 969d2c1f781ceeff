package consume_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/logtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// appendVerdicts appends n verdicts of 1 on a feature, as the validator would.
func appendVerdicts(w *Database, tenant uuid.UUID, feature string, n int) []events.Position {
	w.Helper()
	var pending []events.Pending
	for range n {
		pending = append(pending, Verdict(tenant, feature, 1))
	}
	return w.Append(pending...)
}

// appliedTo returns the folded amount of a tenant's feature.
func appliedTo(w *Database, tenant uuid.UUID, feature string) int64 {
	w.Helper()
	return w.Figure(tenant, feature, "2026-05").Applied
}

func TestGapIsHealedFromTheLog(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 10)
	records := w.Topic(events.TopicUsageValidated, 6, 0)
	r, seen := w.Aggregator(nil)
	r.Consumer.MaxPerPartition = 3
	w.Process(r, []events.Record{records[0], records[9]})
	if got := appliedTo(w, tenant, "calls"); got != 10 || seen.FromLog != 8 || seen.Transactions != 4 {
		t.Fatalf("applied %d, told %+v", got, seen)
	}
}

// another is the record of a changed event, as a release with the same vocabulary renders it.
func another(r events.Record, change func(*events.Envelope)) events.Record {
	e, err := codec.FromRecord(&r)
	if err != nil {
		panic(err)
	}
	e.Vocabulary = events.CurrentVocabulary()
	change(&e)
	if r, err = codec.ToRecord(&e); err != nil {
		panic(err)
	}
	return r
}

func TestRecordsThatAreNotOfThisLog(t *testing.T) {
	set := func(r events.Record, header, value string) events.Record {
		r.Headers = append([]events.Header(nil), r.Headers...)
		for i := range r.Headers {
			if r.Headers[i].Key == header {
				r.Headers[i].Value = []byte(value)
			}
		}
		return r
	}
	cases := []struct {
		name  string
		spoil func(events.Record) events.Record
		want  int64 // applied of the first 2 verdicts; 3 if the last one is spoilt
		told  func(*Tally) int
	}{
		{"no headers", func(r events.Record) events.Record { r.Headers = nil; return r }, 0, func(s *Tally) int { return s.Foreign }},
		{
			"another topic's",
			func(r events.Record) events.Record { r.Topic = events.TopicUsageRaw; return r },
			0,
			func(s *Tally) int { return s.Foreign },
		},
		{"beyond the head", func(r events.Record) events.Record {
			return another(r, func(e *events.Envelope) { e.Position.Number, e.Previous = 99, 2 })
		}, 0, func(s *Tally) int { return s.Foreign }},
		{"a position that another topic has", func(r events.Record) events.Record {
			return set(set(r, events.HeaderPosition, fmt.Sprint(r.Partition, "-3")), events.HeaderPrevious, "0")
		}, 2, func(s *Tally) int { return s.Foreign }},
		{
			"another epoch",
			func(r events.Record) events.Record { return set(r, events.HeaderEpoch, "7") },
			0,
			func(s *Tally) int { return s.Ghosts },
		},
		{
			"another log's",
			func(r events.Record) events.Record { return set(r, events.HeaderLog, NewID().String()) },
			0,
			func(s *Tally) int { return s.OtherLog },
		},
		{"another event's, of a release that names no log", func(r events.Record) events.Record {
			return another(r, func(e *events.Envelope) { e.EventID, e.LogID = NewID(), uuid.Nil })
		}, 0, func(s *Tally) int { return s.Ghosts }},
		{"of a release that names no log", func(r events.Record) events.Record {
			return another(r, func(e *events.Envelope) { e.LogID = uuid.Nil })
		}, 2, func(s *Tally) int { return s.FromLog - 1 }},
		{"for outside readers", func(r events.Record) events.Record {
			r.Headers = append(r.Headers, events.Header{Key: events.HeaderReplay, Value: []byte("1")})
			return r
		}, 0, func(s *Tally) int { return s.Passed }},
		{
			"a broken value",
			func(r events.Record) events.Record { r.Value = r.Value[:10]; return r },
			2,
			func(s *Tally) int { return s.FromLog - 1 },
		},
		{"an unknown version", func(r events.Record) events.Record {
			r.Value = []byte(`{"eventType":"meterplex.usage.event.validated","eventVersion":9}`)
			return r
		}, 2, func(s *Tally) int { return s.FromLog - 1 }},
		{
			"a wrong place before it",
			func(r events.Record) events.Record { return set(r, events.HeaderPrevious, "1") },
			3,
			func(s *Tally) int { return s.FromLog - 2 },
		},
	}
	w := NewDatabase(t)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := int16(i)
			tenant := TenantIn(p)
			appendVerdicts(w, tenant, "calls", 2)
			w.Append(Usage(tenant, "between", "calls", 1, May))
			appendVerdicts(w, tenant, "later", 1)
			r, seen := w.Aggregator(nil)
			records := w.Topic(events.TopicUsageValidated, p, 0)
			which := 1
			if c.want == 3 {
				which = 2
			}
			w.Process(r, []events.Record{c.spoil(records[which])})
			if got := appliedTo(w, tenant, "calls") + appliedTo(w, tenant, "later"); got != c.want || c.told(seen) != 1 {
				t.Errorf("applied %d, want %d; told %+v", got, c.want, seen)
			}
			w.Process(r, w.Topic(events.TopicUsageValidated, p, 0))
			if appliedTo(w, tenant, "calls") != 2 || appliedTo(w, tenant, "later") != 1 {
				t.Errorf("afterwards %+v", w.Aggregates())
			}
		})
	}
}

// After a restore the pipe holds records of a future that no longer exists.
func TestRecordsOfAnEndedHistoryAreDropped(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 2)
	r, seen := w.Aggregator(nil)
	w.Process(r, w.Topic(events.TopicUsageValidated, 6, 0)) // epochs are remembered from here on

	future := w.Read(events.TopicUsageValidated, 6, 0)[1]
	future.EventID, future.Previous, future.Position.Number = NewID(), 2, 3
	ghost, err := codec.ToRecord(&future)
	w.Must(err)
	_, err = w.Pool.Exec(t.Context(), `INSERT INTO log_epochs SELECT partition, epoch + 1, 3, 1, 1 FROM log_epochs WHERE partition = 6`)
	w.Must(err)
	_, err = w.Pool.Exec(t.Context(), `UPDATE log_heads SET epoch = epoch + 1 WHERE partition = 6`)
	w.Must(err)
	appendVerdicts(w, tenant, "new", 2)
	w.Process(r, []events.Record{ghost})
	if seen.Ghosts != 1 || appliedTo(w, tenant, "calls") != 2 {
		t.Fatalf("told %+v, aggregates %+v", seen, w.Aggregates())
	}
	w.Process(r, w.Topic(events.TopicUsageValidated, 6, 0))
	if appliedTo(w, tenant, "calls") != 2 || appliedTo(w, tenant, "new") != 2 {
		t.Fatalf("aggregates %+v", w.Aggregates())
	}
	var epoch, head int
	w.Must(
		w.Pool.QueryRow(t.Context(), `SELECT c.epoch, h.epoch FROM consumer_checkpoints c JOIN log_heads h USING (partition) WHERE partition = 6 AND consumer = $1`,
			events.GroupAggregator).
			Scan(&epoch, &head),
	)
	if epoch != head {
		t.Errorf("the checkpoint is of epoch %d, want %d", epoch, head)
	}
}

// Events that the pipe could not carry are in the log: a consumer of the log folds
// them, whether they were withheld before or after it read them.
func TestLogReadersFoldWithheldEvents(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 3)
	_, err := w.Pool.Exec(t.Context(), `INSERT INTO withheld_records VALUES (6, 2, 2, $1, $2, 'too large')`, tenant, NewID())
	w.Must(err)
	r, seen := w.Runner(entitlements.Consumer(models.DefaultFolds().Entitlements, NewID))
	followUntil(w, r, func() bool { return w.Checkpoint(events.GroupEntitlements, 6) == 3 })
	var used int
	w.Must(
		w.Pool.QueryRow(t.Context(), `SELECT used::int FROM entitlement_usage WHERE tenant_id = $1 AND feature = 'calls'`, tenant).
			Scan(&used),
	)
	if used != 3 || seen.Passed != 0 {
		t.Fatalf("used %d, want 3; told %+v", used, seen)
	}
}

// No event is read again before the relay passed it, nor while the consumer moves.
func TestLostTailIsHealed(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 5)
	r, seen := w.Aggregator(nil)
	r.TailAfter = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return logtest.HealTails(ctx, r, time.Millisecond) })
	time.Sleep(100 * time.Millisecond)
	if got := w.Checkpoint(events.GroupAggregator, 6); got != 0 {
		t.Errorf("read up to %d, which was not published", got)
	}
	_, err := w.Pool.Exec(t.Context(), `UPDATE relay_cursors SET position = 5 WHERE partition = 6`)
	w.Must(err)
	w.Until(func() bool { return w.Checkpoint(events.GroupAggregator, 6) == 5 })
	cancel()
	w.Must(g.Wait())
	if appliedTo(w, tenant, "calls") != 5 || seen.FromLog != 5 {
		t.Fatalf("told %+v", seen)
	}
}

// noteHandler counts its events in a table, as a read model over the log does.
type noteHandler struct{}

func (noteHandler) Apply(
	ctx context.Context,
	tx pgx.Tx,
	g projections.Generation,
	batch []events.Envelope,
) (result projections.Result, err error) {
	for i := range batch {
		failure := projections.Try(batch[i], func() error {
			if string(batch[i].Payload) == `"poison"` {
				return &domain.Error{Code: "sour", Message: "it is"}
			}
			return nil
		})
		if failure != nil {
			result.Failed = append(result.Failed, *failure)
			continue
		}
		if _, err := tx.Exec(ctx, `INSERT INTO features VALUES ($1, '', 'METERED', '')`, batch[i].Position.String()); err != nil {
			return result, err
		}
	}
	return result, nil
}

func notedEvents(w *Database) (n int) {
	w.Helper()
	w.Must(w.Pool.QueryRow(context.Background(), `SELECT count(*) FROM features`).Scan(&n))
	return n
}

func TestFollowReadsTheLogItself(t *testing.T) {
	w := NewDatabase(t)
	r, _ := w.Runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, MaxPerPartition: 3})
	wake := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return logtest.Follow(ctx, r, time.Hour, wake) }) // only a wake-up can be in time
	a, b := TenantIn(1), TenantIn(2)
	appendVerdicts(w, a, "calls", 10)
	w.Append(Usage(b, "x", "calls", 1, May))
	wake <- struct{}{}
	w.Until(func() bool { return notedEvents(w) == 11 })
	cancel()
	w.Must(g.Wait())

	appendVerdicts(w, b, "calls", 4)
	followUntil(w, r, func() bool { return notedEvents(w) == 15 }) // and without any, polling finds it
}

// A head that names a missing event proves a loss: a checkpoint must not pass the
// event, and the other partitions continue.
func TestFollowStopsBeforeALostTail(t *testing.T) {
	w := NewDatabase(t)
	subjects := []events.Subject{events.UsageValidated}
	r, _ := w.Runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, Subjects: subjects, MaxPerPartition: 100})
	a, b := TenantIn(1), TenantIn(2)
	appendVerdicts(w, a, "calls", 3)
	_, err := w.Pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 1 WHERE partition = 1`)
	w.Must(err)
	followUntil(w, r, func() bool { return notedEvents(w) == 3 })
	appendVerdicts(w, b, "calls", 4)
	followUntil(w, r, func() bool { return notedEvents(w) == 7 })
	if at := w.Checkpoint(events.GroupEntitlements, 1); at != 3 {
		t.Errorf("the checkpoint stands at %d, the last event is the third", at)
	}
}

// A read model's failure is on record and never retried: a retry would count in the aggregates.
func TestReadModelsFailureIsDiscarded(t *testing.T) {
	w := NewDatabase(t)
	w.Payloads.Allow() // poison
	r, _ := w.Runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}})
	tenant := TenantIn(1)
	poison := Verdict(tenant, "calls", 1)
	poison.Payload = json.RawMessage(`"poison"`)
	at := w.Append(Verdict(tenant, "calls", 1), poison, Verdict(tenant, "calls", 1))
	followUntil(w, r, func() bool { return notedEvents(w) == 4 }) // two verdicts, and the events about the third
	letters := w.Read(events.TopicUsageDeadLetter, 1, 0)
	if len(letters) != 2 {
		t.Fatalf("%d dead letter events, want 2", len(letters))
	}
	failed, closed := Decode[events.Failed](w, letters[0]), Decode[events.Closed](w, letters[1])
	if failed.Code != "sour" || failed.SourcePosition != at[1].Number || closed.Status != events.StatusDiscarded ||
		closed.DeadLetterID != letters[0].EventID ||
		letters[1].DedupeKey != events.KeyClosed(letters[0].EventID) {
		t.Errorf("failed %+v, closed %+v", failed, closed)
	}
	if got := w.Counts(1); got.Parked != 0 {
		t.Errorf("parked %d", got.Parked)
	}
}

// A head that somebody holds is an outage that passes, not a fault of the data.
func TestLockTimeoutsAreRetried(t *testing.T) {
	w := NewDatabase(t)
	w.Append(Usage(TenantIn(4), "a", "calls", 1, May))
	tx, err := w.Pool.Begin(t.Context())
	w.Must(err)
	defer tx.Rollback(context.Background()) // so that the pool can be closed, whatever fails
	_, err = tx.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = 4 FOR UPDATE`)
	w.Must(err)
	r, _ := w.Validator()
	if err := r.Process(t.Context(), w.Topic(events.TopicUsageRaw, 4, 0)); err == nil {
		t.Fatal("taken without the head")
	}
	w.Must(tx.Rollback(t.Context()))
	w.Process(r, w.Topic(events.TopicUsageRaw, 4, 0))
	if got := w.Counts(4); got.Rejected != 1 || got.Parked != 0 {
		t.Fatalf("counts %+v", got)
	}
}

// Whatever moved the checkpoint meanwhile, the fold does not stay.
func TestCheckpointMovesByCompareAndSet(t *testing.T) {
	w := NewDatabase(t)
	appendVerdicts(w, TenantIn(4), "calls", 2)
	aggregator := &usage.Handler{Folds: models.DefaultFolds().Usage, NewID: NewID}
	r, _ := w.Aggregator(
		applier(func(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
			w.Must(Second(tx.Exec(ctx, `UPDATE consumer_checkpoints SET position = position + 1`)))
			return aggregator.Apply(ctx, tx, g, batch)
		}),
	)
	if err := r.Process(t.Context(), w.Topic(events.TopicUsageValidated, 4, 0)); err == nil || len(w.Aggregates()) != 0 {
		t.Fatalf("%v, aggregates %+v", err, w.Aggregates())
	}
}

// followUntil lets a consumer follow the log until a condition holds.
func followUntil(w *Database, r *consume.Runner, done func() bool) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return logtest.Follow(ctx, r, time.Millisecond, nil) })
	w.Until(done)
	cancel()
	w.Must(g.Wait())
}
