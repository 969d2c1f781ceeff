package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

var errBroken = errors.New("cannot be folded at first")

// flaky is v1 except for a feature whose verdicts it accepts only as retries.
func flaky(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e, v)
	if err == nil && key.Feature == "broken" && e.Subject == events.UsageValidated {
		err = errBroken
	}
	return key, delta, err
}

// newFlakyFixture adds usage up by the fold that fails.
func newFlakyFixture(t testing.TB) *Rebuilds {
	y := NewRebuilds(t)
	y.Folds.Usage = y.Folds.Usage.With(usage.V1, flaky)
	y.Deploy()
	return y
}

// crashablePool returns a pool for work that must survive lost sessions; crash ends some
// busy sessions. The service's own role may not do that, and cannot see which are
// busy. Its sessions plan each statement once, as those of the fixture do: planning was most of the test.
func crashablePool(y *Rebuilds) (pool *pgxpool.Pool, crash func() (ended int64)) {
	y.Helper()
	pool, err := postgres.Open(context.Background(), postgres.Config{URL: y.URL, ApplicationName: "mortal", KeepPlans: true})
	y.Must(err)
	y.Cleanup(pool.Close)
	owner, err := postgres.OwnerDB(y.URL)
	y.Must(err)
	y.Cleanup(func() { y.Must(owner.Close()) })
	for _, r := range []*consume.Runner{y.Validating, y.Aggregating, y.Lettering, y.Entitling, y.Summing} {
		r.Pool = pool
	}
	return pool, func() (ended int64) {
		y.Must(owner.QueryRow(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'mortal' AND state <> 'idle' AND random() < 0.5`).Scan(&ended))
		return ended
	}
}

// P5: random histories (usage, rejections, duplicates, dead letters and their
// retries, several tenants), random chunks and workers, two rebuilders, sessions
// that end in the middle, traffic all the while: at equal positions the rows are
// equal byte for byte, and so are those of a second rebuild.
func TestP5_RebuildsUnderTrafficAndCrashes(t *testing.T) {
	y := newFlakyFixture(t)
	pool, crash := crashablePool(y)
	rebuilder := func(chunk int64) *rebuild.Rebuilder {
		b := y.Rebuilder(chunk)
		b.Pool = pool
		return b
	}
	localtest.FewChecks(t, 12)
	sent, ended := 0, int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		tenants := y.Tenants(rapid.IntRange(1, 6).Draw(rt, "tenants"))
		before := rapid.IntRange(0, 150).Draw(rt, "before")
		during := rapid.IntRange(0, 60).Draw(rt, "during")
		crashes := rapid.IntRange(0, 3).Draw(rt, "crashes")
		chunk := rapid.Int64Range(1, 200).Draw(rt, "chunk")
		workers := rapid.IntRange(1, 4).Draw(rt, "workers")
		name := rapid.SampledFrom([]string{projections.ProjectionUsage, projections.ProjectionUsage, projections.ProjectionDeadLetters,
			projections.ProjectionEntitlements, projections.ProjectionSeries}).Draw(rt, "projection")
		y.RecordMixedUsage(tenants, sent, before)
		if rapid.Bool().Draw(rt, "settled before") {
			y.Settle()
			y.RetryBroken(rapid.IntRange(0, 20).Draw(rt, "retried"))
		}
		var rebuilt [2]domain.Rebuild
		y.Live(func() {
			y.WhileRebuilding(func() {
				for i := range rebuilt {
					rebuilt[i] = y.Start(repair.StartRebuild{Projection: name, Workers: workers, Verify: i == 1})
				}
				var busy sync.WaitGroup
				busy.Go(func() {
					for i := range during {
						y.RecordMixedUsage(tenants, sent+before+i, 1)
						if i%3 == 0 { // again
							y.RecordMixedUsage(tenants, sent+before+i, 1)
						}
					}
				})
				for range crashes {
					for n := int64(0); n == 0; ended += n { // no session may be busy
						time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
						n = crash()
					}
				}
				busy.Wait()
				y.Ready(rebuilt[0])
			}, rebuilder(chunk), rebuilder(chunk))
			y.WhileRebuilding(func() { readyWithoutComparison(y, rebuilt[1]) }, rebuilder(7))
		})
		sent += before + during
		y.Settle()
		for _, r := range rebuilt {
			if err := y.SameRows(r, 1); err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
		}
		for _, r := range rebuilt {
			_, err := y.Commands.Abandon(context.Background(), commands.Request{By: OperatorKey}, r.ID, "done")
			y.Must(err)
		}
		identity, err := y.Reads.Identity(context.Background())
		y.Must(err)
		if !identity.Holds || identity.InFlight != 0 {
			rt.Fatalf("%+v", identity.Total)
		}
	})
	if t.Logf("%d sessions were ended", ended); ended == 0 {
		t.Error("no session was ended: the crashes showed nothing")
	}
}

// readyWithoutComparison waits for a verify whose comparison is left to the test.
func readyWithoutComparison(y *Rebuilds, r domain.Rebuild) {
	y.Helper()
	y.Until(func() bool { return y.State(r) != domain.RebuildFolding })
}

// P5: with concurrent reads during flips of the pointer, no read fails or returns
// figures of two generations.
func TestP5_ReadersNeverFailNorSeeAMixtureWhileItFlips(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	tenants := y.Tenants(3)
	for i := range 60 { // twenty months of the same figure for each tenant
		y.Append(Usage(tenants[i%3], fmt.Sprint("m", i), "calls", 10, May.AddDate(0, i/3%5, 0)))
	}
	y.Settle()
	r := y.Built(repair.StartRebuild{})

	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var reads, single, double atomic.Int64
	for n := range 4 {
		readers.Go(func() {
			for i := n; ctx.Err() == nil; i++ {
				switch seen, err := figuresOf(y, tenants[i%3]); {
				case errors.Is(err, query.ErrOverloaded): // the machine, whatever flips
					continue
				case err != nil:
					t.Errorf("a read failed: %v", err)
					return
				case seen != "40 40 40 40 40" && seen != "80 80 80 80 80":
					t.Errorf("a read saw %s", seen)
					return
				case seen[0] == '4':
					single.Add(1)
				default:
					double.Add(1)
				}
				reads.Add(1)
			}
		})
	}
	for i := range tier.Draws(t, 60, 200) {
		var err error
		if i%2 == 0 {
			_, err = y.Commands.Promote(t.Context(), commands.Request{By: OperatorKey}, r.ID, "to and fro")
		} else {
			_, err = y.Commands.RollBack(t.Context(), commands.Request{By: OperatorKey}, r.ID, "to and fro")
		}
		y.Must(err)
	}
	stop()
	readers.Wait()
	if single.Load() == 0 || double.Load() == 0 {
		t.Errorf("of %d reads %d saw the one and %d the other: nothing was shown", reads.Load(), single.Load(), double.Load())
	}
	t.Logf("%d reads during the flips", reads.Load())
}

// figuresOf reads all pages of a tenant's figures, two to a page.
func figuresOf(y *Rebuilds, tenant uuid.UUID) (seen string, err error) {
	q := usage.AggregateQuery{TenantID: tenant, Limit: 2}
	for {
		page, err := y.Reads.Aggregates(context.Background(), TenantViewer(tenant), q)
		if err != nil {
			return "", err
		}
		for _, a := range page.Data {
			if seen != "" {
				seen += " "
			}
			seen += a.Amount.String()
		}
		if q.After = page.Next; q.After == "" {
			return seen, nil
		}
	}
}
