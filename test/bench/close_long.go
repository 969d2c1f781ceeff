package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// longPeriod is the month of the events of a history of one figure.
const longPeriod = "2026-01"

// closeLong measures the close of a period of one tenant with very many events, whose figures are computed twice.
func (r *run) closeLong(ctx context.Context) error {
	return r.withService(ctx, 1, tenantSpec{feature: feature, tenants: 1}, func(s *subject) error {
		h, err := r.longHistory(ctx, s)
		if err != nil {
			return err
		}
		f := figureCloseLong(int(h.runs) * historyRun)
		watching, stop := context.WithCancel(ctx)
		defer stop()
		held := make(chan heldHead, 1)
		go func() { held <- s.watchHead(watching, h.tenant.partition) }()
		cost, err := r.timed(ctx, func() error { return s.closeOne(ctx, h.tenant) })
		stop()
		head := <-held
		if err != nil {
			return err
		}
		if head.err != nil {
			return head.err
		}
		f.Value, f.heldHead = cost.did.took.Seconds(), head.all
		f.CPU = cpuOf(cost.cpu, rate{events: int(h.runs) * historyRun, took: cost.did.took})
		f.note("the tenant's head was held", fmt.Sprintf("%.0f ms in all, %.0f ms at most, %d times", head.all.Seconds()*1000,
			head.longest.Seconds()*1000, head.times))
		r.addFigure(f)
		return r.servers.saveProfile(ctx, r.cfg.Profile, "close", s)
	})
}

// closeOne closes the period of a tenant, and waits until its figures are frozen.
func (s *subject) closeOne(ctx context.Context, t tenant) error {
	a := &api{s.urls[0], s.operator, http.DefaultClient}
	path := "/tenants/" + t.id.String() + "/periods/" + longPeriod
	if err := a.call(ctx, "POST", path+"/close", map[string]any{"reason": "benchmark"}, nil); err != nil {
		return err
	}
	for {
		var period struct {
			State   string
			Missing []string
		}
		if err := a.call(ctx, "GET", path, nil, &period); err != nil {
			return err
		}
		switch {
		case period.State == "CLOSED":
			return nil
		case period.State != "CLOSING":
			return fmt.Errorf("the period is %s and misses %q", period.State, period.Missing)
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// heldHead is for how long others held the head of a partition.
type heldHead struct {
	all, longest time.Duration
	times        int
	err          error
}

const (
	tryHeadSQL  = `SELECT FROM log_heads WHERE partition = $1 ORDER BY partition FOR UPDATE SKIP LOCKED`
	lockHeadSQL = `SELECT FROM log_heads WHERE partition = $1 ORDER BY partition FOR UPDATE`
	// headEvery is the time between two looks at the head, and the shortest time for which a head that is held is surely seen.
	headEvery = time.Millisecond
)

// watchHead looks again and again whether another session holds the head of a partition, until ctx ends, and adds up the times: each from
// the look before to the end of the wait.
func (s *subject) watchHead(ctx context.Context, partition int16) (held heldHead) {
	address, err := inDatabase(s.servers.database.AdminURL(), s.database)
	if err != nil {
		return heldHead{err: err}
	}
	within := context.WithoutCancel(ctx)
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return heldHead{err: fmt.Errorf("reach the database: %w", err)}
	}
	defer conn.Close(within)
	free := time.Now() // at the end of the last look
	for ; ctx.Err() == nil; pause(ctx, headEvery) {
		tag, err := conn.Exec(within, tryHeadSQL, partition) // a transaction of its own
		if err == nil && tag.RowsAffected() == 0 {
			_, err = conn.Exec(within, lockHeadSQL, partition)
			took := time.Since(free)
			held.all, held.longest, held.times = held.all+took, max(held.longest, took), held.times+1
		}
		if err != nil {
			held.err = fmt.Errorf("lock a head: %w", err)
			return held
		}
		free = time.Now()
	}
	return held
}
