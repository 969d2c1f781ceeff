package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// grownFrom is the size of the log that B10's larger log is compared with.
const grownFrom = 1_000_000

// growth is B10: B1, B5 and B4 with a million events in the log and with very many. As in B8 the
// database itself writes the histories.
func (r *run) growth(ctx context.Context) error {
	if r.cfg.Grow < 2*grownFrom {
		return fmt.Errorf("--grow is too small: expected at least %d events, e.g. --grow 50000000", 2*grownFrom)
	}
	return r.withService(ctx, 1, tenantSpec{feature: feature, tenants: tenantCount, spread: true}, func(s *subject) error {
		if err := r.grow(ctx, s, grownFrom); err != nil {
			return err
		}
		base, err := r.grown(ctx, s)
		if err != nil {
			return err
		}
		if err := r.roomFor(ctx, s, r.cfg.Grow-grownFrom); err != nil {
			return err
		}
		if err := r.grow(ctx, s, r.cfg.Grow-grownFrom); err != nil {
			return err
		}
		figures, err := r.grown(ctx, s)
		if err != nil {
			return err
		}
		for i := range figures {
			f := figureGrown(figures[i], r.cfg.Grow, grownFrom)
			f.Limit, f.LimitLatency = base[i].Value, base[i].Latency
			f.Ratio = f.Value / f.Limit
			f.aims = []aim{{"within 20 %", func(f *Figure) bool { return f.Ratio >= 0.8 }}}
			if figures[i].ID == "B5" { // smaller is better
				f.aims = []aim{{"within 20 %", func(f *Figure) bool { return f.Ratio <= 1.2 }}}
			}
			r.addFigure(f)
		}
		return nil
	})
}

func (r *run) grow(ctx context.Context, s *subject, events int) error {
	_, err := r.writeHistory(ctx, s, events, manyFigures())
	return err
}

// grown measures the three figures.
func (r *run) grown(ctx context.Context, s *subject) ([]Figure, error) {
	b1, b5, b4 := figureMixed(), figureB5(), figureB4()
	b1.ID, b1.What = "B1", "B1's load (all roles)"
	err := r.closed(ctx, s, &b1, batchClients, batchSize)
	if err == nil {
		err = s.settled(ctx)
	}
	if err == nil {
		err = r.fresh(ctx, s, &b5)
	}
	if err == nil {
		err = r.stream(ctx, s, &b4)
	}
	if err == nil {
		err = s.disk(ctx, &b4)
	}
	list := []Figure{b1, b5, b4}
	for i := range list {
		r.cfg.logf("  %s %s %s", list[i].ID, short(list[i].Value), list[i].Unit)
	}
	return list, err
}

// roomFor checks that the disk has room for that many more events, by the space of each event so
// far, plus a third for vacuum, sorting and the write-ahead log.
func (r *run) roomFor(ctx context.Context, s *subject, events int) error {
	free, known := freeSpace(r.servers.database.Dir())
	if !known {
		return nil
	}
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var each float64
	err = conn.QueryRow(ctx, "SELECT pg_database_size(current_database())::float8 / (SELECT sum(accepted) FROM log_heads)::float8").
		Scan(&each)
	if err != nil {
		return fmt.Errorf("read the size of the log: %w", err)
	}
	const gib = 1 << 30
	need := each*float64(events)*4/3 + 4*gib
	r.cfg.logf("  %s more events need %.0f GiB of disk; %.0f GiB are free", thousands(int64(events)), need/gib, free/gib)
	if free < need {
		return errors.New("the disk is too small: free space on the disk of the servers' data (TMPDIR), or use a smaller --grow")
	}
	return nil
}
