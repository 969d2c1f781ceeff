package simulation

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// Plans whose limits change: the histories of tenants are those of the changes that were committed, and decisions read them through
// the cache of the service.

// Features with HARD limits, which several clients reach.
const (
	featureHeld     = "held"     // consumed and held
	featureEnforced = "enforced" // usage that the plan enforces
)

// planLimits are the limits of a plan.
type planLimits struct {
	held, enforced int64
	soft           bool // of the feature that is consumed and held; without a limit if held is 0
}

var firstLimits = planLimits{held: 40, enforced: 25}

func (l planLimits) grants() (list []domain.Grant) {
	limit := &l.held
	if l.held == 0 {
		limit = nil
	}
	behavior := map[bool]string{true: domain.LimitSoft, false: domain.LimitHard}[l.soft]
	return append(list,
		domain.Grant{Type: domain.FeatureQuota, Entitlement: domain.Entitlement{Feature: featureHeld, Limit: limit, LimitBehavior: behavior,
			ResetPeriod: domain.ResetMonthly, OnIngest: domain.OnIngestRecord}},
		domain.Grant{Type: domain.FeatureQuota, Entitlement: domain.Entitlement{Feature: featureEnforced, Limit: &l.enforced,
			LimitBehavior: domain.LimitHard, ResetPeriod: domain.ResetMonthly, OnIngest: domain.OnIngestEnforce}})
}

// of returns the limit of a feature, and whether it is HARD; 0: no limit.
func (l planLimits) of(feature string) (limit int64, hard bool) {
	if feature == featureEnforced {
		return l.enforced, true
	}
	return l.held, !l.soft
}

// limitChange is a change of a tenant's plan.
type limitChange struct {
	tenant   uuid.UUID
	position int64
	limits   planLimits
}

// planChange is a request for one, after a pause.
type planChange struct {
	tenant uuid.UUID
	limits planLimits
	pause  time.Duration
}

// changePlan draws the changes of the plans of the tenants that others use.
func changePlan(rng *rand.Rand, tenants []uuid.UUID) (list []planChange) {
	for range 1 + rng.IntN(6) {
		c := planChange{tenants[rng.IntN(2)], planLimits{held: []int64{20, 40, 80}[rng.IntN(3)],
			enforced: []int64{10, 25, 60}[rng.IntN(3)]}, time.Duration(rng.IntN(3000)) * time.Millisecond}
		if rng.IntN(3) == 0 {
			c.limits.soft, c.limits.held = true, []int64{0, 20, 40}[rng.IntN(3)]
		}
		list = append(list, c)
	}
	return list
}

// planClient changes plans as catalogue.Commands does: the event and the row of the history in one transaction under the head's lock.
// After a crash it goes on.
func (s *sim) planClient(changes []planChange) {
	p := s.newProc("plans")
	p.start = func() { s.planClient(changes) }
	to := s.storeOf(p)
	p.run(func() {
		for n, c := range changes {
			if p.do(&operation{what: "begin a change of a plan", effect: func(opOutcome) error {
				p.start = func() { s.planClient(changes[n:]) }
				return nil
			}}) != nil || !p.idle("think", c.pause, never) {
				return
			}
			for changeLimits(p, to, c) != nil {
				if !p.idle("pause", 200*time.Millisecond, never) {
					return
				}
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; p.start = nil; return nil }})
	})
}

func changeLimits(p *proc, in *store.Store, c planChange) error {
	sub := subscriptionOf(c.tenant, c.limits, false)
	payload := mustJSON(events.Subscription(*sub))
	return in.ChangeCatalogue(p.ctx, c.tenant, func(tx catalogue.Tx) error {
		id := p.newID()
		_, err := tx.Append(events.Pending{EventID: id, DedupeKey: events.KeyEvent(id), Subject: events.SubscriptionChanged,
			TenantID: c.tenant, Residency: events.ResidencyUnspecified,
			CorrelationID: c.tenant, Actor: actors[0], OccurredAt: time.Now(), Payload: payload})
		return err
	})
}

// savesHistory begins the statement that writes a row of the history.
const savesHistory = "INSERT INTO subscription_history"

// saveHistory is the effect of COMMIT on the histories, whose rows come in the order of positions.
func (tx *simTx) saveHistory(args []any) *simRows {
	var sub domain.Subscription
	event := args[0].(pgx.NamedArgs)
	if err := json.Unmarshal(event["event"].(json.RawMessage), &sub); err != nil {
		panic(err)
	}
	held, enforced := sub.Grant(featureHeld), sub.Grant(featureEnforced)
	c := limitChange{sub.TenantID, event["position"].(int64),
		planLimits{enforced: *enforced.Limit, soft: held.LimitBehavior == domain.LimitSoft}}
	if held.Limit != nil {
		c.limits.held = *held.Limit
	}
	tx.needHead(c.tenant, "the plan")
	return tx.later(func(tx *simTx) {
		tx.p.s.count("plan changed")
		tx.p.s.db.limits = append(tx.p.s.db.limits, c)
	})
}

// limitsAt returns the limits in force for an event at a position.
func (db *simDB) limitsAt(tenant uuid.UUID, position int64) planLimits {
	now := firstLimits
	for _, c := range db.limits {
		if c.tenant == tenant && c.position <= position {
			now = c.limits
		}
	}
	return now
}

// history returns the history of a tenant. All usage is granted before lateFrom.
func (db *simDB) history(tenant uuid.UUID) (list domain.History) {
	from := []int64{0, lateFrom}
	for _, c := range db.limits {
		if c.tenant == tenant {
			from = append(from, c.position)
		}
	}
	slices.Sort(from)
	for _, at := range slices.Compact(from) {
		list = append(list, domain.HistoryEntry{FromPosition: at, EffectiveFrom: time.Unix(0, 0),
			Subscription: subscriptionOf(tenant, db.limitsAt(tenant, at), at >= lateFrom)})
	}
	return list
}

type snapshotKey struct {
	tenant uuid.UUID
	limits planLimits
	late   bool
}

// snapshots keeps subscriptions, which no one changes, so that each is made once. snapshotTexts keeps their texts.
var snapshots, snapshotTexts sync.Map

// textOf returns the text of a subscription of subscriptionOf.
func textOf(s *domain.Subscription) *string {
	text, ok := snapshotTexts.Load(s)
	if !ok {
		made := string(mustJSON(s))
		text, _ = snapshotTexts.LoadOrStore(s, &made)
	}
	return text.(*string)
}

// subscriptionOf returns a tenant's subscription; late: it does not grant featureLate.
func subscriptionOf(tenant uuid.UUID, limits planLimits, late bool) *domain.Subscription {
	key := snapshotKey{tenant, limits, late}
	if known, ok := snapshots.Load(key); ok {
		return known.(*domain.Subscription)
	}
	s := &domain.Subscription{ID: tenant, TenantID: tenant, Plan: "p", Status: domain.SubscriptionActive, Entitlements: limits.grants()}
	for _, f := range []string{featureCounts, featureFixed, featurePoison, featureBoom, featureRefused, featureHuge, featureLate} {
		if f != featureLate || !late {
			s.Entitlements = append(s.Entitlements,
				domain.Grant{Entitlement: domain.Entitlement{Feature: f, ResetPeriod: domain.ResetMonthly}, Type: domain.FeatureQuota})
		}
	}
	kept, _ := snapshots.LoadOrStore(key, s)
	return kept.(*domain.Subscription)
}

// denial is a refusal for a limit, with the head before the request was sent and when it was answered.
type denial struct {
	of         limitRequest
	quota      domain.Quota
	sent, till int64
	found      bool // the account was as it says
}

// checkLimit compares the limit of a denial with those that were in force between its request and its answer.
func (m *model) checkLimit(d *denial) {
	matches := func(l planLimits) bool {
		limit, hard := l.of(d.of.feature())
		return hard && d.quota.Limit.IsInt64() && d.quota.Limit.Int64() == limit
	}
	for at := d.sent; at <= d.till; at++ {
		if matches(m.s.db.limitsAt(d.of.tenant, at)) {
			return
		}
	}
	m.s.fail("%+v was refused by the limit %s, which no plan had between positions %d and %d", d.of, d.quota.Limit, d.sent, d.till)
}

// together names the keys of a request with several items.
func (r *limitRequest) together() (keys []string) {
	for i := range r.items {
		if r.holds() {
			keys = append(keys, events.KeyHold(r.items[i].id))
		} else {
			keys = append(keys, events.KeyUsage(r.items[i].id))
		}
	}
	return keys
}

func (r *limitRequest) holds() bool { return strings.HasPrefix(r.kind, "hold") }

// checkTogether checks that the log has all items of a request, one behind the other, or none. They are always sent together.
func (m *model) checkTogether(r *limitRequest) (all bool) {
	var rows []*simRow
	keys := r.together()
	for _, key := range keys {
		if row := m.s.db.keys[simKey{r.tenant, key}]; row != nil {
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 && len(rows) < len(keys) {
		m.s.fail("%+v: the log has %d of %d items, the first at %s", *r, len(rows), len(keys), rows[0].at)
		return false
	}
	for i, row := range rows {
		if row.at.Number != rows[0].at.Number+int64(i) {
			m.s.fail("%+v: item %d is at %s, and the first one at %s", *r, i, row.at, rows[0].at)
		}
	}
	return len(rows) > 0
}
