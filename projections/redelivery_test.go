package projections_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
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
	"github.com/meterplex/meterplex/infra/watermill/logtest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// ledger is the client's own account of its sent events: the model for the
// aggregates. It shares no code with the folds.
type ledger struct {
	amounts map[aggregateKey]*big.Int
	counts  map[aggregateKey]int64
	lasts   map[aggregateKey]time.Time
}

func newLedger() *ledger {
	return &ledger{map[aggregateKey]*big.Int{}, map[aggregateKey]int64{}, map[aggregateKey]time.Time{}}
}

func (l *ledger) add(tenant uuid.UUID, feature string, amount int64, at time.Time) {
	k := aggregateKey{tenant, feature, fmt.Sprintf("%d-%02d", at.Year(), int(at.Month()))}
	if l.amounts[k] == nil {
		l.amounts[k] = new(big.Int)
	}
	l.amounts[k].Add(l.amounts[k], big.NewInt(amount))
	l.counts[k]++
	if at.After(l.lasts[k]) {
		l.lasts[k] = at
	}
}

func (l *ledger) check(t interface {
	Helper()
	Fatalf(string, ...any)
}, got map[aggregateKey]aggregate) {
	t.Helper()
	if len(got) != len(l.amounts) {
		t.Fatalf("%d aggregates, want %d", len(got), len(l.amounts))
	}
	for k, amount := range l.amounts {
		want := aggregate{amount.String(), l.counts[k], l.counts[k], l.lasts[k]}
		if got[k] != want {
			t.Fatalf("%v: got %+v, want %+v", k, got[k], want)
		}
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
	w := newLogFixture(t)
	w.payloads.Allow() // amounts whose sums exceed 64 bits
	validator, _ := w.validator()
	aggregator, _ := w.aggregator(nil)
	validator.Consumer.MaxPerPartition, aggregator.Consumer.MaxPerPartition = 7, 5 // so that chunks end everywhere
	tenants := []uuid.UUID{tenantIn(2), tenantIn(2), tenantIn(30)}
	for _, tenant := range tenants {
		w.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("bytes", domain.ResetMonthly))
	}
	model := newLedger()
	sent := int64(0)
	stage := func(t *rapid.T, r *consume.Runner, from map[int16]int64) {
		for p := range from {
			for _, batch := range deliver(t, w.topic(r.Consumer.Topic, p, from[p])) {
				w.process(r, batch)
			}
		}
		w.heal(r)
		for p := range from {
			from[p] = max(0, w.checkpoint(r.Consumer.Name, p)-10) // some of it comes again next time
		}
	}
	fromRaw, fromValidated := map[int16]int64{2: 0, 30: 0}, map[int16]int64{2: 0, 30: 0}
	rapid.Check(t, func(t *rapid.T) {
		var pending []events.Pending
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			tenant := rapid.SampledFrom(tenants).Draw(t, "tenant")
			feature := rapid.SampledFrom([]string{"calls", "bytes"}).Draw(t, "feature")
			amount := rapid.Int64Range(-1<<62, 1<<62).Draw(t, "amount")
			at := may.Add(time.Duration(rapid.Int64Range(0, int64(70*24*time.Hour)).Draw(t, "at"))).Truncate(time.Microsecond)
			sent++
			pending = append(pending, usageEvent(tenant, fmt.Sprint(sent), feature, amount, at))
			model.add(tenant, feature, amount, at)
		}
		w.append(pending...)
		stage(t, validator, fromRaw)
		stage(t, aggregator, fromValidated)
		model.check(t, w.aggregates())
	})
	a, b := w.counts(2), w.counts(30)
	if a.Accepted+b.Accepted != sent || a.Validated+b.Validated != sent || a.Parked+b.Parked+a.Rejected+b.Rejected != 0 {
		t.Errorf("%d sent; counts %+v %+v", sent, a, b)
	}
}

// heal reads lost tails without a delay until no partition is behind.
func (w *logFixture) heal(r *consume.Runner) {
	w.Helper()
	_, err := w.pool.Exec(context.Background(), `UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition`)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	healer := &consume.Runner{Pool: r.Pool, Log: r.Log, Consumer: r.Consumer, NewID: r.NewID, Logger: r.Logger, Observe: r.Observe,
		TailAfter: time.Nanosecond}
	g := errgroup.Group{}
	g.Go(func() error { return logtest.HealTails(ctx, healer, time.Millisecond) })
	w.until(func() bool { return w.behind(r) == 0 })
	cancel()
	w.must(g.Wait())
}

// behind counts the partitions in which a consumer has not reached its topic's end.
func (w *logFixture) behind(r *consume.Runner) (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(context.Background(), `SELECT count(*) FROM consumer_checkpoints c JOIN log_heads h USING (partition)
		WHERE consumer = $1 AND c.joined AND c.position < CASE WHEN $2::int = 0 THEN h.position ELSE h.topic_positions[$2::int] END`,
		r.Consumer.Name, int(r.Consumer.Topic)).Scan(&n))
	return n
}

// until waits for a condition; go test's own time limit is the only one.
func (w *logFixture) until(done func() bool) {
	w.Helper()
	for !done() {
		time.Sleep(2 * time.Millisecond)
	}
}

// Two instances are handed the same records at the same time, in their own orders.
func TestP2_TwoRunnersFoldOnce(t *testing.T) {
	w := newLogFixture(t)
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	model := newLedger()
	var pending []events.Pending
	partitions := []int16{0, 3, 17}
	for _, p := range partitions {
		tenant := tenantIn(p)
		w.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
		for i := range 300 {
			amount := 1 + random.Int64N(1000)
			pending = append(pending, usageEvent(tenant, fmt.Sprint(i), "calls", amount, may.Add(time.Hour)))
			model.add(tenant, "calls", amount, may.Add(time.Hour))
		}
	}
	w.append(pending...)
	for _, two := range []func() (*consume.Runner, *tally){w.validator, func() (*consume.Runner, *tally) { return w.aggregator(nil) }} {
		var g errgroup.Group
		var records []events.Record
		for instance := range 2 {
			r, _ := two()
			r.Consumer.MaxPerPartition = 20
			if instance == 0 {
				for _, p := range partitions {
					records = append(records, w.topic(r.Consumer.Topic, p, 0)...)
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
		w.must(g.Wait())
	}
	model.check(t, w.aggregates())
}

// An instance that gets a partition back continues at the checkpoint, not where it was itself: another instance has
// folded events meanwhile, and some of them are delivered again.
func TestP2_APartitionThatComesBackContinuesAtTheCheckpoint(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(5)
	w.verdicts(tenant, "calls", 30)
	records := w.topic(events.TopicUsageValidated, 5, 0)
	first, _ := w.aggregator(nil)
	other, _ := w.aggregator(nil)
	w.process(first, records[:10])
	w.process(other, records[10:20])
	w.process(first, records[15:])
	if n := w.applied(tenant, "calls"); n != 30 {
		t.Errorf("%d events are folded, want each of the 30 once", n)
	}
}

// A batch that is only shuffled is complete: the log is not read.
func TestShuffledBatchNeedsNoLog(t *testing.T) {
	w := newLogFixture(t)
	a, b := tenantIn(5), tenantIn(6)
	w.verdicts(a, "calls", 20)
	w.verdicts(b, "calls", 20)
	records := append(w.topic(events.TopicUsageValidated, 5, 0), w.topic(events.TopicUsageValidated, 6, 0)...)
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	r, seen := w.aggregator(nil)
	r.Consumer.MaxRecords = 25
	w.process(r, records)
	if w.applied(a, "calls") != 20 || w.applied(b, "calls") != 20 || seen.fromLog != 0 || seen.duplicates != 0 || seen.transactions != 2 {
		t.Fatalf("told %+v, aggregates %+v", seen, w.aggregates())
	}
}

// An outage in mid-batch leaves no rows, and the batch may be redelivered.
func TestP2_RolledBackBatchesAreRedelivered(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(5)
	w.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	w.append(usageEvent(tenant, "a", "calls", 3, may), usageEvent(tenant, "b", "calls", 4, may))
	v, _ := w.validator()
	w.process(v, w.topic(events.TopicUsageRaw, 5, 0))
	records := w.topic(events.TopicUsageValidated, 5, 0)

	out := true
	aggregator := &usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}
	r, seen := w.aggregator(applier(func(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
		result, err := aggregator.Apply(ctx, tx, g, batch)
		if out {
			err = errors.New("connection refused")
		}
		return result, err
	}))
	if err := r.Process(t.Context(), records); err == nil {
		t.Fatal("an outage was acknowledged")
	}
	if len(w.aggregates()) != 0 || w.checkpoint(events.GroupAggregator, 5) != 0 || seen.errors != 1 || seen.applied != 0 {
		t.Fatalf("something was left of a rolled back batch: %+v", seen)
	}
	out = false
	w.process(r, records)
	w.process(r, records)
	if got := w.aggregates()[aggregateKey{tenant, "calls", "2026-05"}]; got.Amount != "7" || got.Count != 2 || seen.duplicates != 2 {
		t.Fatalf("got %+v, told %+v", got, seen)
	}
}

// Verdicts and aggregates fold a tenant's events in log order, whatever order the pipe delivers.
func TestP10_FoldedInLogOrder(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(8)
	w.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	var pending []events.Pending
	for i := range 60 {
		pending = append(pending, usageEvent(tenant, fmt.Sprint(i), "calls", 1, may))
	}
	w.append(pending...)
	v, _ := w.validator()
	v.Consumer.MaxPerPartition = 11
	records := w.topic(events.TopicUsageRaw, 8, 0)
	for i := len(records) - 1; i >= 0; i -= 7 { // the newest first
		w.process(v, records[max(0, i-6):i+1])
	}
	var seen []int64
	r, _ := w.aggregator(applier(func(_ context.Context, _ pgx.Tx, _ projections.Generation, batch []events.Envelope) (result projections.Result, err error) {
		for i := range batch {
			v, err := codec.VerdictOf(&batch[i])
			if err != nil {
				return result, err
			}
			seen = append(seen, v.RawPosition)
		}
		return result, nil
	}))
	records = w.topic(events.TopicUsageValidated, 8, 0)
	for i := len(records) - 1; i >= 0; i -= 9 {
		w.process(r, records[max(0, i-8):i+1])
	}
	raw := w.read(events.TopicUsageRaw, 8, 0)
	if len(seen) != len(raw) {
		t.Fatalf("%d folded, want %d", len(seen), len(raw))
	}
	for i := range raw {
		if seen[i] != raw[i].Position.Number {
			t.Fatalf("place %d: %d was folded, want %d", i, seen[i], raw[i].Position.Number)
		}
	}
}

// lockWaiters counts the sessions of the database that wait for another's lock.
func (w *logFixture) lockWaiters() (n int) {
	w.Helper()
	var name string
	w.must(w.pool.QueryRow(context.Background(), `SELECT current_database()`).Scan(&name))
	admin, err := pgx.Connect(context.Background(), localtest.Postgres(w.TB).AdminURL()) // it sees others' lock waits
	w.must(err)
	defer admin.Close(context.Background())
	w.must(admin.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'`, name).Scan(&n))
	return n
}
