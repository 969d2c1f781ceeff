package projections_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/watermill/logtest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// verdicts appends n verdicts of 1 on a feature, as the validator would.
func (w *logFixture) verdicts(tenant uuid.UUID, feature string, n int) []events.Position {
	w.Helper()
	var pending []events.Pending
	for range n {
		pending = append(pending, verdict(tenant, feature, 1))
	}
	return w.append(pending...)
}

func verdict(tenant uuid.UUID, feature string, amount int64) events.Pending {
	body, err := json.Marshal(events.Validated{RawPosition: 1, EventID: "e", Feature: feature, Amount: amount, Count: 1, Timestamp: may, FeatureType: "METERED", PeriodKey: "2026-05"})
	if err != nil {
		panic(err)
	}
	return events.Pending{EventID: newID(), Subject: events.UsageValidated, TenantID: tenant, DedupeKey: events.KeyEvent(newID()),
		Actor: events.Actor{Type: "service", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: may, Payload: body, Counts: events.Counts{Validated: 1}}
}

// applied returns the folded amount of a tenant's feature.
func (w *logFixture) applied(tenant uuid.UUID, feature string) int64 {
	w.Helper()
	return w.aggregates()[aggregateKey{tenant, feature, "2026-05"}].Applied
}

func TestGapIsHealedFromTheLog(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	w.verdicts(tenant, "calls", 10)
	records := w.topic(events.TopicUsageValidated, 6, 0)
	r, seen := w.aggregator(nil)
	r.Consumer.MaxPerPartition = 3
	w.process(r, []events.Record{records[0], records[9]})
	if got := w.applied(tenant, "calls"); got != 10 || seen.fromLog != 8 || seen.transactions != 4 {
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
		told  func(*tally) int
	}{
		{"no headers", func(r events.Record) events.Record { r.Headers = nil; return r }, 0, func(s *tally) int { return s.foreign }},
		{"another topic's", func(r events.Record) events.Record { r.Topic = events.TopicUsageRaw; return r }, 0, func(s *tally) int { return s.foreign }},
		{"beyond the head", func(r events.Record) events.Record {
			return another(r, func(e *events.Envelope) { e.Position.Number, e.Previous = 99, 2 })
		}, 0, func(s *tally) int { return s.foreign }},
		{"a position that another topic has", func(r events.Record) events.Record {
			return set(set(r, events.HeaderPosition, "6-3"), events.HeaderPrevious, "0")
		}, 2, func(s *tally) int { return s.foreign }},
		{"another epoch", func(r events.Record) events.Record { return set(r, events.HeaderEpoch, "7") }, 0, func(s *tally) int { return s.ghosts }},
		{"another log's", func(r events.Record) events.Record { return set(r, events.HeaderLog, newID().String()) }, 0, func(s *tally) int { return s.otherLog }},
		{"another event's, of a release that names no log", func(r events.Record) events.Record {
			return another(r, func(e *events.Envelope) { e.EventID, e.LogID = newID(), uuid.Nil })
		}, 0, func(s *tally) int { return s.ghosts }},
		{"of a release that names no log", func(r events.Record) events.Record {
			return another(r, func(e *events.Envelope) { e.LogID = uuid.Nil })
		}, 2, func(s *tally) int { return s.fromLog - 1 }},
		{"for outside readers", func(r events.Record) events.Record {
			r.Headers = append(r.Headers, events.Header{Key: events.HeaderReplay, Value: []byte("1")})
			return r
		}, 0, func(s *tally) int { return s.passed }},
		{"a broken value", func(r events.Record) events.Record { r.Value = r.Value[:10]; return r }, 2, func(s *tally) int { return s.fromLog - 1 }},
		{"an unknown version", func(r events.Record) events.Record {
			r.Value = []byte(`{"eventType":"meterplex.usage.event.validated","eventVersion":9}`)
			return r
		}, 2, func(s *tally) int { return s.fromLog - 1 }},
		{"a wrong place before it", func(r events.Record) events.Record { return set(r, events.HeaderPrevious, "1") }, 3, func(s *tally) int { return s.fromLog - 2 }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newLogFixture(t)
			tenant := tenantIn(6)
			w.verdicts(tenant, "calls", 2)
			w.append(usageEvent(tenant, "between", "calls", 1, may))
			w.verdicts(tenant, "later", 1)
			r, seen := w.aggregator(nil)
			records := w.topic(events.TopicUsageValidated, 6, 0)
			which := 1
			if c.want == 3 {
				which = 2
			}
			w.process(r, []events.Record{c.spoil(records[which])})
			if got := w.applied(tenant, "calls") + w.applied(tenant, "later"); got != c.want || c.told(seen) != 1 {
				t.Errorf("applied %d, want %d; told %+v", got, c.want, seen)
			}
			w.process(r, w.topic(events.TopicUsageValidated, 6, 0))
			if w.applied(tenant, "calls") != 2 || w.applied(tenant, "later") != 1 {
				t.Errorf("afterwards %+v", w.aggregates())
			}
		})
	}
}

// After a restore the pipe holds records of a future that no longer exists.
func TestRecordsOfAnEndedHistoryAreDropped(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	w.verdicts(tenant, "calls", 2)
	r, seen := w.aggregator(nil)
	w.process(r, w.topic(events.TopicUsageValidated, 6, 0)) // epochs are remembered from here on

	future := w.read(events.TopicUsageValidated, 6, 0)[1]
	future.EventID, future.Previous, future.Position.Number = newID(), 2, 3
	ghost, err := codec.ToRecord(&future)
	w.must(err)
	_, err = w.pool.Exec(t.Context(), `INSERT INTO log_epochs SELECT partition, epoch + 1, 3, 1, 1 FROM log_epochs WHERE partition = 6`)
	w.must(err)
	_, err = w.pool.Exec(t.Context(), `UPDATE log_heads SET epoch = epoch + 1 WHERE partition = 6`)
	w.must(err)
	w.verdicts(tenant, "new", 2)
	w.process(r, []events.Record{ghost})
	if seen.ghosts != 1 || w.applied(tenant, "calls") != 2 {
		t.Fatalf("told %+v, aggregates %+v", seen, w.aggregates())
	}
	w.process(r, w.topic(events.TopicUsageValidated, 6, 0))
	if w.applied(tenant, "calls") != 2 || w.applied(tenant, "new") != 2 {
		t.Fatalf("aggregates %+v", w.aggregates())
	}
	var epoch, head int
	w.must(w.pool.QueryRow(t.Context(), `SELECT c.epoch, h.epoch FROM consumer_checkpoints c JOIN log_heads h USING (partition) WHERE partition = 6 AND consumer = $1`,
		events.GroupAggregator).Scan(&epoch, &head))
	if epoch != head {
		t.Errorf("the checkpoint is of epoch %d, want %d", epoch, head)
	}
}

func TestWithheldIsPassedWithoutAFold(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	w.verdicts(tenant, "calls", 3)
	_, err := w.pool.Exec(t.Context(), `INSERT INTO withheld_records VALUES (6, 2, 2, $1, $2, 'too large')`, tenant, newID())
	w.must(err)
	r, seen := w.aggregator(nil)
	w.process(r, w.topic(events.TopicUsageValidated, 6, 0)[2:]) // the first two come from the log
	if w.applied(tenant, "calls") != 2 || seen.passed != 1 || w.checkpoint(events.GroupAggregator, 6) != 3 {
		t.Fatalf("told %+v, aggregates %+v", seen, w.aggregates())
	}
	w = newLogFixture(t)
	w.verdicts(tenant, "calls", 3)
	r, seen = w.aggregator(nil)
	records := w.topic(events.TopicUsageValidated, 6, 0)
	e := w.read(events.TopicUsageValidated, 6, 0)[1]
	e.Withheld = true
	records[1], err = codec.ToRecord(&e)
	w.must(err)
	w.must(second(w.pool.Exec(t.Context(), `INSERT INTO withheld_records VALUES (6, 2, 2, $1, $2, 'too large')`, tenant, newID())))
	w.process(r, records)
	if w.applied(tenant, "calls") != 2 || seen.passed != 1 || seen.fromLog != 0 {
		t.Fatalf("told %+v, aggregates %+v", seen, w.aggregates())
	}
}

// Events that the pipe could not carry are in the log: a consumer of the log folds
// them, whether they were withheld before or after it read them.
func TestLogReadersFoldWithheldEvents(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	w.verdicts(tenant, "calls", 3)
	_, err := w.pool.Exec(t.Context(), `INSERT INTO withheld_records VALUES (6, 2, 2, $1, $2, 'too large')`, tenant, newID())
	w.must(err)
	r, seen := w.runner(entitlements.Consumer(models.DefaultFolds().Entitlements, newID))
	w.follow(r, func() bool { return w.checkpoint(events.GroupEntitlements, 6) == 3 })
	var used int
	w.must(w.pool.QueryRow(t.Context(), `SELECT used::int FROM entitlement_usage WHERE tenant_id = $1 AND feature = 'calls'`, tenant).Scan(&used))
	if used != 3 || seen.passed != 0 {
		t.Fatalf("used %d, want 3; told %+v", used, seen)
	}
}

// No event is read again before the relay passed it, nor while the consumer moves.
func TestLostTailIsHealed(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	w.verdicts(tenant, "calls", 5)
	r, seen := w.aggregator(nil)
	r.TailAfter = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return logtest.HealTails(ctx, r, time.Millisecond) })
	time.Sleep(100 * time.Millisecond)
	if got := w.checkpoint(events.GroupAggregator, 6); got != 0 {
		t.Errorf("read up to %d, which was not published", got)
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE relay_cursors SET position = 5 WHERE partition = 6`)
	w.must(err)
	w.until(func() bool { return w.checkpoint(events.GroupAggregator, 6) == 5 })
	cancel()
	w.must(g.Wait())
	if w.applied(tenant, "calls") != 5 || seen.fromLog != 5 {
		t.Fatalf("told %+v", seen)
	}
}

// noteHandler counts its events in a table, as a read model over the log does.
type noteHandler struct{}

func (noteHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (result projections.Result, err error) {
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

func (w *logFixture) noted() (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(context.Background(), `SELECT count(*) FROM features`).Scan(&n))
	return n
}

func TestFollowReadsTheLogItself(t *testing.T) {
	w := newLogFixture(t)
	r, _ := w.runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, MaxPerPartition: 3})
	wake := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return logtest.Follow(ctx, r, time.Hour, wake) }) // only a wake-up can be in time
	a, b := tenantIn(1), tenantIn(2)
	w.verdicts(a, "calls", 10)
	w.append(usageEvent(b, "x", "calls", 1, may))
	wake <- struct{}{}
	w.until(func() bool { return w.noted() == 11 })
	cancel()
	w.must(g.Wait())

	w.verdicts(b, "calls", 4)
	w.follow(r, func() bool { return w.noted() == 15 }) // and without any, polling finds it
}

// A head that names a missing event proves a loss: a checkpoint must not pass the
// event, and the other partitions continue.
func TestFollowStopsBeforeALostTail(t *testing.T) {
	w := newLogFixture(t)
	subjects := []events.Subject{events.UsageValidated}
	r, _ := w.runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, Subjects: subjects, MaxPerPartition: 100})
	a, b := tenantIn(1), tenantIn(2)
	w.verdicts(a, "calls", 3)
	_, err := w.pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 1 WHERE partition = 1`)
	w.must(err)
	w.follow(r, func() bool { return w.noted() == 3 })
	w.verdicts(b, "calls", 4)
	w.follow(r, func() bool { return w.noted() == 7 })
	if at := w.checkpoint(events.GroupEntitlements, 1); at != 3 {
		t.Errorf("the checkpoint stands at %d, the last event is the third", at)
	}
}

// A read model's failure is on record and never retried: a retry would count in the aggregates.
func TestReadModelsFailureIsDiscarded(t *testing.T) {
	w := newLogFixture(t)
	w.payloads.Allow() // poison
	r, _ := w.runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}})
	tenant := tenantIn(1)
	poison := verdict(tenant, "calls", 1)
	poison.Payload = json.RawMessage(`"poison"`)
	at := w.append(verdict(tenant, "calls", 1), poison, verdict(tenant, "calls", 1))
	w.follow(r, func() bool { return w.noted() == 4 }) // two verdicts, and the events about the third
	letters := w.read(events.TopicUsageDeadLetter, 1, 0)
	if len(letters) != 2 {
		t.Fatalf("%d dead letter events, want 2", len(letters))
	}
	failed, closed := decode[events.Failed](w, letters[0]), decode[events.Closed](w, letters[1])
	if failed.Code != "sour" || failed.SourcePosition != at[1].Number || closed.Status != events.StatusDiscarded || closed.DeadLetterID != letters[0].EventID ||
		letters[1].DedupeKey != events.KeyClosed(letters[0].EventID) {
		t.Errorf("failed %+v, closed %+v", failed, closed)
	}
	if got := w.counts(1); got.Parked != 0 {
		t.Errorf("parked %d", got.Parked)
	}
}

// A head that somebody holds is an outage that passes, not a fault of the data.
func TestLockTimeoutsAreRetried(t *testing.T) {
	w := newLogFixture(t)
	w.append(usageEvent(tenantIn(4), "a", "calls", 1, may))
	tx, err := w.pool.Begin(t.Context())
	w.must(err)
	defer tx.Rollback(context.Background()) // so that the pool can be closed, whatever fails
	_, err = tx.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = 4 FOR UPDATE`)
	w.must(err)
	r, _ := w.validator()
	if err := r.Process(t.Context(), w.topic(events.TopicUsageRaw, 4, 0)); err == nil {
		t.Fatal("taken without the head")
	}
	w.must(tx.Rollback(t.Context()))
	w.process(r, w.topic(events.TopicUsageRaw, 4, 0))
	if got := w.counts(4); got.Rejected != 1 || got.Parked != 0 {
		t.Fatalf("counts %+v", got)
	}
}

// Whatever moved the checkpoint meanwhile, the fold does not stay.
func TestCheckpointMovesByCompareAndSet(t *testing.T) {
	w := newLogFixture(t)
	w.verdicts(tenantIn(4), "calls", 2)
	aggregator := &usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}
	r, _ := w.aggregator(applier(func(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
		w.must(second(tx.Exec(ctx, `UPDATE consumer_checkpoints SET position = position + 1`)))
		return aggregator.Apply(ctx, tx, g, batch)
	}))
	if err := r.Process(t.Context(), w.topic(events.TopicUsageValidated, 4, 0)); err == nil || len(w.aggregates()) != 0 {
		t.Fatalf("%v, aggregates %+v", err, w.aggregates())
	}
}

func TestConsumerWithoutCheckpointsIsRefused(t *testing.T) {
	w := newLogFixture(t)
	w.verdicts(tenantIn(4), "calls", 1)
	r, _ := w.aggregator(nil)
	r.Consumer.Name = "nobody"
	if err := r.Process(t.Context(), w.topic(events.TopicUsageValidated, 4, 0)); err == nil {
		t.Fatal("folded without a checkpoint")
	}
}

// follow lets a consumer follow the log until a condition holds.
func (w *logFixture) follow(r *consume.Runner, done func() bool) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return logtest.Follow(ctx, r, time.Millisecond, nil) })
	w.until(done)
	cancel()
	w.must(g.Wait())
}
