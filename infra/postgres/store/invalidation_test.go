package store

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/entitlements"
)

// cachingWorld is a store whose cached answers do not expire, and counts its loads: of
// tenants A and B, with a key and a subscription each, and of an operator's key.
type cachingWorld struct {
	*testing.T
	store     *Store
	catalogue *catalogue.Commands
	sent      *localtest.Statements
	woken     atomic.Int32 // how often a commit woke the relay
	operator  catalogue.CreatedKey
	a, b      account
}

type account struct {
	id           uuid.UUID
	key          catalogue.CreatedKey
	subscription uuid.UUID
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func catalogueOf(s *Store) *catalogue.Commands {
	return &catalogue.Commands{Store: s, Now: time.Now, NewID: newID, NewSecret: func() (b [32]byte) { _, _ = rand.Read(b[:]); return b }}
}

func newCachingWorld(t *testing.T, url string) *cachingWorld {
	t.Helper()
	w := &cachingWorld{T: t}
	l, pool := logtest.Open(t, url, func(c *eventlog.Config) { c.OnAppend = func([]int16) { w.woken.Add(1) } })
	traced, sent := localtest.Traced(t, pool)
	began := time.Now()
	w.sent, w.store = sent, New(traced, l, Config{Now: func() time.Time { return began }})
	w.catalogue = catalogueOf(w.store)
	return w
}

// fill makes the tenants.
func (w *cachingWorld) fill() {
	w.Helper()
	var err error
	w.operator, err = w.catalogue.CreateKey(w.Context(), commands.Request{}, events.Platform,
		catalogue.CreateKey{Name: "o", Scopes: []string{commands.ScopeAdmin}})
	must.OK(w, err)
	_, _, err = w.catalogue.PutFeature(w.Context(), commands.Request{}, domain.Feature{LookupKey: "calls", Name: "Calls",
		Type: domain.FeatureMetered})
	must.OK(w, err)
	must.OK(w, w.putPlan("P", 1))
	w.a, w.b = w.newAccount(), w.newAccount()
}

func (w *cachingWorld) putPlan(name string, limit int64) error {
	_, _, err := w.catalogue.PutPlan(w.Context(), commands.Request{},
		domain.Plan{Key: "p", Name: name, Entitlements: []domain.Entitlement{{Feature: "calls", Limit: &limit}}})
	return err
}

func (w *cachingWorld) newAccount() account {
	w.Helper()
	tenant, err := w.catalogue.CreateTenant(w.Context(), commands.Request{}, catalogue.CreateTenant{Name: "T", Class: "small"})
	must.OK(w, err)
	key, err := w.catalogue.CreateKey(w.Context(), commands.Request{}, tenant.ID,
		catalogue.CreateKey{Name: "k", Scopes: []string{commands.ScopeUsageWrite}})
	must.OK(w, err)
	s, err := w.catalogue.CreateSubscription(w.Context(), commands.Request{}, tenant.ID, catalogue.CreateSubscription{Plan: "p"})
	must.OK(w, err)
	return account{tenant.ID, key, s.ID}
}

// loads asks for the keys and histories of all, and returns what had to be read: "A" and
// "B" for a tenant's key, "a" and "b" for its history, "o" for the operator's key.
func (w *cachingWorld) loads() (read string) {
	w.Helper()
	for name, secret := range map[string]string{"o": w.operator.Secret, "A": w.a.key.Secret, "B": w.b.key.Secret} {
		_ = w.sent.Take()
		if k, _, _, err := w.store.Keys.Find(w.Context(), catalogue.HashSecret(secret)); err != nil || k == nil {
			w.Fatalf("key %s: %v, %v", name, k, err)
		}
		if sent := strings.Join(w.sent.Take(), "\n"); strings.Contains(sent, "api_keys") {
			read += name
		}
	}
	for name, tenant := range map[string]uuid.UUID{"a": w.a.id, "b": w.b.id} {
		_ = w.sent.Take()
		if h, err := w.store.Histories.Cached(w.Context(), tenant); err != nil || len(h.History) == 0 {
			w.Fatalf("history %s: %v, %v", name, h, err)
		}
		if sent := strings.Join(w.sent.Take(), "\n"); strings.Contains(sent, "subscription_history") {
			read += name
		}
	}
	return sorted(read)
}

func sorted(s string) string {
	var in []string
	for _, name := range []string{"A", "B", "a", "b", "o"} {
		if strings.Contains(s, name) {
			in = append(in, name)
		}
	}
	return strings.Join(in, "")
}

// recordDuplicates records a retry and a refusal of a tenant, as an instance does each second.
func (w *cachingWorld) recordDuplicates(tenant uuid.UUID) {
	w.Helper()
	d := &metering.UsageSeen{Store: w.store, Now: time.Now, NewID: newID, Logger: slog.Default()}
	d.Seen(&commands.Caller{TenantID: tenant}, make([]intake.BatchItem, 2), []metering.EventVerdict{{Status: metering.StatusDuplicate},
		{Status: metering.StatusRejected, Code: "event_invalid"}}, true)
	ended, end := context.WithCancel(w.Context())
	end()
	must.OK(w, d.Run(ended))
}

// P9's sibling: a tenant's retries, and changes that are not of the catalogue, cost no
// look-up of a key or a subscription, neither of that tenant nor of another.
func TestP9_ARetryStormLoadsNoKeysAndNoSubscriptions(t *testing.T) {
	w := newCachingWorld(t, localtest.Migrated(t, postgres.Migrate))
	w.fill()
	w.loads()
	for range 3 {
		w.recordDuplicates(w.a.id)
		if read := w.loads(); read != "" {
			t.Errorf("after duplicates of A, %q was read again", read)
		}
	}
	must.OK(w, w.store.ChangeDeadLetters(t.Context(), w.a.id, func(repair.DeadLetterTx) error { return nil }))
	lock := func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error {
		return w.store.log.LockHeads(ctx, t, nil, admitted)
	}
	must.OK(w, w.store.ChangeUnder(t.Context(), events.Platform, lock, func(*Tx) error { return nil })) // of replays, of rebuilds
	if read := w.loads(); read != "" {
		t.Errorf("after changes of dead letters, replays and rebuilds, %q was read again", read)
	}
}

// A change of the catalogue holds as soon as it is answered, and only the state of the
// tenant that it concerns is read again. Subscriptions hold snapshots of their plans, so
// that a change of a plan or a feature concerns no tenant until its subscription changes.
func TestP9_AChangeOfTheCatalogueReloadsItsTenantOnly(t *testing.T) {
	w := newCachingWorld(t, localtest.Migrated(t, postgres.Migrate))
	w.fill()
	by, name, suspended, plan := commands.Request{}, "Another", domain.TenantSuspended, "p"
	w.loads()
	for _, change := range []struct {
		what  string
		do    func() error
		reads string
	}{
		{"nothing", func() error { return nil }, ""},
		{"a feature", func() error {
			_, _, err := w.catalogue.PutFeature(t.Context(), by, domain.Feature{LookupKey: "calls", Name: "API calls",
				Type: domain.FeatureMetered})
			return err
		}, "o"},
		{"a plan", func() error { return w.putPlan("Q", 2) }, "o"},
		{"A's subscription, to the new plan", func() error {
			_, err := w.catalogue.ChangeSubscription(t.Context(), by, w.a.id, w.a.subscription, catalogue.ChangeSubscription{Plan: &plan})
			return err
		}, "Aa"},
		{"B's name", func() error {
			_, err := w.catalogue.ChangeTenant(t.Context(), by, w.b.id, catalogue.ChangeTenant{Name: &name})
			return err
		}, "Bb"},
		{"a new key of A", func() error {
			_, err := w.catalogue.CreateKey(t.Context(), by, w.a.id,
				catalogue.CreateKey{Name: "k2", Scopes: []string{commands.ScopeUsageRead}})
			return err
		}, "Aa"},
		{"another tenant", func() error {
			_, err := w.catalogue.CreateTenant(t.Context(), by, catalogue.CreateTenant{Name: "C", Class: "small"})
			return err
		}, "o"},
		{"A's key is revoked", func() error { return w.catalogue.RevokeKey(t.Context(), by, w.a.id, w.a.key.ID) }, "Aa"},
		{"B is suspended", func() error {
			_, err := w.catalogue.ChangeTenant(t.Context(), by, w.b.id, catalogue.ChangeTenant{Status: &suspended})
			return err
		}, "Bb"},
	} {
		must.OK(w, change.do())
		if read := w.loads(); read != change.reads {
			t.Errorf("%s: %q was read again, want %q", change.what, read, change.reads)
		}
	}
	k, _, _, err := w.store.Keys.Find(t.Context(), catalogue.HashSecret(w.a.key.Secret))
	_, b, _, bErr := w.store.Keys.Find(t.Context(), catalogue.HashSecret(w.b.key.Secret))
	if err != nil || bErr != nil || k.RevokedAt == nil || b.Status != domain.TenantSuspended || b.Name != name {
		t.Errorf("A's key %+v, tenant B %+v: %v, %v", k, b, err, bErr)
	}
	h, err := w.store.Histories.Cached(t.Context(), w.a.id)
	if err != nil || len(h.History) != 2 || *h.History[1].Subscription.Entitlements[0].Limit != 2 {
		t.Errorf("A's subscriptions %+v: %v", h, err)
	}
}

// The first instance answers a repetition of a change that the second one made, without
// changing anything itself: the change holds there, too.
func TestARepeatedChangeHoldsOnceItIsAnswered(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	w := newCachingWorld(t, url)
	w.fill()
	w.loads()
	other := newCachingWorld(t, url)
	for what, by := range map[string]commands.Request{"with an Idempotency-Key": {Idempotency: commands.Idempotency{Key: "once"}},
		"without": {}} {
		made, err := w.catalogue.CreateKey(t.Context(), commands.Request{}, w.a.id,
			catalogue.CreateKey{Name: "k", Scopes: []string{commands.ScopeUsageRead}})
		must.OK(w, err)
		find := func() *domain.APIKey {
			k, _, _, err := w.store.Keys.Find(t.Context(), catalogue.HashSecret(made.Secret))
			must.OK(w, err)
			return k
		}
		if k := find(); k.RevokedAt != nil {
			t.Fatalf("%s: the key %+v is revoked at first", what, k)
		}
		must.OK(w, other.catalogue.RevokeKey(t.Context(), by, w.a.id, made.ID))
		must.OK(w, w.catalogue.RevokeKey(t.Context(), by, w.a.id, made.ID))
		if k := find(); k.RevokedAt == nil {
			t.Errorf("%s: the repetition was answered, and the key is not revoked", what)
		}
	}
}

// A change whose COMMIT was not answered is looked up in the log, and holds once that is
// answered. It wakes the relay as an ordinary change does.
func TestAChangeFoundInTheLogHoldsOnceItIsAnswered(t *testing.T) {
	database := localtest.Migrated(t, postgres.Migrate)
	c, proxied := localtest.NewCutter(t, database)
	w := newCachingWorld(t, proxied)
	w.fill()
	w.loads()
	suspended, woken := domain.TenantSuspended, w.woken.Load()
	c.Answer.Store(1)
	if _, err := w.catalogue.ChangeTenant(t.Context(), commands.Request{}, w.a.id, catalogue.ChangeTenant{Status: &suspended}); err != nil {
		t.Fatal(err)
	}
	if c.Reached.Load() != 1 {
		t.Fatal("no COMMIT was cut")
	}
	if n := w.woken.Load() - woken; n != 1 {
		t.Errorf("the relay was woken %d times by a change found in the log, want once", n)
	}
	if read := w.loads(); read != "Aa" {
		t.Errorf("%q was read again, want Aa", read)
	}
	if _, a, _, err := w.store.Keys.Find(t.Context(), catalogue.HashSecret(w.a.key.Secret)); err != nil ||
		a.Status != domain.TenantSuspended {
		t.Errorf("tenant A is %+v: %v", a, err)
	}
}

// sharesPartition makes a tenant in the partition of another one.
func (w *cachingWorld) sharesPartition(with uuid.UUID) uuid.UUID {
	w.Helper()
	for {
		tenant, err := w.catalogue.CreateTenant(w.Context(), commands.Request{}, catalogue.CreateTenant{Name: "C", Class: "small"})
		must.OK(w, err)
		if events.PartitionOf(tenant.ID) == events.PartitionOf(with) {
			return tenant.ID
		}
	}
}

// periodChanges changes periods as package closes does, which is above this one: without snapshots and adjustments.
type periodChanges struct {
	billing.PeriodStore
	store *Store
}

func (p periodChanges) ChangePeriods(ctx context.Context, tenant uuid.UUID, decide func(billing.PeriodTx) error) error {
	return p.store.ChangeTenant(ctx, tenant, func(tx *Tx) error { return decide(periodChange{tx}) }, tenant)
}

type periodChange struct{ *Tx }

func (t periodChange) SavePeriodChange(tenant uuid.UUID, c domain.PeriodChange, at time.Time) error {
	return t.Exec("change of a period", `INSERT INTO period_changes (tenant_id, position, period_key, snapshot, change, changed_at)
		VALUES ($1, $2, $3, $4, $5, $6)`,
		tenant, c.Position, c.PeriodKey, c.Snapshot, c.Change, at)
}

func (periodChange) Adjustments(uuid.UUID, []uuid.UUID) ([]domain.Adjustment, error) { return nil, nil }

func (periodChange) PendingAdjustments(uuid.UUID, int, events.AdjustmentScope) (int64, string, error) {
	return 0, "0", nil
}

func (periodChange) ApprovedAdjustments(uuid.UUID, string, int) (int64, error) { return 0, nil }

// A change of a tenant on another instance makes this one read the keys and the history of that tenant again, and no other's, also of the
// same partition: a thousand closes at once must not empty the caches of ingest. Changes that are too many to follow are as changes of all.
func TestP9_AChangeOnAnotherInstanceReloadsItsTenantOnly(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	w := newCachingWorld(t, url)
	l, pool := logtest.Open(t, url)
	grants, now := entitlements.NewCache(pool, pool), time.Now()
	w.store = New(w.store.pool, w.store.log, Config{Now: func() time.Time { return now },
		Catalogue: func(time.Duration) *projections.CatalogueMarks { return grants.LastCatalogue() }})
	w.catalogue = catalogueOf(w.store)
	w.fill()
	other := New(pool, l, Config{})
	elsewhere := &catalogue.Commands{Store: other, Now: time.Now, NewID: newID, NewSecret: func() (b [32]byte) {
		_, _ = rand.Read(b[:])
		return b
	}}
	periods := &billing.Periods{Store: periodChanges{store: other}, Now: time.Now, NewID: newID}
	beside := w.sharesPartition(w.a.id)
	closeOf := func(tenant uuid.UUID, period string) error {
		_, err := periods.Close(t.Context(), commands.Request{}, billing.ClosePeriod{TenantID: tenant, PeriodKey: period, Reason: "test",
			Early: true})
		return err
	}
	rename := func(tenant uuid.UUID, name string) error {
		_, err := elsewhere.ChangeTenant(t.Context(), commands.Request{}, tenant, catalogue.ChangeTenant{Name: &name})
		return err
	}
	month := now.UTC().Format("2006-01")
	all := "Aa" // whose state is read again if all tenants of A's partition may have changed
	if events.PartitionOf(w.a.id) == events.PartitionOf(w.b.id) {
		all += "Bb"
	}
	if events.PartitionOf(w.a.id) == events.PartitionOf(events.Platform) {
		all += "o"
	}
	must.OK(w, grants.Confirm(t.Context()))
	w.loads()
	for _, change := range []struct {
		what  string
		do    func() error
		reads string
	}{
		{"nothing", func() error { return nil }, ""},
		{"a close of another tenant of A's partition", func() error { return closeOf(beside, month) }, ""},
		{"its name", func() error { return rename(beside, "D") }, ""},
		{"a close of A", func() error { return closeOf(w.a.id, month) }, "Aa"},
		{"a close of A and one of the other", func() error { return first(closeOf(w.a.id, "2020-05"), closeOf(beside, "2020-05")) }, "Aa"},
		{"A's name, then the other's", func() error { return first(rename(w.a.id, "E"), rename(beside, "F")) }, "Aa"},
		{"300 changes of the other", func() (err error) {
			for n := 0; n < 300 && err == nil; n++ {
				err = rename(beside, string([]rune{'G', rune('A' + n%20)}))
			}
			return err
		}, sorted(all)},
		{"and one more", func() error { return rename(beside, "H") }, ""},
	} {
		must.OK(w, change.do())
		must.OK(w, grants.Confirm(t.Context()))
		now = now.Add(time.Hour) // each answer has to be confirmed
		if read := w.loads(); read != change.reads {
			t.Errorf("%s: %q was read again, want %q", change.what, read, change.reads)
		}
	}
	h, err := w.store.Histories.Cached(t.Context(), w.a.id)
	must.OK(w, err)
	if last := h.Last(month); last == nil || last.Change != domain.PeriodCloseRequested {
		t.Errorf("A's history has no close: %+v", h.Changes)
	}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
