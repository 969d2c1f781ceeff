package simulation

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/verify"
)

// checkLimits passes the log to the checks of meterplex verify, and compares accounts, reservations and denials with them. Plans and
// thresholds begin before the log.
func (m *model) checkLimits() {
	db, accounts, reserved := m.s.db, map[domain.AccountKey]verify.Sums{}, map[domain.ReservationKey]verify.Reservation{}
	for _, p := range m.s.plan.partitions {
		o := verify.NewReplay(p, int64(len(db.rows[p])), time.Now())
		for _, tenant := range m.s.plan.tenants {
			if events.PartitionOf(tenant) != p {
				continue
			}
			o.Before(tenant, int16(events.SubscriptionCreated), mustJSON(subscriptionOf(tenant, firstLimits, false)))
			for _, t := range thresholdsOf(tenant) {
				o.Before(tenant, int16(events.ThresholdChanged), mustJSON(t.Event(false)))
			}
		}
		m.findDenials(o, p, 0)
		for i := range db.rows[p] {
			v := db.rows[p][i].values
			row := [][]byte{v[colPosition], v[colPrevious], v[colRecorded], v[colOccurred], v[colEventID], v[colTenant], v[colCausation],
				v[colCorrelation], v[colEpoch], v[colOrigin], v[colTopic], v[colSubject], v[colKey], v[colHash], v[colBody], v[colReplay]}
			if err := o.Add(row); err != nil {
				m.s.fail("%s cannot be read: %v", db.rows[p][i].at, err)
			}
			m.findDenials(o, p, int64(i+1))
		}
		for _, fault := range o.Faults() {
			m.s.fail("partition %d: %s", p, fault)
		}
		for k, a := range o.Accounts() {
			accounts[domain.AccountKey{TenantID: k.Tenant, Feature: k.Feature, PeriodKey: k.Period}] = a
		}
		for k, r := range o.Reservations() {
			m.s.count("reservations " + strings.ToLower(r.State))
			reserved[domain.ReservationKey{TenantID: k.Tenant, ID: k.ID}] = r
		}
	}
	if !maps.EqualFunc(db.accounts, accounts, func(a simAccount, b verify.Sums) bool {
		return fmt.Sprint(a.used) == b.Used && fmt.Sprint(a.held) == b.Held
	}) {
		m.s.fail("the accounts are %v, not %v", db.accounts, accounts)
	}
	same := func(a events.ReservationState, b verify.Reservation) bool {
		return b == verify.Reservation{State: a.State, Amount: a.Amount, Expires: a.ExpiresAt.UTC(), HeldAt: a.HeldAt, EndedAt: a.EndedAt,
			EventID: a.EventID, Committed: a.Committed}
	}
	if !maps.EqualFunc(db.reserved, reserved, same) {
		m.s.fail("the reservations are %v, not %v", db.reserved, reserved)
	}
	for i := range m.denials {
		if d := &m.denials[i]; !d.found {
			m.s.fail("%+v was refused with used %s and held %s, which the account had at no position from %d to %d",
				d.of, d.quota.Used, d.quota.Held, d.sent, d.till)
		}
	}
	for i := range m.sets {
		m.checkTogether(&m.sets[i])
	}
}

// findDenials finds the denials that show their accounts as they are after a row between their requests and their answers.
func (m *model) findDenials(o *verify.Replay, p int16, row int64) {
	for i := range m.denials {
		d := &m.denials[i]
		if events.PartitionOf(d.of.tenant) != p || row < d.sent || row > d.till {
			continue
		}
		now := o.Account(verify.Account{Tenant: d.of.tenant, Feature: d.of.feature(), Period: d.quota.PeriodKey})
		d.found = d.found || d.quota.Used.String() == now.Used && d.quota.Held.String() == now.Held
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
