package consume_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/watermill/logtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// Whether the commit or only its answer was lost, the batch is redelivered and counts once.
func TestP2_CommitWithoutAnAnswerCountsOnce(t *testing.T) {
	for name, lost := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			w := NewDatabase(t)
			tenant := TenantIn(6)
			appendVerdicts(w, tenant, "calls", 4)
			r, seen := w.Aggregator(nil)
			c, url := localtest.NewCutter(t, w.URL)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, ApplicationName: "cut"})
			w.Must(err)
			t.Cleanup(pool.Close)
			r.Pool = pool
			records := w.Topic(events.TopicUsageValidated, 6, 0)
			lost(c).Store(1)
			err = r.Process(t.Context(), records)
			if !errors.Is(err, consume.ErrCommitUnknown) || c.Reached.Load() != 1 {
				t.Fatalf("a commit without an answer returned %v, after %d cuts", err, c.Reached.Load())
			}
			w.Process(r, records)
			if got := appliedTo(w, tenant, "calls"); got != 4 {
				t.Errorf("applied %d, want 4", got)
			}
			if durable := lost(c) == &c.Answer; (seen.Duplicates == 4) != durable {
				t.Errorf("told %+v", seen)
			}
		})
	}
}

// deliver hands records over as a bad pipe does: shuffled within and across
// batches, some twice, some never, some broken.
func deliver(t *rapid.T, records []events.Record) [][]events.Record {
	var all []events.Record
	for i := range records {
		switch rapid.IntRange(0, 9).Draw(t, "fate") {
		case 0: // lost
		case 1:
			all = append(all, records[i], records[i])
		case 2:
			broken := records[i]
			broken.Value = []byte(`{"half":`)
			all = append(all, broken)
		case 3:
			headless := records[i]
			headless.Headers = nil
			all = append(all, headless)
		default:
			all = append(all, records[i])
		}
	}
	if rapid.Bool().Draw(t, "shuffled") {
		all = rapid.Permutation(all).Draw(t, "order")
	}
	var batches [][]events.Record
	for len(all) > 0 {
		n := min(len(all), rapid.IntRange(1, 20).Draw(t, "batch"))
		batches, all = append(batches, all[:n]), all[n:]
	}
	return batches
}

// Whatever the pipe does, each event is judged and folded once, and lost events are
// read from the log.
func TestP2_RedeliveryIsFoldedOnce(t *testing.T) {
	localtest.FewChecks(t, 60)
	w := NewDatabase(t)
	w.Payloads.Allow() // amounts whose sums exceed 64 bits
	validator, _ := w.Validator()
	aggregator, _ := w.Aggregator(nil)
	validator.Consumer.MaxPerPartition, aggregator.Consumer.MaxPerPartition = 7, 5 // so that chunks end everywhere
	tenants := []uuid.UUID{TenantIn(2), TenantIn(2), TenantIn(30)}
	for _, tenant := range tenants {
		w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("bytes", domain.ResetMonthly))
	}
	model := NewLedger()
	sent := int64(0)
	record := func(tenant uuid.UUID, feature string, amount int64, at time.Time) events.Pending {
		sent++
		model.Add(tenant, feature, amount, at)
		return Usage(tenant, fmt.Sprint(sent), feature, amount, at)
	}
	w.Append(record(tenants[0], "calls", 1<<62, May), record(tenants[0], "calls", 1<<62, May), record(tenants[0], "calls", 1<<62, May)) // beyond 64 bits
	stage := func(t *rapid.T, r *consume.Runner, from map[int16]int64) {
		for p := range from {
			for _, batch := range deliver(t, w.Topic(r.Consumer.Topic, p, from[p])) {
				w.Process(r, batch)
			}
		}
		healTails(w, r)
		for p := range from {
			from[p] = max(0, w.Checkpoint(r.Consumer.Name, p)-10) // some of it comes again next time
		}
	}
	fromRaw, fromValidated := map[int16]int64{2: 0, 30: 0}, map[int16]int64{2: 0, 30: 0}
	rapid.Check(t, func(t *rapid.T) {
		var pending []events.Pending
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			tenant := rapid.SampledFrom(tenants).Draw(t, "tenant")
			feature := rapid.SampledFrom([]string{"calls", "bytes"}).Draw(t, "feature")
			amount := rapid.Int64Range(-1<<62, 1<<62).Draw(t, "amount")
			at := May.Add(time.Duration(rapid.Int64Range(0, int64(70*24*time.Hour)).Draw(t, "at"))).Truncate(time.Microsecond)
			pending = append(pending, record(tenant, feature, amount, at))
		}
		w.Append(pending...)
		stage(t, validator, fromRaw)
		stage(t, aggregator, fromValidated)
		model.Check(t, w.Aggregates())
	})
	a, b := w.Counts(2), w.Counts(30)
	if a.Accepted+b.Accepted != sent || a.Validated+b.Validated != sent || a.Parked+b.Parked+a.Rejected+b.Rejected != 0 {
		t.Errorf("%d sent; counts %+v %+v", sent, a, b)
	}
}

// healTails reads lost tails without a delay until no partition is behind.
func healTails(w *Database, r *consume.Runner) {
	w.Helper()
	_, err := w.Pool.Exec(context.Background(), `UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition`)
	w.Must(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	healer := &consume.Runner{Pool: r.Pool, Log: r.Log, Consumer: r.Consumer, NewID: r.NewID, Logger: r.Logger, Observe: r.Observe,
		TailAfter: time.Nanosecond}
	g := errgroup.Group{}
	g.Go(func() error { return logtest.HealTails(ctx, healer, time.Millisecond) })
	w.Until(func() bool { return partitionsBehind(w, r) == 0 })
	cancel()
	w.Must(g.Wait())
}

// partitionsBehind counts the partitions in which a consumer has not reached its topic's end.
func partitionsBehind(w *Database, r *consume.Runner) (n int) {
	w.Helper()
	w.Must(w.Pool.QueryRow(context.Background(), `SELECT count(*) FROM consumer_checkpoints c JOIN log_heads h USING (partition)
		WHERE consumer = $1 AND c.joined AND c.position < CASE WHEN $2::int = 0 THEN h.position ELSE h.topic_positions[$2::int] END`,
		r.Consumer.Name, int(r.Consumer.Topic)).Scan(&n))
	return n
}

// Two instances are handed the same records at the same time, in their own orders.
func TestP2_TwoRunnersFoldOnce(t *testing.T) {
	w := NewDatabase(t)
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	model := NewLedger()
	var pending []events.Pending
	partitions := []int16{0, 3, 17}
	for _, p := range partitions {
		tenant := TenantIn(p)
		w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
		for i := range 300 {
			amount := 1 + random.Int64N(1000)
			pending = append(pending, Usage(tenant, fmt.Sprint(i), "calls", amount, May.Add(time.Hour)))
			model.Add(tenant, "calls", amount, May.Add(time.Hour))
		}
	}
	w.Append(pending...)
	for _, two := range []func() (*consume.Runner, *Tally){w.Validator, func() (*consume.Runner, *Tally) { return w.Aggregator(nil) }} {
		var g errgroup.Group
		var records []events.Record
		for instance := range 2 {
			r, _ := two()
			r.Consumer.MaxPerPartition = 20
			if instance == 0 {
				for _, p := range partitions {
					records = append(records, w.Topic(r.Consumer.Topic, p, 0)...)
				}
			}
			mine := append([]events.Record(nil), records...)
			random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			g.Go(func() error {
				for len(mine) > 0 {
					n := min(len(mine), 50)
					if err := r.Process(context.Background(), mine[:n]); err != nil {
						return err
					}
					mine = mine[n:]
				}
				return nil
			})
		}
		w.Must(g.Wait())
	}
	model.Check(t, w.Aggregates())
}

// An instance that gets a partition back continues at the checkpoint, not where it was itself: another instance has
// folded events meanwhile, and some of them are delivered again.
func TestP2_APartitionThatComesBackContinuesAtTheCheckpoint(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(5)
	appendVerdicts(w, tenant, "calls", 30)
	records := w.Topic(events.TopicUsageValidated, 5, 0)
	first, _ := w.Aggregator(nil)
	other, _ := w.Aggregator(nil)
	w.Process(first, records[:10])
	w.Process(other, records[10:20])
	w.Process(first, records[15:])
	if n := appliedTo(w, tenant, "calls"); n != 30 {
		t.Errorf("%d events are folded, want each of the 30 once", n)
	}
}

// A batch that is only shuffled is complete: the log is not read.
func TestShuffledBatchNeedsNoLog(t *testing.T) {
	w := NewDatabase(t)
	a, b := TenantIn(5), TenantIn(6)
	appendVerdicts(w, a, "calls", 20)
	appendVerdicts(w, b, "calls", 20)
	records := append(w.Topic(events.TopicUsageValidated, 5, 0), w.Topic(events.TopicUsageValidated, 6, 0)...)
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	r, seen := w.Aggregator(nil)
	r.Consumer.MaxRecords = 25
	w.Process(r, records)
	if appliedTo(w, a, "calls") != 20 || appliedTo(w, b, "calls") != 20 || seen.FromLog != 0 || seen.Duplicates != 0 || seen.Transactions != 2 {
		t.Fatalf("told %+v, aggregates %+v", seen, w.Aggregates())
	}
}

// An outage in mid-batch leaves no rows, and the batch may be redelivered.
func TestP2_RolledBackBatchesAreRedelivered(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(5)
	w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	w.Append(Usage(tenant, "a", "calls", 3, May), Usage(tenant, "b", "calls", 4, May))
	v, _ := w.Validator()
	w.Process(v, w.Topic(events.TopicUsageRaw, 5, 0))
	records := w.Topic(events.TopicUsageValidated, 5, 0)

	out := true
	aggregator := &usage.Handler{Folds: models.DefaultFolds().Usage, NewID: NewID}
	r, seen := w.Aggregator(applier(func(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
		result, err := aggregator.Apply(ctx, tx, g, batch)
		if out {
			err = errors.New("connection refused")
		}
		return result, err
	}))
	if err := r.Process(t.Context(), records); err == nil {
		t.Fatal("an outage was acknowledged")
	}
	if len(w.Aggregates()) != 0 || w.Checkpoint(events.GroupAggregator, 5) != 0 || seen.Errors != 1 || seen.Applied != 0 {
		t.Fatalf("something was left of a rolled back batch: %+v", seen)
	}
	out = false
	w.Process(r, records)
	w.Process(r, records)
	if got := w.Figure(tenant, "calls", "2026-05"); got.Amount != "7" || got.Count != 2 || seen.Duplicates != 2 {
		t.Fatalf("got %+v, told %+v", got, seen)
	}
}

// Verdicts and aggregates fold a tenant's events in log order, whatever order the pipe delivers.
func TestP10_FoldedInLogOrder(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(8)
	w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	var pending []events.Pending
	for i := range 60 {
		pending = append(pending, Usage(tenant, fmt.Sprint(i), "calls", 1, May))
	}
	w.Append(pending...)
	v, _ := w.Validator()
	v.Consumer.MaxPerPartition = 11
	records := w.Topic(events.TopicUsageRaw, 8, 0)
	for i := len(records) - 1; i >= 0; i -= 7 { // the newest first
		w.Process(v, records[max(0, i-6):i+1])
	}
	var seen []int64
	r, _ := w.Aggregator(applier(func(_ context.Context, _ pgx.Tx, _ projections.Generation, batch []events.Envelope) (result projections.Result, err error) {
		for i := range batch {
			v, err := codec.VerdictOf(&batch[i])
			if err != nil {
				return result, err
			}
			seen = append(seen, v.RawPosition)
		}
		return result, nil
	}))
	records = w.Topic(events.TopicUsageValidated, 8, 0)
	for i := len(records) - 1; i >= 0; i -= 9 {
		w.Process(r, records[max(0, i-8):i+1])
	}
	raw := w.Read(events.TopicUsageRaw, 8, 0)
	if len(seen) != len(raw) {
		t.Fatalf("%d folded, want %d", len(seen), len(raw))
	}
	for i := range raw {
		if seen[i] != raw[i].Position.Number {
			t.Fatalf("place %d: %d was folded, want %d", i, seen[i], raw[i].Position.Number)
		}
	}
}

// A record of another event than the log's is not folded while the server is in another life than
// the head's epoch, whatever its epoch says.
func TestP2_ARecordProvesItselfInAnotherLifeOfTheServer(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 2)
	records := w.Topic(events.TopicUsageValidated, 6, 0)
	records[1] = another(records[1], func(e *events.Envelope) { e.EventID = NewID() })
	r, seen := w.Aggregator(nil)
	owner, err := postgres.OwnerDB(w.URL)
	w.Must(err)
	defer owner.Close()
	w.EventLog.Close() // the epoch is not raised
	_, err = owner.Exec(`UPDATE log_heads SET started_at = started_at - interval '1 hour'`)
	w.Must(err)
	w.Process(r, records)
	if seen.Ghosts != 1 || appliedTo(w, tenant, "calls") != 1 {
		t.Errorf("applied %d; told %+v", appliedTo(w, tenant, "calls"), seen)
	}
}

// forged has an event for each stretch, and counts the stretches that it was asked for.
type forged struct{ asked int }

func (f *forged) Stretch(list []events.Envelope, s events.Stretch, epoch int32, _ int) ([]events.Envelope, bool) {
	f.asked++
	return append(list, events.Envelope{Subject: events.UsageValidated, Position: events.Position{Partition: s.Partition, Number: s.UpTo}, Epoch: epoch}), true
}

// While a partition's head may have lost events, memory is not asked: it may hold lost ones.
func TestP4_ALostEventIsNotReadFromMemory(t *testing.T) {
	w := NewDatabase(t)
	r, _ := w.Runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, Subjects: []events.Subject{events.UsageValidated}})
	memory := &forged{}
	r.Recent = memory
	appendVerdicts(w, TenantIn(1), "calls", 3)
	appendVerdicts(w, TenantIn(2), "calls", 3)
	read := func(partition int16, upTo int64, noted, asked int) {
		t.Helper()
		w.Must(r.ReadUpTo(t.Context(), []events.Position{{Partition: partition, Number: upTo}}))
		if n := notedEvents(w); n != noted || memory.asked != asked {
			t.Errorf("%d events folded, memory asked %d times, want %d and %d", n, memory.asked, noted, asked)
		}
	}
	read(1, 2, 1, 1) // the one event that is forged
	read(1, 2, 1, 1) // it is passed
	read(1, 4, 2, 1) // beyond the head
	_, err := w.Pool.Exec(t.Context(), `UPDATE log_heads SET timeline = timeline + 1 WHERE partition = 2`)
	w.Must(err)
	read(2, 3, 5, 1)
}
