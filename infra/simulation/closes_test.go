package simulation

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// Clients that close and reopen a period and decide on its adjustments, and processes that run the closes.

// periodRequest is a request of such a client.
type periodRequest struct {
	kind   string // close, reopen, approve, waive or decide
	tenant uuid.UUID
	pause  time.Duration // before it
}

// periodPlan draws the requests of the clients. All close the period of the tenants that others use.
func periodPlan(rng *rand.Rand, tenants []uuid.UUID) (clients [][]periodRequest) {
	kinds := []string{"close", "close", "close", "reopen", "reopen", "reopen", "approve", "waive", "decide"}
	for range 2 {
		var list []periodRequest
		for range 2 + rng.IntN(9) {
			list = append(list, periodRequest{kinds[rng.IntN(len(kinds))], tenants[rng.IntN(2)], time.Duration(rng.IntN(4000)) * time.Millisecond})
		}
		clients = append(clients, list)
	}
	return clients
}

func (s *sim) periodsOf(p *proc) *commands.Periods {
	return &commands.Periods{Store: &store.Periods{Store: s.storeOf(p), Figures: simFigures{s}}, Now: s.now, NewID: p.newID, Logger: slog.New(slog.DiscardHandler)}
}

// periodClient sends its requests in order, each until it is answered. After a crash it goes on.
func (s *sim) periodClient(i int, requests []periodRequest) {
	p := s.newProc(fmt.Sprint("periods-", i))
	p.start = func() { s.periodClient(i, requests) }
	p.run(func() {
		c := s.periodsOf(p)
		for n, r := range requests {
			if p.do(&operation{what: "begin a request", effect: func(opOutcome) error { p.start = func() { s.periodClient(i, requests[n:]) }; return nil }}) != nil {
				return
			}
			if !p.idle("think", r.pause, never) {
				return
			}
			for {
				in := commands.DecideAdjustments{TenantID: r.tenant, Reason: "simulated", Decision: commands.DecisionApprove}
				if p.do(&operation{what: "choose adjustments", effect: func(opOutcome) error { s.choose(&in, &r); return nil }}) != nil {
					return
				}
				err := r.send(p, c, in)
				var refusal *domain.Error
				if err == nil {
					s.count(r.kind + " done")
					break
				}
				if errors.As(err, &refusal) && refusal.Code != "unavailable" {
					s.count(r.kind + " refused: " + refusal.Code)
					break
				}
				if !p.idle("pause", 200*time.Millisecond, never) {
					return
				}
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; p.start = nil; return nil }})
	})
}

// choose names the adjustments that a decision is about: one of the tenant's, or those up to one.
func (s *sim) choose(in *commands.DecideAdjustments, r *periodRequest) {
	if r.kind == "waive" {
		in.Decision = commands.DecisionWaive
	}
	upTo := events.Position{Partition: events.PartitionOf(r.tenant), Number: 1}
	for _, a := range s.db.adjustments {
		if a.tenant == r.tenant && s.rng.IntN(2) == 0 {
			in.IDs, upTo.Number = []uuid.UUID{a.id}, a.position
		}
	}
	if r.kind == "decide" || len(in.IDs) == 0 {
		in.IDs, in.Scope = nil, &events.AdjustmentScope{PeriodKey: simPeriod, UpTo: upTo}
	}
}

func (r *periodRequest) send(p *proc, c *commands.Periods, in commands.DecideAdjustments) (err error) {
	by := commands.Request{By: commands.Caller{}}
	switch r.kind {
	case "close":
		_, err = c.Close(p.ctx, by, commands.ClosePeriod{TenantID: r.tenant, PeriodKey: simPeriod, Reason: "simulated", Early: true})
	case "reopen":
		_, err = c.Reopen(p.ctx, by, r.tenant, simPeriod, "simulated")
	default:
		_, err = c.Decide(p.ctx, by, in)
	}
	return err
}

// startCloser starts a process that runs closes, without the leases of sagas: two of them run the same step. After some waits it freezes
// despite dead letters.
func (s *sim) startCloser(name string) {
	p := s.newProc(name)
	p.start = func() { s.startCloser(name) }
	kind := s.periodsOf(p).CloseKind()
	p.run(func() {
		saga := domain.Saga{Kind: kind.Name, Step: kind.Steps[0]}
		for waits := 0; ; {
			var of []domain.Closing
			var life int
			if p.do(&operation{what: "find a close", until: time.Now().Add(time.Hour), ready: func() bool { return len(s.db.closing()) > 0 },
				effect: func(opOutcome) error { of, life = s.db.closing(), s.life; return nil }}) != nil {
				return
			}
			if len(of) == 0 {
				continue
			}
			if key := fmt.Sprint(of[0].PeriodKey, "/", of[0].Snapshot); saga.Key != key || saga.TenantID != of[0].TenantID {
				saga.Key, saga.TenantID, saga.Step, saga.Despite, waits = key, of[0].TenantID, kind.Steps[0], nil, 0
			}
			result, err := kind.Run(p.ctx, &saga)
			switch {
			case err != nil:
				result.Wait = 100 * time.Millisecond
			case result.Drift:
				s.mu.Lock()
				if s.life == life { // a restore may have lost events between the two computations
					s.fail("the figures of %s drift: %s", saga.Key, result.Reason)
				}
				s.mu.Unlock()
			case result.Step != "":
				saga.Step = result.Step
			}
			for _, condition := range result.Missing {
				s.count("close waits: " + condition)
			}
			if waits++; waits > 8 {
				saga.Despite = domain.Waivable()
			}
			if !p.idle("wait for the period", min(result.Wait, 500*time.Millisecond), never) {
				return
			}
		}
	})
}
