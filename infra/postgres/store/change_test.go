package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
)

func TestP1_AChangeWhoseCommitHadNoAnswerIsMadeOnce(t *testing.T) {
	database := localtest.Migrated(t, postgres.Migrate)
	c, proxied := localtest.NewCutter(t, database)
	s, _, pool := openStoreAt(t, proxied)
	changes := &catalogue.Commands{Store: s, Now: time.Now, NewID: newID}
	for round := range 3 {
		c.Answer.Store(1)
		if _, err := changes.CreateTenant(t.Context(), commands.Request{By: commands.Caller{}},
			catalogue.CreateTenant{Name: "A", Class: "small"}); err != nil {
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
	tenant := events.Tenant{ID: uuid.Must(uuid.NewV7()), Name: "A", Class: "small", Status: domain.TenantActive, Mode: domain.ModeLive,
		DataResidency: "eu", CreatedAt: time.Now(), LateUsage: events.LateUsageReject}
	secret := [32]byte{1}
	save := func(key bool) error {
		return s.ChangeCatalogue(context.Background(), tenant.ID, func(tx catalogue.Tx) error {
			if err := appendNoun(tx, events.TenantChanged, tenant.ID, tenant); err != nil || !key {
				return err
			}
			if err := appendNoun(tx, events.APIKeyCreated, tenant.ID, events.APIKey{ID: tenant.ID, TenantID: tenant.ID, Name: "k",
				Prefix: "mp_live_", Mode: "live",
				Scopes: commands.TenantScopes(), CreatedAt: tenant.CreatedAt}); err != nil {
				return err
			}
			return tx.SaveSecret(tenant.ID, secret[:])
		})
	}
	must.OK(t, save(true))
	told := func() string {
		t.Helper()
		_, of, _, err := s.Keys.Find(t.Context(), secret)
		must.OK(t, err)
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
	must.OK(t, <-changed)
	if is := told(); is != domain.TenantSuspended {
		t.Errorf("the change was answered, and the tenant is still %s", is)
	}
}

// Each request of long work starts its worker; a bulk needs no worker, because each of its retries is a command.
func TestTheCommandRouterStartsTheWorkersOfRequests(t *testing.T) {
	var started []string
	start := func(worker string) func() { return func() { started = append(started, worker) } }
	c := &Commands{Workers: map[events.Subject]func(){
		events.RebuildRequested: start("rebuild"), events.ReplayRequested: start("replay"),
	}}
	batch := []events.Envelope{{Subject: events.ReplayRequested}, {Subject: events.BulkRequested}, {Subject: events.RebuildRequested},
		{Subject: events.RebuildRequested}}
	result, err := c.Apply(t.Context(), nil, projections.Generation{}, batch)
	if err != nil || len(result.Failed)+len(result.FollowUps) != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	if want := []string{"replay", "rebuild", "rebuild"}; !slices.Equal(started, want) {
		t.Errorf("started %q, want %q", started, want)
	}
}

// appendNoun appends an event of a tenant's noun, which changes its row.
func appendNoun(tx commands.Tx, subject events.Subject, tenant uuid.UUID, payload any) error {
	body, err := codec.EncodePayload(subject, payload)
	if err != nil {
		return err
	}
	id := newID()
	_, err = tx.Append(events.Pending{EventID: id, DedupeKey: events.KeyEvent(id), Subject: subject, TenantID: tenant,
		Residency:     events.ResidencyUnspecified,
		CorrelationID: id, Actor: events.Actor{Type: "service", ID: "test"}, OccurredAt: time.Now().UTC(), Payload: body})
	return err
}
