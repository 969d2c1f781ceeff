package projections_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections/query"
)

// catalogueModel is a tenant whose plans and subscriptions change, and the model: its grants
// by position.
type catalogueModel struct {
	*pipelineFixture
	catalogue *commands.Catalogue
	tenant    uuid.UUID
	plans     map[string]map[string]int64 // limits by feature
	subs      []*domain.Subscription
	since     []grantsAt // in the order of positions
}

type grantsAt struct {
	at     int64
	limits map[string]int64 // nil: no subscription is in force
}

var catalogueFeatures = []string{"shelf_a", "shelf_b", "shelf_c"}

func newCatalogueModel(s *pipelineFixture, rt *rapid.T) *catalogueModel {
	m := &catalogueModel{pipelineFixture: s, plans: map[string]map[string]int64{}, since: []grantsAt{{0, nil}},
		catalogue: &commands.Catalogue{Store: s.store, Now: time.Now, NewID: newID, NewSecret: func() (b [32]byte) { return b }}}
	for _, key := range catalogueFeatures {
		_, _, err := m.catalogue.PutFeature(context.Background(), commands.Request{By: operatorKey}, domain.Feature{LookupKey: key, Name: key, Type: domain.FeatureQuota})
		m.must(err)
	}
	tenant, err := m.catalogue.CreateTenant(context.Background(), commands.Request{By: operatorKey}, commands.CreateTenant{Name: "Acme", Class: "small"})
	m.must(err)
	m.tenant = tenant.ID
	m.putPlan(rt)
	return m
}

// putPlan changes a plan, which no subscription has until it is applied.
func (m *catalogueModel) putPlan(rt *rapid.T) {
	key := rapid.SampledFrom([]string{"one", "two"}).Draw(rt, "plan")
	limits := map[string]int64{}
	plan := domain.Plan{Key: key, Name: key}
	for _, f := range rapid.SliceOfDistinct(rapid.SampledFrom(catalogueFeatures), rapid.ID).Draw(rt, "features") {
		limit := rapid.Int64Range(0, 1<<53-1).Draw(rt, "limit")
		limits[f] = limit
		plan.Entitlements = append(plan.Entitlements, domain.Entitlement{Feature: f, Limit: &limit, LimitBehavior: domain.LimitHard, ResetPeriod: domain.ResetMonthly})
	}
	_, _, err := m.catalogue.PutPlan(context.Background(), commands.Request{By: operatorKey}, plan)
	m.must(err)
	m.plans[key] = limits
}

func (m *catalogueModel) plan(rt *rapid.T) string {
	key := rapid.SampledFrom([]string{"one", "two"}).Draw(rt, "plan")
	if m.plans[key] == nil {
		rt.Skip("no such plan")
	}
	return key
}

// recordGrants records the grants of a change, at the head that it moved.
func (m *catalogueModel) recordGrants(s domain.Subscription, before *domain.Subscription) {
	if !s.AcceptsUsage() && !before.AcceptsUsage() {
		return
	}
	var limits map[string]int64
	if s.AcceptsUsage() {
		limits = map[string]int64{}
		for _, g := range s.Entitlements {
			limits[g.Feature] = *g.Limit
		}
	}
	m.since = append(m.since, grantsAt{m.head(m.tenant).Number, limits})
}

func (m *catalogueModel) begin(rt *rapid.T) {
	key := m.plan(rt)
	s, err := m.catalogue.CreateSubscription(context.Background(), commands.Request{By: operatorKey}, m.tenant,
		commands.CreateSubscription{Plan: key, Status: rapid.SampledFrom([]string{"ACTIVE", "TRIALING", "PAST_DUE"}).Draw(rt, "status")})
	if no := (*domain.Error)(nil); errors.As(err, &no) && no.Code == "subscription_exists" {
		return
	}
	m.must(err)
	if got := limitsOf(s); !maps.Equal(got, m.plans[key]) {
		rt.Fatalf("the snapshot of %v is %v", m.plans[key], got)
	}
	m.subs = append(m.subs, &s)
	m.recordGrants(s, nil)
}

func limitsOf(s domain.Subscription) map[string]int64 {
	limits := map[string]int64{}
	for _, g := range s.Entitlements {
		limits[g.Feature] = *g.Limit
	}
	return limits
}

func (m *catalogueModel) change(rt *rapid.T) {
	if len(m.subs) == 0 {
		rt.Skip("no subscription")
	}
	sub := m.subs[rapid.IntRange(0, len(m.subs)-1).Draw(rt, "subscription")]
	var in commands.ChangeSubscription
	if rapid.Bool().Draw(rt, "the plan") {
		key := m.plan(rt)
		in.Plan = &key
	} else {
		status := rapid.SampledFrom([]string{"ACTIVE", "TRIALING", "PAST_DUE", "CANCELLED", "EXPIRED"}).Draw(rt, "status")
		in.Status = &status
	}
	s, err := m.catalogue.ChangeSubscription(context.Background(), commands.Request{By: operatorKey}, m.tenant, sub.ID, in)
	if no := (*domain.Error)(nil); errors.As(err, &no) && no.Code == "subscription_exists" {
		return
	}
	m.must(err)
	m.recordGrants(s, sub)
	*sub = s
}

func (m *catalogueModel) fold(*rapid.T) { m.drain(m.entitling) }

// check compares each answer with the grants at the answer's position.
func (m *catalogueModel) check(rt *rapid.T) {
	for _, reads := range []*reads{m.reads, m.cached} {
		if reads.Grants != nil {
			m.must(reads.Grants.Confirm(context.Background()))
		}
		for _, f := range catalogueFeatures {
			got, err := reads.Check(context.Background(), tenantViewer(m.tenant), m.tenant, f, 1, query.Wait{})
			m.must(err)
			var limits map[string]int64
			for _, g := range m.since {
				if g.at <= got.AsOf.Number {
					limits = g.limits
				}
			}
			limit, entitled := limits[f]
			switch {
			case entitled && (got.Limit == nil || *got.Limit != limit || got.Allowed != (limit >= 1)),
				!entitled && (got.Allowed || got.Limit != nil):
				rt.Fatalf("%s at %s: %+v, and granted is %v", f, got.AsOf, got, limits)
			}
		}
	}
}

// A check returns the grants at the position that it names, however plans and
// subscriptions change and however far the changes are folded.
func TestChecksAnswerAsOfTheirPosition(t *testing.T) {
	s := newPipelineFixture(t)
	s.now = time.Now()
	localtest.FewChecks(t, 6)
	rapid.Check(t, func(rt *rapid.T) {
		m := newCatalogueModel(s, rt)
		rt.Repeat(map[string]func(*rapid.T){"put a plan": m.putPlan, "subscribe": m.begin, "change": m.change, "change it again": m.change, "fold": m.fold, "": m.check})
		m.fold(rt)
		m.check(rt)
	})
}
