package projections_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
)

// countedPool counts its queries.
type countedPool struct {
	consume.Pool
	queries atomic.Int64
}

func (p *countedPool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.queries.Add(1)
	return p.Pool.Query(ctx, sql, args...)
}

func TestConsumersThatShareAReadFindTheSameLostTails(t *testing.T) {
	w := newLogFixture(t)
	for p := range int16(3) {
		w.subscribe(tenantIn(p), may, grant("calls", domain.ResetMonthly))
		w.append(usageEvent(tenantIn(p), fmt.Sprint(p), "calls", 1, may.Add(time.Hour)))
		w.verdicts(tenantIn(p+2), "calls", 5)
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition`)
	w.must(err)
	aggregating, _ := w.aggregator(nil)
	validating, _ := w.validator()
	pool := &countedPool{Pool: w.pool}
	lags := consume.NewLags(pool, []projections.Consumer{validating.Consumer, entitlements.Consumer(models.DefaultFolds().Entitlements, newID), aggregating.Consumer})
	began := time.Now()
	for range 2 {
		for _, r := range []*consume.Runner{aggregating, validating} {
			want, err := r.Ahead(t.Context())
			w.must(err)
			r.TailAfter, r.Lags = time.Nanosecond, lags
			_, err = r.LostTails(t.Context())
			w.must(err)
			lost, err := r.LostTails(t.Context())
			w.must(err)
			if len(want) != 3 || !slices.Equal(lost, want) {
				t.Errorf("%s lost the tails %v, but is behind up to %v", r.Consumer.Name, lost, want)
			}
		}
	}
	if most := 1 + int64(time.Since(began)/(consume.DefaultTailEvery/2)); pool.queries.Load() > most {
		t.Errorf("%d reads, want %d at most", pool.queries.Load(), most)
	}
	w.process(aggregating, w.topic(aggregating.Consumer.Topic, 3, 0))
	w.until(func() bool { // a read is valid for half a second
		lost, err := aggregating.LostTails(t.Context())
		w.must(err)
		return len(lost) == 2
	})
}
