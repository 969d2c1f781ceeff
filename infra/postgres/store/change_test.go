package store

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

func TestP1_AChangeWhoseCommitHadNoAnswerIsMadeOnce(t *testing.T) {
	database := localtest.Database(t)
	if _, err := postgres.Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	c, proxied := localtest.NewCutter(t, database)
	s, _, pool := openStoreAt(t, proxied)
	catalogue := &commands.Catalogue{Store: s, Now: time.Now, NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) }}
	for round := range 3 {
		c.Answer.Store(1)
		if _, err := catalogue.CreateTenant(t.Context(), commands.Request{By: commands.Caller{}}, commands.CreateTenant{Name: "A", Class: "small"}); err != nil {
			t.Fatal(err)
		}
		if c.Reached.Load() != int32(round+1) {
			t.Fatalf("round %d: no COMMIT was cut", round)
		}
		if n := count(t, pool, `SELECT count(*) FROM event_log WHERE subject = $1`, events.TenantCreated); n != round+1 {
			t.Fatalf("%d events tell of %d new tenants", n, round+1)
		}
	}
}

// A reader sees the old state while a change commits, and never after the change is answered.
func TestCachedStateIsDroppedAfterTheCommit(t *testing.T) {
	s, _, _, database := openStore(t)
	tenant := domain.Tenant{ID: uuid.Must(uuid.NewV7()), Name: "A", Class: "small", Status: domain.TenantActive, DataResidency: "eu", CreatedAt: time.Now(), LateUsage: events.LateUsageReject}
	secret := [32]byte{1}
	save := func(key bool) error {
		return s.ChangeCatalogue(context.Background(), tenant.ID, func(tx commands.CatalogueTx) error {
			if err := tx.SaveTenant(tenant); err != nil || !key {
				return err
			}
			return tx.SaveKey(domain.APIKey{ID: tenant.ID, TenantID: tenant.ID, Name: "k", Prefix: "mp_live_", Mode: "live",
				Scopes: commands.TenantScopes(), CreatedAt: tenant.CreatedAt}, secret[:])
		})
	}
	if err := save(true); err != nil {
		t.Fatal(err)
	}
	told := func() string {
		t.Helper()
		_, of, err := s.Keys.Find(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		return of.Status
	}
	held := localtest.HoldCommits(t, database, "UPDATE", "tenants")
	tenant.Status = domain.TenantSuspended
	changed := make(chan error, 1)
	go func() { changed <- save(false) }()
	held.Reached()
	if is := told(); is != domain.TenantActive {
		t.Errorf("the tenant is %s before that is committed", is)
	}
	held.LetGo()
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if is := told(); is != domain.TenantSuspended {
		t.Errorf("the change was answered, and the tenant is still %s", is)
	}
}
