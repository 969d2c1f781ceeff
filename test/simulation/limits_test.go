package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
)

// simReservations reads the table of reservations.
type simReservations struct{ s *sim }

// Reservation implements metering.ReservationTable.
func (r simReservations) Reservation(_ context.Context, tenant uuid.UUID, _, id string) (*events.ReservationState, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if now, ok := r.s.db.reserved[domain.ReservationKey{TenantID: tenant, ID: id}]; ok {
		return &now, nil
	}
	return nil, nil
}

// Due implements metering.ReservationTable.
func (r simReservations) Due(_ context.Context, now time.Time, _ []uuid.UUID, _ int) (list []metering.DueReservation, err error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, d := range r.s.db.due(now, true, true) {
		list = append(list, metering.DueReservation{TenantID: d.tenant, Residency: events.ResidencyUnspecified, ReservationID: d.ID,
			Feature: d.Feature})
	}
	return list, nil
}

// NextDue implements metering.ReservationTable. The simulation ends due reservations at times of its own.
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
	items     []limitItem // of a request with several
}

// limitItem is an item of a request with several.
type limitItem struct {
	id, feature string
	amount      int64
}

// feature names the feature of a request with one item.
func (r *limitRequest) feature() string {
	if r.kind == "enforced" {
		return featureEnforced
	}
	return featureHeld
}

// togetherPlan draws requests with several items. The items of a set are always sent together, seldom with another amount.
func togetherPlan(rng *rand.Rand, tenants []uuid.UUID, most int) (list []limitRequest) {
	for range 2 + rng.IntN(3*most) {
		n, kind := rng.IntN(3), []string{"consume together", "hold together"}[rng.IntN(2)]
		r := limitRequest{kind: kind, tenant: tenants[rng.IntN(2)], lasts: time.Duration(1+rng.IntN(8)) * time.Second}
		for i, feature := range []string{featureHeld, featureEnforced, featureHeld}[:2+n/2] {
			r.items = append(r.items, limitItem{fmt.Sprint(kind[:1], "-set-", n, "-", i), feature, int64(4 + 3*n + 2*i)})
		}
		r.items[len(r.items)-1].amount += int64(rng.IntN(10) / 9)
		list = append(list, r)
	}
	return list
}

// drawSets starts the client that changes plans, and returns the requests with several items.
func (s *sim) drawSets(most int) []limitRequest {
	s.model.sets = togetherPlan(rand.New(rand.NewPCG(s.seed, 6)), s.plan.tenants, most)
	s.model.open++
	s.planClient(changePlan(rand.New(rand.NewPCG(s.seed, 7)), s.plan.tenants))
	return s.model.sets
}

// sendTogether sends a request with several items, and returns the position of the first item's event.
func (r *limitRequest) sendTogether(ctx context.Context, q *metering.Quotas, by commands.Caller) (at events.Position, err error) {
	pointer := func(i int) string { return fmt.Sprint("/items/", i) }
	if r.holds() {
		var list []intake.Holding
		for _, i := range r.items {
			list = append(list, intake.Holding{ReservationID: i.id, Feature: i.feature, Amount: i.amount, Lasts: r.lasts})
		}
		done, _, err := q.Hold(ctx, by, list, pointer)
		if err == nil {
			at = done[0].Position
		}
		return at, err
	}
	var list []intake.Consumption
	for _, i := range r.items {
		list = append(list, intake.Consumption{EventID: i.id, Feature: i.feature, Amount: i.amount})
	}
	done, _, err := q.Consume(ctx, by, list, pointer)
	if err == nil {
		at = done[0].Position
	}
	return at, err
}

// limitPlan draws the requests of the clients. Each client has ids of its own, which it uses again; they share the accounts.
func limitPlan(rng *rand.Rand, tenants []uuid.UUID, most int) (clients [][]limitRequest) {
	kinds := []string{"consume", "consume", "hold", "hold", "hold", "extend", "commit", "commit", "release", "enforced", "enforced"}
	for c := range 2 {
		var list []limitRequest
		for range 3 + rng.IntN(3*most) {
			r := limitRequest{kind: kinds[rng.IntN(len(kinds))], tenant: tenants[rng.IntN(2)],
				lasts: time.Duration(1+rng.IntN(20)) * time.Second}
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
func (r *limitRequest) send(ctx context.Context, s *sim, door *metering.IngestUsage) (at events.Position, err error) {
	q := &metering.Quotas{Log: door.Log.(metering.QuotaLog), Reservations: simReservations{s}, Now: time.Now, NewID: door.NewID}
	by := commands.Caller{TenantID: r.tenant, Residency: events.ResidencyUnspecified}
	ofOne := func(int) string { return "" }
	var reserved metering.Reserved
	switch r.kind {
	case "consume together", "hold together":
		return r.sendTogether(ctx, q, by)
	case "consume":
		list, _, err := q.Consume(ctx, by, []intake.Consumption{{EventID: r.event, Feature: featureHeld, Amount: r.amount}}, ofOne)
		if err == nil {
			at = list[0].Position
		}
		return at, err
	case "hold":
		list, _, err := q.Hold(ctx, by, []intake.Holding{{ReservationID: r.id, Feature: featureHeld, Amount: r.amount, Lasts: r.lasts}},
			ofOne)
		if err == nil {
			at = list[0].Position
		}
		return at, err
	case "commit":
		done, _, err := q.Commit(ctx, by, &intake.Commitment{ReservationID: r.id, Feature: featureHeld, EventID: r.event, Amount: r.amount,
			Overage: r.overage})
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
func (r *limitRequest) ingest(ctx context.Context, door *metering.IngestUsage, by commands.Caller) (at events.Position, err error) {
	batch := request{tenant: r.tenant, items: []usageItem{{id: r.event, feature: featureEnforced, amount: r.amount}}}
	items, err := intake.DecodeBatch(batch.body())
	if err != nil {
		panic(err)
	}
	verdicts, err := door.Do(ctx, by, items)
	switch {
	case err != nil:
		return at, err
	case verdicts[0].Status == metering.StatusRejected:
		return at, &domain.Error{Code: verdicts[0].Code}
	case verdicts[0].Status == metering.StatusConflict:
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
			var door *metering.IngestUsage
			var life int
			var sent int64
			send := func(opOutcome) error {
				door, life, sent = s.doors[s.rng.IntN(len(s.doors))], s.life, s.headOf(r.tenant)
				return nil
			}
			for {
				if p.do(&operation{what: "send", effect: send}) != nil {
					return
				}
				at, err := r.send(p.ctx, s, door)
				var refusal *domain.Error
				if err == nil || errors.As(err, &refusal) {
					_ = p.do(&operation{what: "answered", effect: func(opOutcome) error {
						if s.life == life { // a restore may have lost the earlier life's events
							s.model.answerLimit(r, sent, at, refusal)
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

// headOf returns the last position of a tenant's partition.
func (s *sim) headOf(tenant uuid.UUID) int64 { return s.db.heads[events.PartitionOf(tenant)].position }

// answerTogether compares an answer to a request with several items with the log.
func (m *model) answerTogether(r *limitRequest, at events.Position, refusal *domain.Error) {
	recorded := m.checkTogether(r)
	switch {
	case refusal == nil:
		m.s.count(r.kind + " granted")
		if first := m.s.db.keys[simKey{r.tenant, r.together()[0]}]; first == nil || first.at != at {
			m.s.fail("%+v was granted at %v, and the log has it not there", *r, at)
		}
	case refusal.Code == "payload_conflict" || refusal.Code == "reservation_conflict":
		m.s.count(r.kind + " refused: " + refusal.Code)
		if !recorded {
			m.s.fail("%+v was a conflict, and the log has no event of its ids", *r)
		}
	case refusal.Code == "quota_exceeded":
		m.s.count(r.kind + " refused: " + refusal.Code)
		if recorded {
			m.s.fail("%+v was refused (%s), and the log has it", *r, refusal.Code)
		}
	default:
		m.s.fail("%+v was refused: %v", *r, refusal)
	}
}

// answerLimit compares an answer with the log, which must have the event already, or must not have it. The request was sent when the
// head was at a position.
func (m *model) answerLimit(r *limitRequest, sent int64, at events.Position, refusal *domain.Error) {
	if r.items != nil {
		m.answerTogether(r, at, refusal)
		return
	}
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
	case "quota_exceeded", "amount_exceeds_hold":
		if row != nil {
			m.s.fail("%+v was refused (%s), and the log has it at %s", *r, refusal.Code, row.at)
		}
		if refusal.Quota != nil {
			d := denial{of: *r, quota: *refusal.Quota, sent: sent, till: m.s.headOf(r.tenant)}
			m.checkLimit(&d)
			m.denials = append(m.denials, d)
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
	q := &metering.Quotas{Log: l, Reservations: simReservations{s}, Now: time.Now, NewID: func(time.Time) uuid.UUID { return p.newID() }}
	p.run(func() {
		for {
			of := map[uuid.UUID][]metering.DueReservation{}
			err := p.do(&operation{what: "find due reservations", kind: kindAuto, until: time.Now().Add(time.Hour),
				ready: func() bool { return len(s.db.due(time.Now(), true, true)) > 0 },
				effect: func(opOutcome) error {
					for _, d := range s.db.due(time.Now(), true, true) {
						of[d.tenant] = append(of[d.tenant],
							metering.DueReservation{TenantID: d.tenant, Residency: events.ResidencyUnspecified, ReservationID: d.ID,
								Feature: d.Feature})
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
