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
	"github.com/meterplex/meterplex/internal/localtest"
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

func TestGapsOfThePipeAreReadFromTheLog(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 10)
	records := w.Topic(events.TopicUsageValidated, 6, 0)
	r, seen := w.Aggregator(nil)
	r.Consumer.MaxPerPartition = 3
	w.Process(r, []events.Record{records[0], records[9]})
	if got := appliedTo(w, tenant, "calls"); got != 10 || seen.FromLog != 10 || seen.Transactions != 4 {
		t.Fatalf("applied %d, told %+v", got, seen)
	}
}

// Whatever a record holds, the folded events come from the log. One that is not of this log has no effect, and is counted.
func TestP2_ARecordIsOnlyAHint(t *testing.T) {
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
		told  func(*Tally) int // nil: the record says that there are events
	}{
		{"no headers", func(r events.Record) events.Record { r.Headers = nil; return r }, func(s *Tally) int { return s.Foreign }},
		{"another topic's", func(r events.Record) events.Record { r.Topic = events.TopicUsageRaw; return r }, func(s *Tally) int {
			return s.Foreign
		}},
		{"another log's", func(r events.Record) events.Record { return set(r, events.HeaderLog, NewID().String()) }, func(s *Tally) int {
			return s.OtherLog
		}},
		{"for outside readers", func(r events.Record) events.Record {
			r.Headers = append(r.Headers, events.Header{Key: events.HeaderReplay, Value: []byte("1")})
			return r
		}, func(s *Tally) int { return s.Passed }},
		{"beyond the head", func(r events.Record) events.Record {
			return set(r, events.HeaderPosition, fmt.Sprint(r.Partition, "-99"))
		}, nil},
		{"a position that another topic has", func(r events.Record) events.Record {
			return set(set(r, events.HeaderPosition, fmt.Sprint(r.Partition, "-3")), events.HeaderPrevious, "0")
		}, nil},
		{"another epoch", func(r events.Record) events.Record { return set(r, events.HeaderEpoch, "7") }, nil},
		{"another event's", func(r events.Record) events.Record { return set(r, events.HeaderEventID, NewID().String()) }, nil},
		{"a broken value", func(r events.Record) events.Record { r.Value = r.Value[:10]; return r }, nil},
		{"an unknown version", func(r events.Record) events.Record {
			r.Value = []byte(`{"eventType":"meterplex.usage.event.validated","eventVersion":9}`)
			return r
		}, nil},
		{"a wrong place before it", func(r events.Record) events.Record { return set(r, events.HeaderPrevious, "1") }, nil},
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
			w.Process(r, []events.Record{c.spoil(w.Topic(events.TopicUsageValidated, p, 0)[1])})
			got := appliedTo(w, tenant, "calls") + appliedTo(w, tenant, "later")
			if c.told == nil && (got < 2 || seen.Foreign+seen.OtherLog+seen.Passed > 0) ||
				c.told != nil && (got != 0 || c.told(seen) != 1) {
				t.Errorf("applied %d; told %+v", got, seen)
			}
			for range 2 {
				w.Process(r, w.Topic(events.TopicUsageValidated, p, 0))
			}
			if appliedTo(w, tenant, "calls") != 2 || appliedTo(w, tenant, "later") != 1 {
				t.Errorf("afterwards %+v", w.Aggregates())
			}
		})
	}
}

// After a restore the pipe holds records of a future that no longer exists.
func TestRecordsOfAnEndedHistoryChangeNothing(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 2)
	r, _ := w.Aggregator(nil)
	w.Process(r, w.Topic(events.TopicUsageValidated, 6, 0)) // epochs are remembered from here on

	future := w.Read(events.TopicUsageValidated, 6, 0)[1]
	future.EventID, future.Previous, future.Position.Number = NewID(), 2, 3
	ghost, err := codec.ToRecord(&future)
	w.Must(err)
	_, err = w.Pool.Exec(t.Context(), `INSERT INTO log_epochs SELECT partition, epoch + 1, 3, 1, 1 FROM log_epochs WHERE partition = 6`)
	w.Must(err)
	_, err = w.Pool.Exec(t.Context(), `UPDATE log_heads SET epoch = epoch + 1 WHERE partition = 6`)
	w.Must(err)
	w.Process(r, []events.Record{ghost})
	if appliedTo(w, tenant, "calls") != 2 || w.Checkpoint(events.GroupAggregator, 6) != 2 {
		t.Fatalf("aggregates %+v", w.Aggregates())
	}
	appendVerdicts(w, tenant, "new", 2)
	w.Process(r, []events.Record{ghost})
	w.Process(r, w.Topic(events.TopicUsageValidated, 6, 0))
	if appliedTo(w, tenant, "calls") != 2 || appliedTo(w, tenant, "new") != 2 {
		t.Fatalf("aggregates %+v", w.Aggregates())
	}
	var epoch, head int
	w.Must(
		w.Pool.QueryRow(t.Context(), `SELECT c.epoch, h.epoch FROM consumer_checkpoints c JOIN log_heads h USING (partition)
			WHERE partition = 6 AND consumer = $1`,
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

// A consumer of a topic reads the log if the pipe does not tell it of its events: it has lost them, or does not run.
func TestThePollFindsWhatThePipeDoesNotDeliver(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 5)
	r, seen := w.Aggregator(nil)
	r.StillAfter = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return logtest.FollowTopic(ctx, r, time.Millisecond) })
	w.Until(func() bool { return w.Checkpoint(events.GroupAggregator, 6) == 5 })
	cancel()
	w.Must(g.Wait())
	if appliedTo(w, tenant, "calls") != 5 || seen.FromLog != 5 {
		t.Fatalf("told %+v", seen)
	}
}

// The events of a sparse topic are found among many of others.
func TestASparseTopicIsReadFromTheDatabase(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	for round := range 3 {
		appendVerdicts(w, tenant, "calls", 6000)
		w.Append(Usage(tenant, fmt.Sprint("a", round), "calls", 1, May), Usage(tenant, fmt.Sprint("b", round), "calls", 1, May))
	}
	r, seen := w.Validator()
	r.Consumer.MaxPerPartition = 3
	raw := w.Topic(events.TopicUsageRaw, 6, 0)
	w.Process(r, raw[5:])
	if got := w.Counts(6); got.Validated != 3*6000+6 || seen.Applied != 6 ||
		w.Checkpoint(events.GroupValidator, 6) != w.Read(events.TopicUsageRaw, 6, 0)[5].Position.Number {
		t.Errorf("counts %+v, told %+v", got, seen)
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
func TestFollowStopsBeforeALostEnd(t *testing.T) {
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

// Each event names the one before it on its topic: a consumer of the topic passes no event that the log has lost, and the other partitions
// continue.
func TestP3_AConsumerStopsBeforeAHole(t *testing.T) {
	w := NewDatabase(t)
	a, b := TenantIn(1), TenantIn(2)
	appendVerdicts(w, a, "calls", 5)
	appendVerdicts(w, b, "calls", 4)
	records := append(w.Topic(events.TopicUsageValidated, 1, 0), w.Topic(events.TopicUsageValidated, 2, 0)...)
	owner, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, w.URL))
	w.Must(err)
	defer owner.Close(context.Background())
	w.Must(Second(owner.Exec(t.Context(), `SET session_replication_role = replica`)))
	w.Must(Second(owner.Exec(t.Context(), `DELETE FROM event_log_rows WHERE partition = 1 AND position = 3`)))
	r, _ := w.Aggregator(nil)
	for range 2 {
		w.Process(r, records)
	}
	if at, applied := w.Checkpoint(events.GroupAggregator, 1), appliedTo(w, a, "calls"); at != 2 || applied != 2 ||
		appliedTo(w, b, "calls") != 4 {
		t.Errorf("the checkpoint stands at %d with %d events, the third is missing; the other partition has %d of 4", at, applied,
			appliedTo(w, b, "calls"))
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
