package store

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/entitlements"
)

// sharesPartition makes a tenant in the partition of another one.
func (w *cachingWorld) sharesPartition(with uuid.UUID) uuid.UUID {
	w.Helper()
	for {
		tenant, err := w.catalogue.CreateTenant(w.Context(), commands.Request{}, commands.CreateTenant{Name: "C", Class: "small"})
		w.must(err)
		if events.PartitionOf(tenant.ID) == events.PartitionOf(with) {
			return tenant.ID
		}
	}
}

// A change of a tenant on another instance makes this one read the keys and the history of that tenant again, and no other's, also of the
// same partition: a thousand closes at once must not empty the caches of ingest. Changes that are too many to follow are as changes of all.
func TestP9_AChangeOnAnotherInstanceReloadsItsTenantOnly(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	w := newCachingWorld(t, url)
	l, pool := openLogAt(t, url)
	grants, now := entitlements.NewCache(pool, pool), time.Now()
	w.store = New(w.store.pool, w.store.log, Config{Now: func() time.Time { return now },
		Catalogue: func(time.Duration) *projections.CatalogueMarks { return grants.LastCatalogue() }})
	w.catalogue = catalogueOf(w.store)
	w.fill()
	other := New(pool, l, Config{})
	elsewhere := &commands.Catalogue{Store: other, Now: time.Now, NewID: newID, NewSecret: func() (b [32]byte) { _, _ = rand.Read(b[:]); return b }}
	periods := &commands.Periods{Store: &Periods{Store: other}, Now: time.Now, NewID: newID}
	beside := w.sharesPartition(w.a.id)
	closeOf := func(tenant uuid.UUID, period string) error {
		_, err := periods.Close(t.Context(), commands.Request{}, commands.ClosePeriod{TenantID: tenant, PeriodKey: period, Reason: "test", Early: true})
		return err
	}
	rename := func(tenant uuid.UUID, name string) error {
		_, err := elsewhere.ChangeTenant(t.Context(), commands.Request{}, tenant, commands.ChangeTenant{Name: &name})
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
	w.must(grants.Confirm(t.Context()))
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
		w.must(change.do())
		w.must(grants.Confirm(t.Context()))
		now = now.Add(time.Hour) // each answer has to be confirmed
		if read := w.loads(); read != change.reads {
			t.Errorf("%s: %q was read again, want %q", change.what, read, change.reads)
		}
	}
	h, err := w.store.Histories.Cached(t.Context(), w.a.id)
	w.must(err)
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
