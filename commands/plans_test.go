package commands

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// planTx fakes the port of plans.
type planTx struct {
	featureTx
	plans map[string]domain.Plan
}

func (tx *planTx) Plan(key string) (*domain.Plan, error) {
	return found(tx.plans, key)
}

func (tx *planTx) SavePlan(p domain.Plan) error {
	tx.plans[p.Key] = p
	return nil
}

func newPlanTx() planTx {
	return planTx{featureTx{memory: newMemory(), features: map[string]domain.Feature{
		"calls": calls, "sso": {LookupKey: "sso", Name: "SSO", Type: domain.FeatureBoolean},
	}}, map[string]domain.Plan{}}
}

func newPlans() (*Catalogue, *planTx) {
	tx := newPlanTx()
	transacted(tx.memory, &tx.plans)
	return catalogueOf(tx.memory, &tx), &tx
}

func TestBadPlansAreRefused(t *testing.T) {
	grants := func(list ...domain.Entitlement) domain.Plan {
		return domain.Plan{Key: "p", Name: "P", Entitlements: list}
	}
	many := make([]domain.Entitlement, maxEntitlements+1)
	for name, c := range map[string]struct {
		plan          domain.Plan
		code, pointer string
	}{
		"key":              {domain.Plan{Key: "a b", Name: "P"}, "plan_key_invalid", "/key"},
		"name":             {domain.Plan{Key: "p"}, "name_invalid", "/name"},
		"too many":         {grants(many...), "entitlements_invalid", "/entitlements"},
		"unknown feature":  {grants(domain.Entitlement{Feature: "sso"}, domain.Entitlement{Feature: "none"}), "entitlements_invalid", "/entitlements/1/feature"},
		"feature twice":    {grants(domain.Entitlement{Feature: "calls"}, domain.Entitlement{Feature: "calls"}), "entitlements_invalid", "/entitlements/1/feature"},
		"limit of BOOLEAN": {grants(domain.Entitlement{Feature: "sso", Limit: ptr(int64(0))}), "entitlements_invalid", "/entitlements/0/limit"},
		"negative limit":   {grants(domain.Entitlement{Feature: "calls", Limit: ptr(int64(-1))}), "limit_invalid", "/entitlements/0/limit"},
		"inexact limit":    {grants(domain.Entitlement{Feature: "calls", Limit: ptr(int64(1 << 53))}), "limit_invalid", "/entitlements/0/limit"},
		"limit behavior":   {grants(domain.Entitlement{Feature: "calls", LimitBehavior: "FIRM"}), "entitlements_invalid", "/entitlements/0/limitBehavior"},
		"reset period":     {grants(domain.Entitlement{Feature: "sso", ResetPeriod: "DAILY"}), "entitlements_invalid", "/entitlements/0/resetPeriod"},
		"enforce":          {grants(domain.Entitlement{Feature: "calls", OnIngest: domain.OnIngestEnforce}), "entitlements_invalid", "/entitlements/0/onIngest"},
		"on ingest":        {grants(domain.Entitlement{Feature: "calls", OnIngest: "drop"}), "entitlements_invalid", "/entitlements/0/onIngest"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newPlans()
			_, _, err := catalogue.PutPlan(t.Context(), Request{By: operator}, c.plan)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

// A plan gets defaults, except for BOOLEAN features. Each put is a new definition, even
// of an equal plan, because subscriptions may take a new snapshot.
func TestAPlanIsDefinedWithDefaults(t *testing.T) {
	catalogue, tx := newPlans()
	limit := int64(maxLimit)
	for round := 1; round <= 2; round++ {
		got, created, err := catalogue.PutPlan(t.Context(), Request{By: operator}, domain.Plan{Key: "P.1", Name: "P", Entitlements: []domain.Entitlement{
			{Feature: "calls", Limit: &limit}, {Feature: "sso"}}})
		tx.succeeded(t, err, round)
		want := domain.Plan{Key: "P.1", Name: "P", Entitlements: []domain.Entitlement{
			{Feature: "calls", Limit: &limit, LimitBehavior: domain.LimitSoft, ResetPeriod: domain.ResetMonthly, OnIngest: domain.OnIngestRecord}, {Feature: "sso"}}}
		if !reflect.DeepEqual(got, want) || created != (round == 1) || !reflect.DeepEqual(tx.plans["P.1"], want) {
			t.Errorf("%+v, created %v, saved %+v", got, created, tx.plans["P.1"])
		}
	}
}

func TestAPlanIsPutOnceForEachKey(t *testing.T) {
	catalogue, tx := newPlans()
	plan := domain.Plan{Key: "p", Name: "P", Entitlements: []domain.Entitlement{{Feature: "sso"}}}
	_, event := tx.once(t, caused{subject: events.PlanDefined, tenant: events.Platform}, func(req Request) (any, error) {
		p, created, err := catalogue.PutPlan(t.Context(), req, plan)
		return put[domain.Plan]{p, created}, err
	})
	if got := payload[events.Plan](t, &event); fmt.Sprint(got) != fmt.Sprint(plan.Payload()) || tx.held[0] != events.Platform {
		t.Errorf("%+v under the head of %s", got, tx.held[0])
	}
}
