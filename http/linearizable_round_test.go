package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
)

// 32 clients consume, hold, extend, commit and release on three accounts in a round, over two instances, one of which loses sessions,
// COMMITs, answers to COMMIT, and its writers. Clients give up, or repeat requests without an answer. The answers are
// those of one ledger that decides in one order. A request without an answer happened or not. A reservation expired at some moment
// after its time.
func TestP7_RequestsAreLinearizable(t *testing.T) {
	const accounts = 3
	w := newTestService(t)
	w.catalogue()
	w.putPlan(map[string]any{"limit": linearLimit, "resetPeriod": "NEVER"})
	seed, long := tier.Seed(t), tier.Duration(t, 0, 0)
	each, least := tier.Draws(t, 30, linearEach), tier.Draws(t, 1, 20_000)
	instances := []*linearInstance{newLinearInstance(t, w, "first"), newLinearInstance(t, w, "second")}
	operations, counts, began := 0, map[string]int{}, time.Now()
	for round := 0; (operations < least || time.Since(began) < long) && !t.Failed(); round++ {
		h := &history{began: time.Now(), each: each, attempts: map[uuid.UUID]*attempt{}, bodies: map[string]string{}, counts: counts}
		var tenants []*account
		for n := range accounts {
			tenants = append(tenants, w.newAccount(fmt.Sprint(round, "-", n)))
		}
		h.round(t, seed+uint64(round), instances, tenants)
		for _, of := range h.operations(w, tenants) {
			operations += len(of)
			if fault := misfit(of, linearLimit); fault != "" {
				t.Errorf("round %d: %s", round, fault)
			}
		}
		for _, fault := range h.faults[:min(len(h.faults), 10)] {
			t.Error(fault)
		}
		t.Logf("round %d: %d operations in %s", round, operations, time.Since(h.began))
	}
	t.Logf("%d operations: %v", operations, counts)
	for _, kind := range []string{"consume ", "consume quota_exceeded", "hold ", "hold quota_exceeded", "extend ",
		"extend reservation_ended", "commit ", "commit reservation_ended",
		"commit amount_exceeds_hold", "commit reservation_not_found", "release ", "release reservation_ended", "expire", "lost",
		"lost and recorded"} {
		if counts[kind] == 0 && !t.Failed() && !testing.Short() {
			t.Errorf("no request was %s", kind)
		}
	}
}

// round sends the requests of all clients, and returns after the last answer, when both logs have written their queues.
func (h *history) round(t *testing.T, seed uint64, instances []*linearInstance, tenants []*account) {
	ctx, stop := context.WithCancel(t.Context())
	var background, clients sync.WaitGroup
	for _, i := range instances {
		x := &metering.Expiry{Logger: slog.New(slog.DiscardHandler), Every: 20 * time.Millisecond,
			Quotas: &metering.Quotas{Log: &i.writes, Reservations: i.store, Now: time.Now, NewID: func(time.Time) uuid.UUID {
				return newID()
			}}}
		background.Go(func() { _ = x.Run(ctx) })
	}
	background.Go(func() { instances[1].fail(ctx, rand.New(rand.NewPCG(seed, linearClients))) })
	for client := range linearClients {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(client)))
			for n := range h.each {
				of := tenants[r.IntN(len(tenants))]
				in, c := drawAsked(r, client, n)
				in.account = of.id
				patience, cancel := t.Context(), context.CancelFunc(func() {})
				if r.IntN(40) == 0 {
					patience, cancel = context.WithTimeout(patience, time.Duration(r.IntN(3000))*time.Microsecond)
				}
				for answered := h.send(patience, instances[r.IntN(2)], of.key, in, c); !answered && r.IntN(2) == 0; {
					answered = h.send(t.Context(), instances[r.IntN(2)], of.key, in, c) // the others give up
				}
				cancel()
			}
		})
	}
	clients.Wait()
	for soon := 1; soon > 0; time.Sleep(10 * time.Millisecond) { // those held for a second expire
		if err := instances[0].pool.QueryRow(t.Context(),
			`SELECT count(*) FROM reservations WHERE state = 'HELD' AND expires_at < now() + interval '5 s'`).Scan(&soon); err != nil {
			soon = 1
		}
	}
	stop()
	background.Wait()
	for _, i := range instances {
		i.cutter.Answer.Store(0)
		i.cutter.Request.Store(0)
		for before := i.writes.Load(); i.writes.Load() == before; { // those without an answer are written, or are not
			i.restart()
		}
	}
}

// fail lets an instance fail until ctx ends.
func (i *linearInstance) fail(ctx context.Context, r *rand.Rand) {
	owner, err := pgx.Connect(context.Background(), i.owner)
	if err != nil {
		panic(err)
	}
	defer owner.Close(context.Background())
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(100+r.IntN(500)) * time.Millisecond):
		}
		switch r.IntN(6) {
		case 0, 1:
			i.cutter.Answer.Store(1)
		case 2, 3:
			i.cutter.Request.Store(1)
		case 4:
			if _, err := owner.Exec(context.Background(),
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, i.name); err != nil {
				panic(err)
			}
		case 5:
			i.restart()
		}
	}
}

// operations returns the history of each account: answered requests, those without an answer whose events are in the log, expiries, and a
// read at the end. An event that no answer names is of a request without an answer.
func (h *history) operations(w *testService, tenants []*account) map[string][]*attempt {
	end, all := h.since(), map[string][]*attempt{}
	for _, of := range tenants {
		for _, e := range w.eventsOf(of) {
			var a quotaAnswer
			w.must(json.Unmarshal(e.Payload, &a))
			a.Position = e.Position.String()
			out := a.told()
			out.made = true
			if e.Subject == events.ReservationExpired {
				if e.OccurredAt.Before(a.ExpiresAt) {
					h.fault("%s expired at %s, before %s", a.ReservationID, e.OccurredAt, a.ExpiresAt)
				}
				h.counts["expire"]++
				in := &asked{account: of.id, kind: "expire", id: a.ReservationID}
				all[of.id] = append(all[of.id], &attempt{in: in, out: out, call: a.ExpiresAt.Sub(h.began).Nanoseconds() - 1000*slack,
					done: end})
				continue
			}
			switch by := h.attempts[e.CorrelationID]; {
			case by == nil:
				h.fault("no request made the event at %s: %s", e.Position, e.Payload)
			case by.out == nil:
				h.counts["lost and recorded"]++
				by.out, by.done = out, end
			case by.out.code != "" || by.out.position != e.Position.Number:
				h.fault("%+v is answered %+v, and its event is at %s: %s", *by.in, *by.out, e.Position, e.Payload)
			default:
				by.out.made = true
			}
		}
		var out told
		w.must(w.pool.QueryRow(w.Context(), `SELECT coalesce(sum(used), 0)::bigint, coalesce(sum(held), 0)::bigint FROM quota_accounts
 WHERE tenant_id = $1`, of.id).Scan(&out.used, &out.held))
		all[of.id] = append(all[of.id], &attempt{in: &asked{account: of.id, kind: "read"}, out: &out, call: end + 1, done: end + 2})
	}
	for _, a := range h.attempts {
		if a.out != nil {
			all[a.in.account] = append(all[a.in.account], a)
		}
	}
	return all
}

// eventsOf reads the events of a tenant's requests against limits.
func (w *testService) eventsOf(a *account) (list []events.Envelope) {
	tenant := uuid.MustParse(a.id)
	for after := int64(0); ; {
		page, err := w.log.Read(w.Context(), events.PartitionOf(tenant), after, 1<<62, 1000)
		w.must(err)
		if len(page) == 0 {
			return list
		}
		after = page[len(page)-1].Position.Number
		for _, e := range page {
			switch e.Subject {
			case events.UsageAdmitted, events.ReservationHeld, events.ReservationExtended, events.ReservationReleased,
				events.ReservationExpired:
				if e.TenantID == tenant {
					list = append(list, e)
				}
			}
		}
	}
}
