package consume_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
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
			if durable := lost(c) == &c.Answer; (seen.Applied == 0) != durable {
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
	first.Consumer.MaxPerPartition, other.Consumer.MaxPerPartition = 10, 10
	w.Process(first, records[:10])
	w.Process(other, records[10:20])
	first.Consumer.MaxPerPartition = 20
	w.Process(first, records[15:])
	if n := appliedTo(w, tenant, "calls"); n != 30 {
		t.Errorf("%d events are folded, want each of the 30 once", n)
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
	r, _ := w.Aggregator(
		applier(
			func(_ context.Context, _ pgx.Tx, _ projections.Generation, batch []events.Envelope) (result projections.Result, err error) {
				for i := range batch {
					v, err := codec.VerdictOf(&batch[i])
					if err != nil {
						return result, err
					}
					seen = append(seen, v.RawPosition)
				}
				return result, nil
			},
		),
	)
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

// forged has an event for each stretch, and counts the stretches that it was asked for.
type forged struct {
	consume.Recent
	asked int
}

func (*forged) Reached(events.Position, int32) {}

func (f *forged) Stretch(list []events.Envelope, s events.Stretch, epoch int32, _ int) ([]events.Envelope, bool) {
	f.asked++
	return append(
		list,
		events.Envelope{Subject: events.UsageValidated, Position: events.Position{Partition: s.Partition, Number: s.UpTo}, Epoch: epoch},
	), true
}

// While a partition's head may have lost events, memory is not asked: it may hold lost ones.
func TestP4_ALostEventIsNotReadFromMemory(t *testing.T) {
	w := NewDatabase(t)
	r, _ := w.Runner(
		projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, Subjects: []events.Subject{events.UsageValidated}},
	)
	memory := &forged{}
	r.Recent = memory
	appendVerdicts(w, TenantIn(1), "calls", 3)
	appendVerdicts(w, TenantIn(2), "calls", 3)
	read := func(partition int16, upTo int64, noted, asked int) {
		t.Helper()
		w.Must(Second(r.ReadUpTo(t.Context(), []events.Position{{Partition: partition, Number: upTo}})))
		if n := notedEvents(w); n != noted || memory.asked != asked {
			t.Errorf("%d events folded, memory asked %d times, want %d and %d", n, memory.asked, noted, asked)
		}
	}
	read(1, 2, 1, 1) // the one event that is forged
	read(1, 2, 1, 1) // it is passed
	read(1, 4, 2, 2) // up to the head
	_, err := w.Pool.Exec(t.Context(), `UPDATE log_heads SET timeline = timeline + 1 WHERE partition = 2`)
	w.Must(err)
	read(2, 3, 5, 2)
}
