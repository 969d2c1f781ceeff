package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	closedTenants = 1000
	closedLines   = 10
	// closers is the number of requests to close under way at once.
	closers = 16
)

// closes measures the close of the same month of many tenants at once, under a steady load in another period.
func (r *run) closes(ctx context.Context) error {
	return r.withService(ctx, 1, tenantSpec{feature: feature, tenants: closedTenants, lines: closedLines}, func(s *subject) error {
		if err := s.sendLines(ctx, r.cfg.Now()); err != nil {
			return err
		}
		f := figureCloses(closedTenants, closedLines)
		if _, err := r.underLoad(ctx, s, 0, &f, "while the periods were closed", r.closeAll); err != nil {
			return err
		}
		r.addFigure(f)
		return nil
	})
}

// sendLines sends an event of each further feature of each tenant.
func (s *subject) sendLines(ctx context.Context, now time.Time) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: seeders}}
	defer client.CloseIdleConnections()
	var list []string
	for i := range closedLines {
		list = append(list, fmt.Sprintf(`{"eventId":"l%d","feature":"%s","amount":%d,"timestamp":"%s"}`, i, lineFeature(i), i+1,
			now.UTC().Format(time.RFC3339)))
	}
	body := map[string]any{"events": rawList(list)}
	return all(seeders, func(i int) error {
		for ; i < len(s.tenants); i += seeders {
			a := &api{s.urls[0], s.tenants[i].secret, client}
			if err := a.patiently(ctx, "POST", "/usage/events", body, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// rawList makes a list of JSON documents.
func rawList(documents []string) jsonText { return jsonText("[" + strings.Join(documents, ",") + "]") }

// jsonText is JSON that is sent as it is.
type jsonText string

func (t jsonText) MarshalJSON() ([]byte, error) { return []byte(t), nil }

// closeAll requests the close of the month of all tenants, and waits until all figures are frozen.
func (r *run) closeAll(ctx context.Context, s *subject, p *phases, f *Figure) error {
	before, err := r.timed(ctx, func() error {
		pause(ctx, r.times.before)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	p.at(&p.downAt)
	requests, err := r.timed(ctx, func() error { return s.requestCloses(ctx, r.cfg.Now()) })
	if err != nil {
		return err
	}
	p.at(&p.midAt)
	rest, err := r.timed(ctx, func() error { return s.awaitCloses(ctx, p.downAt) })
	if err != nil {
		return err
	}
	p.at(&p.upAt)
	f.Value = p.upAt.Sub(p.downAt).Seconds()
	f.note("all requested after", fmt.Sprintf("%.1f s", p.midAt.Sub(p.downAt).Seconds()))
	f.note("CPU of a request", costBeside(before, requests, len(s.tenants)))
	f.note("CPU of a close thereafter", costBeside(before, rest, len(s.tenants)))
	return r.servers.saveProfile(ctx, r.cfg.Profile, "closes", s)
}

// timed measures the cost of a phase and how long it lasts.
func (r *run) timed(ctx context.Context, phase func() error) (cost spent, err error) {
	began := time.Now()
	_, err = r.measured(ctx, &cost, func() (rate, error) {
		err := phase()
		return rate{took: time.Since(began)}, err
	})
	return cost, err
}

// costBeside describes the processor time of each of a number of changes in a phase, without that of the load, whose cost before the
// changes is known.
func costBeside(before, during spent, changes int) string {
	of := during.cpu.minus(before.cpu.times(during.did.took.Seconds() / before.did.took.Seconds())).times(1000 / float64(changes))
	return fmt.Sprintf("service %.1f ms, PostgreSQL %.1f ms, Kafka %.1f ms", of.Service, of.Postgres, of.Kafka)
}

// requestCloses requests the close of the month of all tenants.
func (s *subject) requestCloses(ctx context.Context, now time.Time) error {
	period := now.UTC().Format("2006-01")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: closers}}
	defer client.CloseIdleConnections()
	a := &api{s.urls[0], s.operator, client}
	body := map[string]any{"reason": "benchmark", "early": true}
	return all(closers, func(i int) error {
		for ; i < len(s.tenants); i += closers {
			path := "/tenants/" + s.tenants[i].id.String() + "/periods/" + period + "/close"
			if err := a.patiently(ctx, "POST", path, body, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// awaitCloses waits until all figures are frozen.
func (s *subject) awaitCloses(ctx context.Context, since time.Time) error {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET ROLE meterplex_worker"); err != nil {
		return fmt.Errorf("set the service's role: %w", err)
	}
	for closed := 0; closed < len(s.tenants); pause(ctx, 100*time.Millisecond) {
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM period_snapshots WHERE lines = $1`, closedLines).Scan(&closed); err != nil {
			return fmt.Errorf("count the closed periods: %w", err)
		}
		if time.Since(since) > drainTime {
			return fmt.Errorf("%d of %d periods are closed after %s", closed, len(s.tenants), drainTime)
		}
	}
	return nil
}
