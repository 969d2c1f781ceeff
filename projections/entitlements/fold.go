// Package entitlements is the projection entitlement_reads: the grants and the usage of
// tenants. Its cache answers entitlement checks without a query.
package entitlements

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// V1 is the version of the fold in this file.
const V1 = projections.ProjectionEntitlements + "/v1"

//go:embed write.sql
var replaceGrants string

// addUsed adds a batch's sums to the usage and to the held amounts.
const addUsed = `
INSERT INTO entitlement_usage AS u (generation, tenant_id, feature, period_key, used, held)
SELECT $1::int, n.tenant_id, n.feature, n.period_key, n.used::numeric, n.held::numeric
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[]) AS n (tenant_id, feature, period_key, used, held)
ON CONFLICT (generation, tenant_id, feature, period_key) DO UPDATE SET used = u.used + excluded.used, held = u.held + excluded.held`

// planAnew is for reads of grants, which are rare: a session's plan from a time without
// grants would read all grants of a generation.
const planAnew = `SET LOCAL plan_cache_mode = force_custom_plan`

// Handler is the handler that maintains tenants' grants and their usage. It reads
// the log itself, since grants and usage must arrive in the order in which they were
// recorded.
type Handler struct {
	Folds projections.Versions[Fold]
	NewID func() uuid.UUID // of events of crossed thresholds
}

// Fold folds one event into a batch's state. It is pure.
type Fold func(state *State, e *events.Envelope) error

// grantedBy is the state of a tenant's grants: the subscription that set them,
// and their rows if this batch changed them. A subscription without grants
// leaves no row, so its removal deletes no row.
type grantedBy struct {
	subscription uuid.UUID
	changed      bool
	grants       []domain.Grant
}

// fold folds a subscription: one that accepts usage replaces the grants, one that no
// longer does removes them if they are its own.
func (g *grantedBy) fold(s *domain.Subscription) {
	switch {
	case s.AcceptsUsage():
		*g = grantedBy{s.ID, true, s.Entitlements}
	case g.subscription == s.ID:
		*g = grantedBy{changed: true}
	}
}

// usedKey is a feature in a period.
type usedKey struct {
	tenant    uuid.UUID
	feature   string
	periodKey string
}

func (k usedKey) compare(o usedKey) int {
	return cmp.Or(bytes.Compare(k.tenant[:], o.tenant[:]), cmp.Compare(k.feature, o.feature), cmp.Compare(k.periodKey, o.periodKey))
}

// sums are the amounts that a batch adds to a feature in a period.
type sums struct{ used, held big.Int } // int64 can overflow within a batch

// State holds the rows that a batch changes while it is folded.
type State struct {
	granted map[uuid.UUID]*grantedBy
	used    map[usedKey]*sums
	parked  map[uuid.UUID]parkedVerdict // by dead letter
	metered map[usedKey][]step          // the changes of METERED features, in the order of the events
	steps   map[usedKey][]step          // those of all features; nil: nothing in the batch needs them
}

// entitlementSubjects are the subjects that the folds use.
func entitlementSubjects() []events.Subject {
	return []events.Subject{events.SubscriptionCreated, events.SubscriptionChanged, events.UsageAdmitted, events.UsageValidated,
		events.DeadLetterClosed,
		events.ReservationHeld, events.ReservationReleased, events.ReservationExpired, events.ThresholdChanged}
}

// FoldV1 is the fold entitlement_reads/v1: a subscription sets a tenant's grants, a verdict adds to the usage, and the
// discard of a dead letter subtracts the verdict in it, which the figures never count. Admitted usage counts when it is
// recorded, as its account does, and not again with its verdict; the discard of a dead letter leaves it as it is: it was granted.
// The amounts that reservations hold are summed, too: the rows equal the accounts behind limits at the same position.
// Reaggregated is left out: the verdict inside it was counted here as UsageValidated.
func FoldV1(f *State, e *events.Envelope) error {
	switch e.Subject {
	case events.SubscriptionCreated, events.SubscriptionChanged:
		var s domain.Subscription
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			return fmt.Errorf("read a subscription: %w", err)
		}
		f.Granted(e.TenantID, &s)
	case events.UsageAdmitted:
		admitted, err := codec.AdmittedOf(e.Payload)
		if err != nil {
			return err
		}
		f.count(e, admitted.Admitted.FeatureType, admitted.Feature, admitted.Admitted.PeriodKey, admitted.Amount)
		if admitted.Admitted.FeatureType == domain.FeatureQuota {
			f.Held(e.TenantID, admitted.Feature, admitted.Admitted.PeriodKey, -admitted.Admitted.HeldAmount)
		}
	case events.ReservationHeld:
		return f.reserve(e, 1)
	case events.ReservationReleased, events.ReservationExpired:
		return f.reserve(e, -1)
	case events.UsageValidated:
		v, err := codec.VerdictOf(e)
		if err == nil && !v.Admitted {
			f.count(e, v.FeatureType, v.Feature, v.PeriodKey, v.Amount)
		}
		return err
	case events.DeadLetterClosed:
		return f.discard(e)
	}
	return nil
}

// reserve adds the amount of a reservation to the held ones, or subtracts it. METERED features have no account that holds it.
func (f *State) reserve(e *events.Envelope, sign int64) error {
	var r events.Reservation
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return fmt.Errorf("read a reservation: %w", err)
	}
	if r.FeatureType == domain.FeatureQuota {
		f.Held(e.TenantID, r.Feature, r.PeriodKey, sign*r.Amount)
	}
	return nil
}

// Granted sets the grants of a tenant to those of a subscription, or removes them if the
// subscription that they come from no longer accepts usage.
func (f *State) Granted(tenant uuid.UUID, s *domain.Subscription) {
	f.granted[tenant].fold(s)
}

// Used adds an amount to a tenant's usage of a feature in a period.
func (f *State) Used(tenant uuid.UUID, feature, periodKey string, amount int64) {
	sum := &f.sums(usedKey{tenant, feature, periodKey}).used
	sum.Add(sum, big.NewInt(amount))
}

// Held adds an amount to those that a tenant's reservations hold of a feature in a period.
func (f *State) Held(tenant uuid.UUID, feature, periodKey string, amount int64) {
	sum := &f.sums(usedKey{tenant, feature, periodKey}).held
	sum.Add(sum, big.NewInt(amount))
}

func (f *State) sums(key usedKey) *sums {
	s := f.used[key]
	if s == nil {
		s = new(sums)
		f.used[key] = s
	}
	return s
}

// Apply folds the batch and writes the result, each table in one statement.
func (h *Handler) Apply(ctx context.Context, tx pgx.Tx, in projections.Generation, batch []events.Envelope) (projections.Result, error) {
	fold, err := h.Folds.Of(in.FoldVersion)
	if err != nil {
		return projections.Result{}, err
	}
	granted, err := h.load(ctx, tx, in, batch)
	if err != nil {
		return projections.Result{}, err
	}
	parked, err := loadParked(ctx, tx, batch)
	if err != nil {
		return projections.Result{}, err
	}
	f := State{granted: granted, used: make(map[usedKey]*sums), parked: parked}
	changes := changesOf(batch)
	if len(changes) > 0 {
		f.steps = map[usedKey][]step{}
	}
	var result projections.Result
	for i := range batch {
		if failure := projections.Try(batch[i], func() error { return fold(&f, &batch[i]) }); failure != nil {
			result.Failed = append(result.Failed, *failure)
		}
	}
	list, err := h.write(ctx, tx, in, &f)
	if err == nil && len(list) > 0 {
		result.FollowUps, err = h.crossings(ctx, tx, &f, list)
	}
	if err != nil || len(changes) == 0 {
		return result, err
	}
	above, err := h.above(ctx, tx, in, &f, changes)
	result.FollowUps = append(result.FollowUps, above...)
	return result, err
}

const readGrantedBy = `SELECT DISTINCT tenant_id, subscription_id FROM entitlement_grants WHERE generation = $1
	AND tenant_id = ANY ($2::uuid[])`

// load reads the present state of the tenants whose subscriptions are in the batch.
func (h *Handler) load(ctx context.Context, tx pgx.Tx, in projections.Generation, batch []events.Envelope) (map[uuid.UUID]*grantedBy,
	error) {
	granted := make(map[uuid.UUID]*grantedBy)
	for i := range batch {
		if s := batch[i].Subject; s == events.SubscriptionCreated || s == events.SubscriptionChanged {
			granted[batch[i].TenantID] = new(grantedBy)
		}
	}
	if len(granted) == 0 {
		return granted, nil
	}
	if _, err := tx.Exec(ctx, planAnew); err != nil {
		return nil, fmt.Errorf("plan the statement again: %w", err)
	}
	rows, err := tx.Query(ctx, readGrantedBy, in.Number, slices.Collect(maps.Keys(granted)))
	if err != nil {
		return nil, fmt.Errorf("read entitlement_grants: %w", err)
	}
	var tenant, subscription uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&tenant, &subscription}, func() error {
		granted[tenant].subscription = subscription
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read entitlement_grants: %w", err)
	}
	return granted, nil
}

// write writes the rows, and reads the METERED features whose thresholds they may cross, in one round trip.
func (h *Handler) write(ctx context.Context, tx pgx.Tx, in projections.Generation, f *State) ([]*watched, error) {
	var c entitlementColumns
	for tenant, g := range f.granted {
		if g.changed {
			c.replace(tenant, g)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.used), usedKey.compare) {
		c.users, c.usedFeatures, c.periods = append(c.users, key.tenant), append(c.usedFeatures, key.feature),
			append(c.periods, key.periodKey)
		c.used, c.held = append(c.used, f.used[key].used.String()), append(c.held, f.used[key].held.String())
	}
	var b pgx.Batch
	if len(c.replaced) > 0 {
		b.Queue(replaceGrants, in.Number, c.replaced, c.tenants, c.features, c.subscriptions, c.kinds, c.units,
			c.limits, c.behaviors, c.resets, c.onIngest)
	}
	if len(c.used) > 0 {
		b.Queue(addUsed, in.Number, c.users, c.usedFeatures, c.periods, c.used, c.held)
	}
	if b.Len() == 0 {
		return nil, nil
	}
	keys, args := f.watching(in)
	if len(keys) == 0 {
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return nil, fmt.Errorf("write entitlements: %w", err)
		}
		return nil, nil
	}
	written := b.Len()
	b.Queue(readWatched, args...)
	return sendWatching(tx.SendBatch(ctx, &b), written, keys)
}

// sendWatching reads the results of statements, and of readWatched behind them.
func sendWatching(results pgx.BatchResults, written int, keys []usedKey) (list []*watched, err error) {
	for range written {
		if _, err := results.Exec(); err != nil {
			return nil, errors.Join(fmt.Errorf("write entitlements: %w", err), results.Close())
		}
	}
	rows, err := results.Query()
	if err == nil {
		list, err = scanWatched(rows, keys)
	}
	return list, errors.Join(err, results.Close())
}

// entitlementColumns are the rows of the statement, column by column.
type entitlementColumns struct {
	replaced                    []uuid.UUID // tenants whose grants are replaced
	tenants, subscriptions      []uuid.UUID
	features, kinds, units      []string
	limits                      []*int64
	behaviors, resets, onIngest []string
	users                       []uuid.UUID
	usedFeatures, periods       []string
	used, held                  []string
}

func (c *entitlementColumns) replace(tenant uuid.UUID, g *grantedBy) {
	c.replaced = append(c.replaced, tenant)
	first := len(c.features)
	for _, grant := range g.grants {
		if slices.Contains(c.features[first:], grant.Feature) {
			continue // of two the first one counts, as it does for verdicts
		}
		c.tenants, c.subscriptions = append(c.tenants, tenant), append(c.subscriptions, g.subscription)
		c.features, c.kinds, c.units = append(c.features, grant.Feature), append(c.kinds, grant.Type), append(c.units, grant.Unit)
		c.limits = append(c.limits, grant.Limit)
		c.behaviors, c.resets = append(c.behaviors, grant.LimitBehavior), append(c.resets, grant.ResetPeriod)
		c.onIngest = append(c.onIngest, grant.OnIngest)
	}
}

// Statements returns the SQL of the fold and of the cache that runs for each batch, in sessions that keep their
// plans: a plan must not depend on the tables' contents when it is made.
func Statements() map[string]string {
	return map[string]string{"entitlements": addUsed, "grants' feed": readGrantFeed, "thresholds": readWatched}
}
