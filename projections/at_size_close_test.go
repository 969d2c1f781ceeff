package projections_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
)

// The period of the close at size.
const (
	closeEvents = 20_000
	closeLate   = 1000 // late verdicts
	closeLines  = 200  // features
)

// lockedFor measures how long a transaction of the store holds its locks.
type lockedFor struct {
	commands.PeriodStore
	log, held time.Duration
}

func (s *lockedFor) FiguresOfLog(ctx context.Context, c domain.Closing) (domain.Figures, error) {
	began := time.Now()
	defer func() { s.log += time.Since(began) }()
	return s.PeriodStore.FiguresOfLog(ctx, c)
}

func (s *lockedFor) FreezePeriod(ctx context.Context, tenant uuid.UUID, decide func(commands.FreezeTx) error) error {
	var began time.Time
	defer func() { s.held += time.Since(began) }()
	return s.PeriodStore.FreezePeriod(ctx, tenant, func(tx commands.FreezeTx) error {
		began = time.Now()
		return decide(tx)
	})
}

// The close of a large period: how fast its verdicts are read, and how long the head is held with late verdicts behind the cut.
func TestACloseAtSize(t *testing.T) {
	tier.AtSize(t)
	z := newSizeFixture(t)
	f := closeFixtureOf(newRebuildFixtureOf(z.pipelineFixture))
	f.useTenant(z.tenant)
	var features []string
	var grants []domain.Grant
	for i := range closeLines {
		features = append(features, fmt.Sprint("f", i))
		grants = append(grants, grant(features[i], domain.ResetMonthly))
	}
	f.must(second(f.pool.Exec(t.Context(), `INSERT INTO features (lookup_key, name, type, unit, group_by) SELECT f, f, 'METERED', '', '{}' FROM unnest($1::text[]) f`, features)))
	f.grant(grants...)
	z.write(written{from: 0, events: closeEvents, run: 1000, rejects: 1 << 30, features: features, vacuum: true})
	f.lateUsage(events.LateUsageAdjust)
	c := f.request()
	for n := range closeLate / 100 {
		var late []events.Pending
		for i := range 100 {
			late = append(late, usageEvent(f.tenant, fmt.Sprint("late ", n, " ", i), features[i%len(features)], 1, may))
		}
		f.append(late...)
	}
	f.drain(f.validating, f.aggregating)
	measured := &lockedFor{PeriodStore: f.periods.Store}
	f.periods.Store = measured
	if s := f.advance(c.ID); s.State != domain.SagaCompleted {
		t.Fatalf("the close is %s %v %s", s.State, s.Missing, s.LastError)
	}
	var lines int
	f.must(pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), `SELECT sum(event_count)::int FROM period_lines WHERE tenant_id = $1`, f.tenant).Scan(&lines)
	}))
	if lines != closeEvents {
		t.Errorf("%d events are frozen, want %d", lines, closeEvents)
	}
	t.Logf("%d verdicts in %s: %.0f/s; held %s with %d lines and %d late", closeEvents, measured.log,
		float64(closeEvents)/measured.log.Seconds(), measured.held, closeLines, closeLate)
	f.checkEquation()
}
