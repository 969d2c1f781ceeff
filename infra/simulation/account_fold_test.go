package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// accountFold folds accounts and reservations from the log.
type accountFold struct {
	m        *model
	accounts map[domain.AccountKey]simAccount
	reserved map[domain.ReservationKey]events.ReservationState
	past     map[domain.AccountKey][]pastAccount // each account after each of its events
	crossed  map[simKey]string
}

// checkAccounts compares the accounts and the reservations with the log, in which each grant is checked in its turn.
func (m *model) checkAccounts() {
	f := accountFold{m, map[domain.AccountKey]simAccount{}, map[domain.ReservationKey]events.ReservationState{}, map[domain.AccountKey][]pastAccount{}, map[simKey]string{}}
	for _, p := range m.s.plan.partitions {
		for i := range m.s.db.rows[p] {
			f.add(&m.s.db.rows[p][i])
		}
	}
	if !maps.Equal(f.accounts, m.s.db.accounts) {
		m.s.fail("the accounts are %v, not %v", m.s.db.accounts, f.accounts)
	}
	same := func(a, b events.ReservationState) bool {
		a.Limit, b.Limit = nil, nil
		return a.ExpiresAt.Equal(b.ExpiresAt) && a.State == b.State && a.Amount == b.Amount && a.HeldAt == b.HeldAt && a.EndedAt == b.EndedAt && a.EventID == b.EventID && a.Committed == b.Committed
	}
	if !maps.EqualFunc(f.reserved, m.s.db.reserved, same) {
		m.s.fail("the reservations are %v, not %v", m.s.db.reserved, f.reserved)
	}
	f.checkDenials()
	f.checkCrossings()
	for i := range m.sets {
		m.checkTogether(&m.sets[i])
	}
}

func (f *accountFold) add(row *simRow) {
	var err error
	switch row.subject {
	case events.UsageValidated:
		var v events.Validated
		if v, err = codec.VerdictOf(&events.Envelope{Subject: row.subject, Payload: row.payload()}); err == nil && !v.Admitted {
			f.change(row, v.Feature, v.PeriodKey, v.Amount, 0)
		}
	case events.UsageAdmitted:
		var u events.Admitted
		if u, err = codec.AdmittedOf(row.payload()); err == nil {
			f.admit(row, &u)
		}
	case events.ReservationHeld, events.ReservationExtended, events.ReservationReleased, events.ReservationExpired:
		var r events.Reservation
		if err = json.Unmarshal(row.payload(), &r); err == nil {
			f.reserve(row, &r)
		}
	}
	if err != nil {
		f.m.s.fail("the event at %s cannot be read: %v", row.at, err)
	}
}

func (f *accountFold) change(row *simRow, feature, period string, used, held int64) simAccount {
	k := domain.AccountKey{TenantID: row.key.tenant, Feature: feature, PeriodKey: period}
	f.crossing(row, k, f.accounts[k].used, f.accounts[k].used+used)
	f.accounts[k] = simAccount{f.accounts[k].used + used, f.accounts[k].held + held}
	f.past[k] = append(f.past[k], pastAccount{f.accounts[k], row.at.Number})
	return f.accounts[k]
}

func (f *accountFold) admit(row *simRow, u *events.Admitted) {
	g := &u.Admitted
	if g.By == events.ByCommit {
		r := f.held(row, g.ReservationID)
		if g.HeldAmount != r.Amount || u.Amount > r.Amount && g.Overage == "" {
			f.m.s.fail("%s commits %d and releases %d of %d", row.at, u.Amount, g.HeldAmount, r.Amount)
		}
		r.EventID, r.Committed = u.EventID, u.Amount
		f.end(row, r, events.StateCommitted)
	}
	sums := f.change(row, u.Feature, g.PeriodKey, u.Amount, -g.HeldAmount)
	f.record(row, g.Used, g.Held, sums)
	if g.By != events.ByCommit {
		f.checkGranted(row, u.Feature, g.Limit, sums)
	}
}

func (f *accountFold) reserve(row *simRow, r *events.Reservation) {
	k, held := domain.ReservationKey{TenantID: row.key.tenant, ID: r.ReservationID}, int64(0)
	switch row.subject {
	case events.ReservationHeld:
		if _, twice := f.reserved[k]; twice {
			f.m.s.fail("%s holds %s again", row.at, r.ReservationID)
		}
		held = r.Amount
		f.reserved[k] = events.ReservationState{ID: r.ReservationID, Amount: r.Amount, State: events.StateHeld, ExpiresAt: r.ExpiresAt, HeldAt: row.at.Number}
	case events.ReservationExtended:
		now := f.held(row, r.ReservationID)
		if r.ExpiresAt.Before(now.ExpiresAt) {
			f.m.s.fail("%s shortens %s", row.at, r.ReservationID)
		}
		now.ExpiresAt = r.ExpiresAt
		f.reserved[k] = now
	default:
		held = -r.Amount
		now := f.held(row, r.ReservationID)
		state := events.StateReleased
		if row.subject == events.ReservationExpired {
			state = events.StateExpired
			if row.occurred().Before(now.ExpiresAt) {
				f.m.s.fail("%s expires before %s", row.at, now.ExpiresAt)
			}
		}
		f.end(row, now, state)
	}
	sums := f.change(row, r.Feature, r.PeriodKey, 0, held)
	f.record(row, r.Used, r.Held, sums)
	if row.subject == events.ReservationHeld {
		f.checkGranted(row, r.Feature, r.Limit, sums)
	}
}

// held returns the reservation of an event, which must be held.
func (f *accountFold) held(row *simRow, id string) events.ReservationState {
	now := f.reserved[domain.ReservationKey{TenantID: row.key.tenant, ID: id}]
	if now.State != events.StateHeld {
		f.m.s.fail("%s is about %s, which is %q", row.at, id, now.State)
	}
	return now
}

func (f *accountFold) end(row *simRow, now events.ReservationState, state string) {
	f.m.s.count("reservations " + strings.ToLower(state))
	now.State, now.EndedAt = state, row.at.Number
	f.reserved[domain.ReservationKey{TenantID: row.key.tenant, ID: now.ID}] = now
}

// record compares the account that an event records with the sums.
func (f *accountFold) record(row *simRow, used, held *json.Number, sums simAccount) {
	if used == nil || held == nil || used.String() != fmt.Sprint(sums.used) || held.String() != fmt.Sprint(sums.held) {
		f.m.s.fail("%s records the account %v and %v, not %+v", row.at, used, held, sums)
	}
}

// itemOf returns the usage of a recorded event.
func itemOf(r *simRow) usageItem {
	if r.subject == events.UsageAdmitted {
		u, err := codec.AdmittedOf(r.payload())
		if err != nil {
			panic(err)
		}
		return usageItem{id: u.EventID, feature: u.Feature, amount: u.Amount}
	}
	if r.subject == events.UsageCorrected || r.subject == events.UsageRetracted {
		return correctionOf(r)
	}
	u, err := codec.UsageOf(r.payload())
	if err != nil {
		panic(err)
	}
	return usageItem{id: u.EventID, feature: u.Feature, amount: u.Amount}
}
