package domain

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
)

// chargeModel charges usage event by event, with its own states of subscriptions and its own arithmetic. Positions are hours of a month.
type chargeModel struct {
	t       *rapid.T
	states  []modelState
	events  []modelEvent
	subs    int
	history History // that the code under test sees
}

// modelState is what is in force from a time on, as known from a position on.
type modelState struct {
	position     int64
	from         time.Time
	subscription int // 0: none
	version      int64
	trial, paid  bool
}

// modelEvent is usage, or the difference of a correction, with its grant.
type modelEvent struct {
	position, grant int64
	subscription    int
	amount          int64
}

const modelMonth = "2026-05"

func modelTime(hour int64) time.Time {
	return time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(hour) * time.Hour)
}

func modelID(n int) uuid.UUID { return uuid.UUID{byte(n)} }

// modelPrices are the versions of the price.
func modelPrices() map[PriceVersion]*Price {
	five, ten := int64(5), int64(10)
	list := []*Price{{Model: PricePerUnit, MicroUnits: &five}, {Model: PricePackage, PackageSize: 7, MicroUnits: &ten},
		{Model: PriceFlat, MicroUnits: &ten},
		{Model: PriceGraduated, Tiers: []events.PriceTier{{UpTo: &ten, MicroUnits: 0}, {MicroUnits: 3, FlatMicroUnits: 2}}},
		{Model: PriceVolume, Tiers: []events.PriceTier{{UpTo: &five, MicroUnits: 9}, {MicroUnits: 2, FlatMicroUnits: 1}}}}
	found := map[PriceVersion]*Price{}
	for i, p := range list {
		p.Key, p.Version, p.Currency = "p", int64(i+1), "EUR"
		found[PriceVersion{"p", p.Version}] = p
	}
	return found
}

// cost is the cost of n units by the version of the price, unit by unit.
func modelCost(version, n int64) (cost int64) {
	sign := int64(1)
	if n < 0 {
		sign, n = -1, -n
	}
	for unit := int64(1); unit <= n; unit++ {
		switch version {
		case 1:
			cost += 5
		case 2:
			cost += map[bool]int64{true: 10}[unit%7 == 1]
		case 3:
			cost = 10
		case 4:
			cost += map[bool]int64{true: 3}[unit > 10] + map[bool]int64{true: 2}[unit == 11]
		default:
			if cost = 9 * unit; unit > 5 {
				cost = 2*unit + 1
			}
		}
	}
	return sign * cost
}

// change draws a change of the subscription at a position.
func (m *chargeModel) change(position int64) {
	last := modelState{}
	if len(m.states) > 0 {
		last = m.states[len(m.states)-1]
	}
	next := last
	next.position, next.from = position, modelTime(position)
	switch kind := rapid.IntRange(0, 3).Draw(m.t, "change"); {
	case last.subscription == 0:
		m.subs++
		next = modelState{position: position, subscription: m.subs,
			from:    modelTime(position + rapid.Int64Range(-300, 100).Draw(m.t, "start")),
			version: rapid.Int64Range(1, 5).Draw(m.t, "version")}
		next.trial, next.paid = rapid.Bool().Draw(m.t, "trial"), rapid.IntRange(0, 3).Draw(m.t, "paid") == 0
	case kind == 0:
		next.subscription = 0
	case kind == 1:
		next.trial = !last.trial
	default:
		next.version = rapid.Int64Range(1, 5).Draw(m.t, "version")
	}
	m.states = append(m.states, next)
	e := HistoryEntry{FromPosition: next.position, EffectiveFrom: next.from}
	if next.subscription > 0 {
		e.Subscription = &Subscription{ID: modelID(next.subscription), Status: map[bool]string{true: SubscriptionTrialing,
			false: SubscriptionActive}[next.trial],
			Entitlements: []Grant{{Entitlement: Entitlement{Feature: "f", ResetPeriod: ResetMonthly, Price: "p", ChargeTrial: next.paid},
				Type: FeatureMetered, PriceVersion: next.version}}}
	}
	m.history = append(m.history, e)
}

// use draws usage, also late usage and usage of before, and compares the grant of its verdict with the model's.
func (m *chargeModel) use(position int64) {
	at := modelTime(max(0, position-rapid.Int64Range(0, 200).Draw(m.t, "late")))
	v, refusal := Decide(m.history, position, "f", at)
	var in, last, first *modelState
	for i := range m.states {
		s := &m.states[i]
		if last = s; !s.from.After(at) {
			in = s
		}
		if s.subscription > 0 && (first == nil || s.from.Before(first.from)) {
			first = s
		}
	}
	if in == nil || in.subscription == 0 {
		in = last
	}
	if in == nil || in.subscription == 0 {
		if refusal == nil {
			m.t.Fatalf("usage at %s is accepted", at)
		}
		return
	}
	e := modelEvent{position, in.position, in.subscription, rapid.Int64Range(1, 9).Draw(m.t, "amount")}
	if at.Before(first.from) {
		e.grant = events.GrantBefore
	}
	if refusal != nil || v.Grant != e.grant || v.SubscriptionID != modelID(e.subscription) ||
		m.history.GrantOf(position, at, v.SubscriptionID) != e.grant {
		m.t.Fatalf("usage of %s at %d is charged by grant %d of %s, %v; not by %d of %d", at, position, v.Grant, v.SubscriptionID, refusal,
			e.grant, e.subscription)
	}
	m.events = append(m.events, e)
}

// correct takes back a part of an earlier event: its difference belongs to the grant of its target.
func (m *chargeModel) correct(position int64) {
	if len(m.events) > 0 {
		e := m.events[rapid.IntRange(0, len(m.events)-1).Draw(m.t, "target")]
		e.position, e.amount = position, -rapid.Int64Range(0, max(0, e.amount)).Draw(m.t, "less")
		m.events = append(m.events, e)
	}
}

// charge charges the events up to a position one by one, in the order of the starts of their grants.
func (m *chargeModel) charge(upTo int64) (total int64, byGrant map[int64]int64) {
	byGrant = map[int64]int64{}
	list := slices.DeleteFunc(slices.Clone(m.events), func(e modelEvent) bool { return e.position > upTo || e.grant == events.GrantBefore })
	state := func(e modelEvent) modelState {
		return m.states[slices.IndexFunc(m.states, func(s modelState) bool { return s.position == e.grant })]
	}
	slices.SortStableFunc(list, func(a, b modelEvent) int {
		if n := state(a).from.Compare(state(b).from); n != 0 {
			return n
		}
		return int(a.grant - b.grant)
	})
	axis := int64(0)
	for _, e := range list {
		if s := state(e); !s.trial || s.paid {
			cost := modelCost(s.version, axis+e.amount) - modelCost(s.version, axis)
			axis, total = axis+e.amount, total+cost
			byGrant[e.grant] += cost
		}
	}
	return total, byGrant
}

// sums are the sums by grant of the events behind a position, up to another.
func (m *chargeModel) sums(after, upTo int64) (list []GrantSum) {
	for _, e := range m.events {
		if e.position <= after || e.position > upTo {
			continue
		}
		at := slices.IndexFunc(list, func(s GrantSum) bool { return s.Grant == e.grant && s.SubscriptionID == modelID(e.subscription) })
		if at < 0 {
			list = append(list, GrantSum{Feature: "f", SubscriptionID: modelID(e.subscription), Grant: e.grant, Amount: new(big.Int)})
			at = len(list) - 1
		}
		list[at].Amount.Add(list[at].Amount, big.NewInt(e.amount))
		list[at].EventCount++
	}
	return list
}

// check compares the charges of sums with the model's, and returns the hash of the lines as known at a position.
func (m *chargeModel) check(what string, sums []GrantSum, upTo, known int64) string {
	lines := m.history.Lines(sums, known, modelMonth)
	if err := ChargeLines(lines, modelPrices()); err != nil {
		m.t.Fatal(err)
	}
	total, byGrant := m.charge(upTo)
	sum := new(big.Int)
	for i := range lines {
		l := &lines[i]
		sum.Add(sum, l.MicroUnits)
		if want := byGrant[l.Grant]; l.MicroUnits.Int64() != want {
			m.t.Fatalf("%s: grant %d costs %s, event by event %d", what, l.Grant, l.MicroUnits, want)
		}
	}
	if sum.Int64() != total {
		m.t.Fatalf("%s: %s, event by event %d", what, sum, total)
	}
	hash, err := ChargesHash(lines, Closing{PeriodKey: modelMonth, Snapshot: 1}, events.Position{Number: known})
	if err != nil {
		m.t.Fatal(err)
	}
	return hash
}

// Histories of plans, prices, trials, late usage and corrections cost as much as their events one by one. Charges of a snapshot stay the
// same, whatever changes later; with its adjustments they are those of the next close.
func TestP8_ChargesAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &chargeModel{t: rt}
		cuts, hashes := []int64{}, []string{}
		steps := rapid.Int64Range(1, 60).Draw(rt, "steps")
		for position := int64(1); position <= steps; position++ {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1:
				m.change(position)
			case 2:
				m.correct(position)
			case 3:
				cuts, hashes = append(cuts, position), append(hashes, m.check("a close", m.sums(0, position), position, position))
			default:
				m.use(position)
			}
		}
		m.check("open", m.sums(0, steps), steps, steps)
		for i, cut := range cuts {
			if hash := m.check("a snapshot", m.sums(0, cut), cut, cut); hash != hashes[i] {
				rt.Fatalf("the charges of the snapshot at %d changed", cut)
			}
			all := m.sums(0, cut)
			for _, late := range m.sums(cut, steps) {
				at := slices.IndexFunc(all, func(s GrantSum) bool {
					return s.Grant == late.Grant && s.SubscriptionID == late.SubscriptionID
				})
				if at < 0 {
					all = append(all, late)
					continue
				}
				all[at].Amount = new(big.Int).Add(all[at].Amount, late.Amount)
			}
			m.check("a snapshot and its adjustments", all, steps, steps)
		}
	})
}
