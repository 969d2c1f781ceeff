package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// Features with HARD limits, which several clients reach.
const (
	featureHeld     = "held"     // consumed and held
	featureEnforced = "enforced" // usage that the plan enforces
)

func limitGrants() (list []domain.Grant) {
	for _, of := range []struct {
		feature  string
		limit    int64
		onIngest string
	}{{featureHeld, 40, domain.OnIngestRecord}, {featureEnforced, 25, domain.OnIngestEnforce}} {
		list = append(list, domain.Grant{Type: domain.FeatureQuota, Entitlement: domain.Entitlement{
			Feature: of.feature, Limit: &of.limit, LimitBehavior: domain.LimitHard, ResetPeriod: domain.ResetMonthly, OnIngest: of.onIngest}})
	}
	return list
}

// limitHistories are the histories of the decisions. Both snapshots grant the features alike.
type limitHistories struct{ s *sim }

// Known implements eventlog.Histories.
func (h limitHistories) Known(tenants []uuid.UUID) map[uuid.UUID]domain.TenantHistory {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	all := map[uuid.UUID]domain.TenantHistory{}
	for _, t := range tenants {
		all[t] = domain.TenantHistory{History: h.s.db.history[t], PeriodHistory: h.s.db.periodHistory(t)}
	}
	return all
}

// Of implements eventlog.Histories.
func (h limitHistories) Of(_ context.Context, _ eventlog.Query, tenants []uuid.UUID, _ []events.InlineStretch) (map[uuid.UUID]domain.TenantHistory, error) {
	return h.Known(tenants), nil
}

// simReservations reads the table of reservations.
type simReservations struct{ s *sim }

// Reservation implements commands.ReservationTable.
func (r simReservations) Reservation(_ context.Context, tenant uuid.UUID, _, id string) (*events.ReservationState, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if now, ok := r.s.db.reserved[domain.ReservationKey{TenantID: tenant, ID: id}]; ok {
		return &now, nil
	}
	return nil, nil
}

// Due implements commands.ReservationTable.
func (r simReservations) Due(_ context.Context, now time.Time, _ []uuid.UUID, _ int) (list []commands.DueReservation, err error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, d := range r.s.db.due(now, true, true) {
		list = append(list, commands.DueReservation{TenantID: d.tenant, Residency: events.ResidencyUnspecified, ReservationID: d.ID, Feature: d.Feature})
	}
	return list, nil
}

// NextDue implements commands.ReservationTable. The simulation ends due reservations at times of its own.
func (r simReservations) NextDue(context.Context) (time.Time, bool, error) {
	return time.Time{}, false, nil
}

// limitRequest is a request of a client about a limit.
type limitRequest struct {
	kind      string
	tenant    uuid.UUID
	id, event string // of the reservation, and of the usage
	amount    int64
	lasts     time.Duration
	overage   bool
}

// limitPlan draws the requests of the clients. Each client has ids of its own, which it uses again; they share the accounts.
func limitPlan(rng *rand.Rand, tenants []uuid.UUID, most int) (clients [][]limitRequest) {
	kinds := []string{"consume", "consume", "hold", "hold", "hold", "extend", "commit", "commit", "release", "enforced", "enforced"}
	for c := range 2 {
		var list []limitRequest
		for range 3 + rng.IntN(3*most) {
			r := limitRequest{kind: kinds[rng.IntN(len(kinds))], tenant: tenants[rng.IntN(2)], lasts: time.Duration(1+rng.IntN(20)) * time.Second}
			n := rng.IntN(2)
			r.id, r.event, r.amount = fmt.Sprint("r", c, "-", n), fmt.Sprint(r.kind, c, "-", rng.IntN(4)), int64(5+n*8+rng.IntN(10)/9)
			r.overage = r.kind == "commit" && rng.IntN(3) == 0
			list = append(list, r)
		}
		clients = append(clients, list)
	}
	return clients
}

// send sends a request, and returns the position of its event.
func (r *limitRequest) send(ctx context.Context, s *sim, door *commands.IngestUsage) (at events.Position, err error) {
	q := &commands.Quotas{Log: door.Log.(commands.QuotaLog), Reservations: simReservations{s}, Now: time.Now, NewID: door.NewID}
	by := commands.Caller{TenantID: r.tenant, Residency: events.ResidencyUnspecified}
	ofOne := func(int) string { return "" }
	var reserved commands.Reserved
	switch r.kind {
	case "consume":
		list, _, err := q.Consume(ctx, by, []domain.Consumption{{EventID: r.event, Feature: featureHeld, Amount: r.amount}}, ofOne)
		if err == nil {
			at = list[0].Position
		}
		return at, err
	case "hold":
		list, _, err := q.Hold(ctx, by, []domain.Holding{{ReservationID: r.id, Feature: featureHeld, Amount: r.amount, Lasts: r.lasts}}, ofOne)
		if err == nil {
			at = list[0].Position
		}
		return at, err
	case "commit":
		done, _, err := q.Commit(ctx, by, &domain.Commitment{ReservationID: r.id, Feature: featureHeld, EventID: r.event, Amount: r.amount, Overage: r.overage})
		return done.Position, err
	case "extend":
		reserved, err = q.Extend(ctx, by, featureHeld, r.id, r.lasts)
	case "release":
		reserved, err = q.Release(ctx, by, featureHeld, r.id)
	case "enforced":
		return r.ingest(ctx, door, by)
	}
	return reserved.Position, err
}

// ingest sends usage that the plan enforces.
func (r *limitRequest) ingest(ctx context.Context, door *commands.IngestUsage, by commands.Caller) (at events.Position, err error) {
	batch := request{tenant: r.tenant, items: []usageItem{{id: r.event, feature: featureEnforced, amount: r.amount}}}
	items, err := domain.DecodeBatch(batch.body())
	if err != nil {
		panic(err)
	}
	verdicts, err := door.Do(ctx, by, items)
	switch {
	case err != nil:
		return at, err
	case verdicts[0].Status == commands.StatusRejected:
		return at, &domain.Error{Code: verdicts[0].Code}
	case verdicts[0].Status == commands.StatusConflict:
		return at, &domain.Error{Code: "payload_conflict"}
	}
	return *verdicts[0].Position, nil
}

// limitClient sends its requests in order, each until it is answered.
func (s *sim) limitClient(i int, requests []limitRequest) {
	p := s.newProc(fmt.Sprint("limits-", i))
	p.run(func() {
		for n := range requests {
			r := &requests[n]
			var door *commands.IngestUsage
			var life int
			send := func(opOutcome) error { door, life = s.doors[s.rng.IntN(len(s.doors))], s.life; return nil }
			for {
				if p.do(&operation{what: "send", effect: send}) != nil {
					return
				}
				at, err := r.send(p.ctx, s, door)
				var refusal *domain.Error
				if err == nil || errors.As(err, &refusal) {
					_ = p.do(&operation{what: "answered", effect: func(opOutcome) error {
						if s.life == life { // a restore may have lost the earlier life's events
							s.model.answerLimit(r, at, refusal)
						}
						return nil
					}})
					break
				}
				s.count("request about a limit again")
				if !p.idle("pause", 200*time.Millisecond, never) {
					return
				}
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; return nil }})
	})
}

// answerLimit compares an answer with the log, which must have the event already, or must not have it.
func (m *model) answerLimit(r *limitRequest, at events.Position, refusal *domain.Error) {
	key := map[string]string{"consume": events.KeyUsage(r.event), "commit": events.KeyUsage(r.event), "enforced": events.KeyUsage(r.event),
		"hold": events.KeyHold(r.id), "release": events.KeyReservationEnd(r.id)}[r.kind]
	row := m.s.db.keys[simKey{r.tenant, key}]
	now, reserved := m.s.db.reserved[domain.ReservationKey{TenantID: r.tenant, ID: r.id}]
	if refusal == nil {
		m.s.count(r.kind + " granted")
		if r.kind != "extend" && (row == nil || row.at != at) {
			m.s.fail("%+v was granted at %v, and the log has it not there", *r, at)
		}
		return
	}
	m.s.count(r.kind + " refused: " + refusal.Code)
	switch refusal.Code {
	case "payload_conflict", "reservation_conflict":
		if row == nil {
			m.s.fail("%+v was a conflict, and the log has no event of the id", *r)
		}
	case "quota_exceeded", "amount_exceeds_hold", "period_closed":
		if row != nil {
			m.s.fail("%+v was refused (%s), and the log has it at %s", *r, refusal.Code, row.at)
		}
	case "reservation_not_found":
		if reserved {
			m.s.fail("%+v was not found, and it is %s", *r, now.State)
		}
	case "reservation_ended":
		if !reserved || now.State == events.StateHeld {
			m.s.fail("%+v has ended, and it is %q", *r, now.State)
		}
	default:
		m.s.fail("%+v was refused: %v", *r, refusal)
	}
}

// startExpiry starts a process that ends reservations whose time is over.
func (s *sim) startExpiry(name string) {
	p := s.newProc(name)
	p.start = func() { s.startExpiry(name) }
	l := s.logOf(p)
	l.Start()
	p.onKill = func() { s.wait.Go(l.Close) }
	q := &commands.Quotas{Log: l, Reservations: simReservations{s}, Now: time.Now, NewID: func(time.Time) uuid.UUID { return p.newID() }}
	p.run(func() {
		for {
			of := map[uuid.UUID][]commands.DueReservation{}
			err := p.do(&operation{what: "find due reservations", kind: kindAuto, until: time.Now().Add(time.Hour),
				ready: func() bool { return len(s.db.due(time.Now(), true, true)) > 0 },
				effect: func(opOutcome) error {
					for _, d := range s.db.due(time.Now(), true, true) {
						of[d.tenant] = append(of[d.tenant], commands.DueReservation{TenantID: d.tenant, Residency: events.ResidencyUnspecified, ReservationID: d.ID, Feature: d.Feature})
					}
					return nil
				}})
			for _, tenant := range s.plan.tenants {
				if list := of[tenant]; err == nil && len(list) > 0 {
					_, err = q.Expire(p.ctx, list)
				}
			}
			if err != nil && !p.idle("rest", 100*time.Millisecond, never) {
				return
			}
		}
	})
}
