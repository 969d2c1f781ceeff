package commands

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// subscriptionTx fakes the port of subscriptions.
type subscriptionTx struct {
	planTx
	subscriptions map[uuid.UUID]domain.Subscription
	history       map[int64]domain.HistoryEntry
}

func (tx *subscriptionTx) Subscription(id uuid.UUID) (*domain.Subscription, error) {
	return found(tx.subscriptions, id)
}

func (tx *subscriptionTx) InForce(tenant uuid.UUID) (*domain.Subscription, error) {
	for _, s := range tx.subscriptions {
		if s.TenantID == tenant && s.AcceptsUsage() {
			return &s, nil
		}
	}
	return nil, nil
}

func (tx *subscriptionTx) SaveSubscription(s domain.Subscription) error {
	tx.subscriptions[s.ID] = s
	return nil
}

func (tx *subscriptionTx) SaveHistory(_ uuid.UUID, e domain.HistoryEntry) error {
	tx.history[e.FromPosition] = e
	return nil
}

// newSubscriptions returns a catalogue with the plans basic and pro, and with bad, whose
// feature is not defined.
func newSubscriptions(list ...domain.Subscription) (*Catalogue, *subscriptionTx) {
	tx := &subscriptionTx{planTx: newPlanTx(), subscriptions: map[uuid.UUID]domain.Subscription{}, history: map[int64]domain.HistoryEntry{}}
	for key, feature := range map[string]string{"basic": "calls", "pro": "sso", "bad": "none"} {
		tx.plans[key] = domain.Plan{Key: key, Name: key, Entitlements: []domain.Entitlement{{Feature: feature}}}
	}
	for _, s := range list {
		tx.subscriptions[s.ID] = s
	}
	transacted(tx.memory, &tx.subscriptions)
	transacted(tx.memory, &tx.history)
	return catalogueOf(tx.memory, tx), tx
}

func grantOf(f domain.Feature) []domain.Grant {
	return []domain.Grant{{Entitlement: domain.Entitlement{Feature: f.LookupKey}, Type: f.Type, Unit: f.Unit}}
}

func subscription(n byte, status string) domain.Subscription {
	return domain.Subscription{ID: uuid.UUID{n}, TenantID: activeTenant, Plan: "basic", Status: status, Entitlements: grantOf(calls), CreatedAt: noon.Add(-time.Hour)}
}

func TestBadSubscriptionsAreRefused(t *testing.T) {
	inForce := subscription(1, domain.SubscriptionTrialing)
	for name, c := range map[string]struct {
		tenant        uuid.UUID
		in            CreateSubscription
		code, pointer string
	}{
		"status":         {activeTenant, CreateSubscription{"basic", "PAUSED"}, "status_invalid", "/status"},
		"unknown tenant": {uuid.New(), CreateSubscription{Plan: "basic"}, "tenant_not_found", ""},
		"unknown plan":   {suspendedTenant, CreateSubscription{Plan: "none"}, "plan_not_found", "/plan"},
		"bad plan":       {suspendedTenant, CreateSubscription{Plan: "bad"}, "entitlements_invalid", "/plan"},
		"a second one":   {activeTenant, CreateSubscription{Plan: "basic"}, "subscription_exists", "/status"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newSubscriptions(inForce)
			_, err := catalogue.CreateSubscription(t.Context(), Request{By: operator}, c.tenant, c.in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

func TestBadChangesOfSubscriptionsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		tenant, id    uuid.UUID
		in            ChangeSubscription
		code, pointer string
	}{
		"status":            {activeTenant, uuid.UUID{1}, ChangeSubscription{Status: ptr("")}, "status_invalid", "/status"},
		"unknown":           {activeTenant, uuid.UUID{9}, ChangeSubscription{}, "subscription_not_found", ""},
		"of another tenant": {suspendedTenant, uuid.UUID{1}, ChangeSubscription{}, "subscription_not_found", ""},
		"unknown plan":      {activeTenant, uuid.UUID{1}, ChangeSubscription{Plan: ptr("none")}, "plan_not_found", "/plan"},
		"a second in force": {activeTenant, uuid.UUID{2}, ChangeSubscription{Status: ptr(domain.SubscriptionActive)}, "subscription_exists", "/status"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newSubscriptions(subscription(1, domain.SubscriptionActive), subscription(2, domain.SubscriptionCancelled))
			_, err := catalogue.ChangeSubscription(t.Context(), Request{By: operator}, c.tenant, c.id, c.in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

// A subscription in force has a history entry from the position of its event on.
func TestASubscriptionIsCreatedOnceForEachKey(t *testing.T) {
	for status, inForce := range map[string]bool{"": true, domain.SubscriptionTrialing: true, domain.SubscriptionPastDue: false} {
		catalogue, tx := newSubscriptions()
		answer, event := tx.once(t, caused{subject: events.SubscriptionCreated, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
			return catalogue.CreateSubscription(t.Context(), req, activeTenant, CreateSubscription{"basic", status})
		})
		s := answer.(domain.Subscription)
		want := domain.Subscription{ID: s.ID, TenantID: activeTenant, Plan: "basic", Status: status, Entitlements: grantOf(calls), CreatedAt: stored}
		byDefault(&want.Status, domain.SubscriptionActive)
		if !reflect.DeepEqual(s, want) || !reflect.DeepEqual(tx.subscriptions[s.ID], want) || !reflect.DeepEqual(payload[events.Subscription](t, &event), want.Payload()) {
			t.Errorf("%+v, saved %+v", s, tx.subscriptions[s.ID])
		}
		history := map[int64]domain.HistoryEntry{}
		if inForce {
			history[1] = domain.HistoryEntry{FromPosition: 1, EffectiveFrom: stored, Subscription: &want}
		}
		if !reflect.DeepEqual(tx.history, history) || tx.held[0] != activeTenant {
			t.Errorf("history %+v under the head of %s", tx.history, tx.held[0])
		}
	}
}

func TestASubscriptionIsChangedOnceForEachKey(t *testing.T) {
	sso := domain.Feature{LookupKey: "sso", Type: domain.FeatureBoolean}
	for name, c := range map[string]struct {
		from         string
		in           ChangeSubscription
		want         domain.Subscription
		entry, force bool // a history entry is written, with the subscription
	}{
		"ends":             {domain.SubscriptionActive, ChangeSubscription{Status: ptr(domain.SubscriptionCancelled)}, subscription(1, domain.SubscriptionCancelled), true, false},
		"begins again":     {domain.SubscriptionPastDue, ChangeSubscription{Status: ptr(domain.SubscriptionActive)}, subscription(1, domain.SubscriptionActive), true, true},
		"was not in force": {domain.SubscriptionPastDue, ChangeSubscription{Status: ptr(domain.SubscriptionExpired)}, subscription(1, domain.SubscriptionExpired), false, false},
		"the same plan":    {domain.SubscriptionActive, ChangeSubscription{Plan: ptr("basic")}, subscription(1, domain.SubscriptionActive), true, true},
		"plan and status":  {domain.SubscriptionActive, ChangeSubscription{Plan: ptr("pro"), Status: ptr(domain.SubscriptionTrialing)}, subscription(1, domain.SubscriptionTrialing), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newSubscriptions(subscription(1, c.from))
			if c.in.Plan != nil && *c.in.Plan == "pro" {
				c.want.Plan, c.want.Entitlements = "pro", grantOf(sso)
			}
			answer, event := tx.once(t, caused{subject: events.SubscriptionChanged, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
				return catalogue.ChangeSubscription(t.Context(), req, activeTenant, uuid.UUID{1}, c.in)
			})
			if !reflect.DeepEqual(answer, c.want) || !reflect.DeepEqual(tx.subscriptions[c.want.ID], c.want) || !reflect.DeepEqual(payload[events.Subscription](t, &event), c.want.Payload()) {
				t.Errorf("%+v, saved %+v", answer, tx.subscriptions[c.want.ID])
			}
			history := map[int64]domain.HistoryEntry{}
			if c.entry {
				entry := domain.HistoryEntry{FromPosition: 1, EffectiveFrom: stored}
				if c.force {
					entry.Subscription = &c.want
				}
				history[1] = entry
			}
			if !reflect.DeepEqual(tx.history, history) {
				t.Errorf("history %+v", tx.history)
			}
		})
	}
}

func TestTheSameStatusIsNoChange(t *testing.T) {
	catalogue, tx := newSubscriptions(subscription(1, domain.SubscriptionActive))
	got, err := catalogue.ChangeSubscription(t.Context(), Request{By: operator}, activeTenant, uuid.UUID{1}, ChangeSubscription{Status: ptr(domain.SubscriptionActive)})
	if tx.succeeded(t, err, 0); !reflect.DeepEqual(got, subscription(1, domain.SubscriptionActive)) {
		t.Errorf("%+v", got)
	}
}
