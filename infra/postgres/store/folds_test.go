package store

import (
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// P5: the rows of the catalogue are those that its events give in empty tables.
func TestP5_TheRowsOfTheCatalogueFollowFromTheLog(t *testing.T) {
	s, _, pool, _ := openStore(t)
	changeEachNoun(t, s)
	repaired, err := RepairCatalogue(t.Context(), pool)
	must.OK(t, err)
	rows := map[string]int{"tenants": 1, "tenant_policies": 3, "api_keys": 5, "features": 2, "feature_groupings": 2, "plans": 1,
		"prices": 3, "subscriptions": 2,
		"subscription_history": 7, "thresholds": 2, "webhooks": 2}
	for _, r := range repaired {
		if n := count(t, pool, `SELECT count(*) FROM `+r.Table); n != rows[r.Table] || r.Different+r.Unknown+r.Left > 0 {
			t.Errorf("%s has %d rows instead of %d: %+v", r.Table, n, rows[r.Table], r)
		}
	}
	for what, want := range map[string]int{`api_keys WHERE ended`: 2, `thresholds WHERE removed IS NOT NULL`: 1,
		`subscription_history WHERE snapshot IS NULL`:       2,
		`subscription_history WHERE effective_from > now()`: 2, `feature_groupings WHERE since < '1970-01-01'`: 1,
		`webhooks WHERE operators AND reason <> ''`: 1, `webhooks WHERE status = 'REMOVED' AND NOT operators`: 1} {
		if n := count(t, pool, `SELECT count(*) FROM `+what); n != want {
			t.Errorf("%d rows of %s instead of %d", n, what, want)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM (SELECT id, unnest(external_ids) FROM tenants EXCEPT SELECT tenant_id, external_id
		FROM tenant_external_ids) x`); n > 0 {
		t.Errorf("%d external ids of tenants are not in their table", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM subscription_history WHERE snapshot::text LIKE '%reason%'`); n > 0 {
		t.Errorf("%d rows of histories have the reason of a request", n)
	}
}

// A change of a tenant records all its members, also those that its row has wrong: only a repair sets the row to the log.
func TestP5_ARepairSetsTheRowsOfTheCatalogueToTheLog(t *testing.T) {
	s, _, pool, url := openStore(t)
	changeEachNoun(t, s)
	superuser, err := postgres.Open(t.Context(), postgres.Config{URL: localtest.SuperuserURL(t, url)})
	must.OK(t, err)
	t.Cleanup(superuser.Close)
	must.Exec(t, superuser, `SET ROLE NONE; UPDATE tenants SET class = 'large'; UPDATE webhooks SET url = 'https://example.com/c',
		cursor = 1;
DELETE FROM features WHERE lookup_key = 'sso'; UPDATE prices SET name = 'X' WHERE version = 2; DELETE FROM subscription_history
WHERE snapshot IS NULL;
UPDATE api_keys SET scopes = '{admin}'; INSERT INTO plans (key, name, entitlements) VALUES ('planted', 'P', '[]'); SET ROLE `+
		postgres.WorkerRole)
	secrets := `SELECT count(*) FROM api_keys WHERE secret_hash IS NOT NULL`
	had := count(t, pool, secrets)
	repair := func(login *pgxpool.Pool) map[string]RepairedTable {
		list, err := RepairCatalogue(t.Context(), login)
		must.OK(t, err)
		found := map[string]RepairedTable{}
		for _, r := range list {
			if r.Different+r.Unknown > 0 {
				found[r.Table] = r
			}
		}
		return found
	}
	want := map[string]RepairedTable{"tenants": {"tenants", 1, 0, 0}, "webhooks": {"webhooks", 2, 0, 0}, "features": {"features", 1, 0, 0},
		"prices": {"prices", 1, 0, 1}, "subscription_history": {"subscription_history", 2, 0, 0}, "api_keys": {"api_keys", 4, 0, 0},
		"plans": {"plans", 0, 1, 1}}
	if got := repair(pool); !maps.Equal(got, want) {
		t.Errorf("the service's login repaired %v instead of %v", got, want)
	}
	want = map[string]RepairedTable{"prices": {"prices", 1, 0, 0}, "plans": {"plans", 0, 1, 0}}
	if got := repair(superuser); !maps.Equal(got, want) {
		t.Errorf("a superuser's login repaired %v instead of %v", got, want)
	}
	if got := repair(superuser); len(got) > 0 {
		t.Errorf("after the repair %v differ", got)
	}
	if n := count(t, pool, secrets); n != had || count(t, pool, `SELECT count(*) FROM webhooks WHERE cursor = 1`) != 2 {
		t.Errorf("%d keys have a secret instead of %d, or the state of the deliveries was repaired", n, had)
	}
}

// changeEachNoun makes and changes each noun of the catalogue, in each way that its rows depend on.
func changeEachNoun(t *testing.T, s *Store) {
	t.Helper()
	c, ctx, req := catalogueOf(s), t.Context(), commands.Request{Reason: "a ticket"}
	five, ten := int64(5), int64(10)
	feature := func(name string, groupBy ...string) {
		must.OK(t, third(c.PutFeature(ctx, req, domain.Feature{LookupKey: "calls", Name: name, Type: domain.FeatureQuota, Unit: "call",
			GroupBy: groupBy, BillingEvent: "api"})))
	}
	price := func(rate int64) {
		must.OK(t, third(c.PutPrice(ctx, req, domain.Price{Key: "tiered", Name: "T", Currency: "EUR", Model: domain.PriceGraduated,
			Tiers: []events.PriceTier{{UpTo: &five, MicroUnits: domain.MaxMicroUnits, FlatMicroUnits: 7}, {MicroUnits: rate}}})))
	}
	plan := func(limit *int64) {
		must.OK(t, third(c.PutPlan(ctx, req,
			domain.Plan{Key: "p", Name: "P", Entitlements: []domain.Entitlement{{Feature: "calls", Limit: limit, Price: "tiered"}}})))
	}
	feature("C", "region")
	feature("C", "model")
	feature("Calls", "model")
	must.OK(t, third(c.PutFeature(ctx, req, domain.Feature{LookupKey: "sso", Name: "S", Type: domain.FeatureBoolean})))
	must.OK(t, third(c.PutPrice(ctx, req, domain.Price{Key: "packs", Name: "P", Currency: "USD", Model: domain.PricePackage,
		MicroUnits: &five, PackageSize: 100})))
	price(3)
	plan(&ten)
	plan(nil)
	tenant := ChangeTenant(t, c, req)
	changeKeys(t, c, req, tenant)
	changeSubscriptions(t, c, req, tenant, func() { price(4) })
	thresholds := &catalogue.Thresholds{Store: s, Now: time.Now, NewID: newID}
	for _, in := range []catalogue.NewThreshold{{Percent: &ten}, {Amount: &five}} {
		made, err := thresholds.Create(ctx, req, tenant, in)
		must.OK(t, err)
		if in.Amount != nil {
			must.OK(t, thresholds.Remove(ctx, req, tenant, made.ID))
		}
	}
	changeWebhooks(t, s, req, tenant)
}

// changeWebhooks lets the service disable one, and removes another that is the tenant's.
func changeWebhooks(t *testing.T, s *Store, req commands.Request, tenant uuid.UUID) {
	t.Helper()
	c := &webhooks.Commands{Store: &Webhooks{Store: s, NewID: newID}, Now: time.Now, NewID: newID, NewSecret: func() (b [32]byte) {
		return b
	}}
	for n, url := range []string{"https://example.com/a", "https://example.com/b"} {
		w, err := c.Create(t.Context(), req, tenant, url, []string{webhook.PeriodClosed})
		must.OK(t, err)
		if n == 0 {
			must.OK(t, s.ChangeTenant(t.Context(), tenant, func(tx *Tx) error { return c.EndAll(tx, &req, tenant, webhook.Archived) }))
			continue
		}
		req.By.TenantID = tenant
		_, err = c.Change(t.Context(), req, tenant, w.ID,
			webhooks.ChangeWebhook{URL: new(url + "/"), Events: &[]string{webhook.PushFailed, webhook.UsageRefused}})
		must.OK(t, err)
		_, err = c.Rotate(t.Context(), req, tenant, w.ID, time.Hour)
		must.OK(t, err)
		must.OK(t, c.Remove(t.Context(), req, tenant, w.ID))
	}
}

func ChangeTenant(t *testing.T, c *catalogue.Commands, req commands.Request) uuid.UUID {
	t.Helper()
	tenant, err := c.CreateTenant(t.Context(), req, catalogue.CreateTenant{Name: "T", Class: "small",
		ExternalIDs: []string{"crm-2", "crm-1"}, Metadata: map[string]string{"reason": "x"}})
	must.OK(t, err)
	none, adjust, suspended, hours, later := (*int)(nil), events.LateUsageAdjust, domain.TenantSuspended, 24, domain.TenantActive
	three, residency := &hours, "eu"
	for _, change := range []catalogue.ChangeTenant{{LateUsage: &adjust, DataResidency: &residency}, {CloseAfterHours: &three},
		{Status: &suspended}, {CloseAfterHours: &none},
		{Status: &later, ExternalIDs: &[]string{"crm-3"}, Metadata: &map[string]string{}}} {
		_, err := c.ChangeTenant(t.Context(), req, tenant.ID, change)
		must.OK(t, err)
	}
	return tenant.ID
}

func changeKeys(t *testing.T, c *catalogue.Commands, req commands.Request, tenant uuid.UUID) {
	t.Helper()
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	for _, overlap := range []time.Duration{0, time.Hour} {
		k, err := c.CreateKey(t.Context(), req, tenant, catalogue.CreateKey{Name: "k", Scopes: []string{commands.ScopeUsageWrite},
			ExpiresAt: &end})
		must.OK(t, err)
		_, err = c.RotateKey(t.Context(), req, tenant, k.ID, overlap)
		must.OK(t, err)
		if overlap > 0 {
			must.OK(t, c.RevokeKey(t.Context(), req, tenant, k.ID))
		}
	}
	_, err := c.CreateKey(t.Context(), req, events.Platform, catalogue.CreateKey{Name: "o", Scopes: []string{commands.ScopeAdmin}})
	must.OK(t, err)
}

// changeSubscriptions lets one begin in the past and end, and another begin in the future. No event tells of the end of one that was not in
// force.
func changeSubscriptions(t *testing.T, c *catalogue.Commands, req commands.Request, tenant uuid.UUID, priceChanges func()) {
	t.Helper()
	current, cancelled, expired, trialing := catalogue.PricesCurrent, domain.SubscriptionCancelled, domain.SubscriptionExpired,
		domain.SubscriptionTrialing
	for _, starts := range []time.Duration{-time.Hour, time.Hour} {
		at := time.Now().Add(starts).UTC().Truncate(time.Microsecond)
		made, err := c.CreateSubscription(t.Context(), req, tenant, catalogue.CreateSubscription{Plan: "p", StartsAt: &at})
		must.OK(t, err)
		priceChanges()
		for _, change := range []catalogue.ChangeSubscription{{Prices: &current}, {Status: &trialing}, {Status: &cancelled},
			{Status: &expired}} {
			_, err := c.ChangeSubscription(t.Context(), req, tenant, made.ID, change)
			must.OK(t, err)
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }
