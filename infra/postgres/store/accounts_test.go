package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// heldEvent makes the event of a hold of calls.
func heldEvent(t *testing.T, tenant uuid.UUID, id string, amount int64) events.Pending {
	t.Helper()
	used, held := json.Number("0"), json.Number(fmt.Sprint(amount))
	payload, err := codec.EncodePayload(events.ReservationHeld, &events.Reservation{ReservationID: id, Feature: "calls", PeriodKey: domain.PeriodLifetime,
		SubscriptionID: newID(), FeatureType: domain.FeatureQuota, Amount: amount, ExpiresAt: time.Now().UTC().Add(time.Hour).Truncate(time.Microsecond), Used: &used, Held: &held})
	if err != nil {
		t.Fatal(err)
	}
	return events.Pending{EventID: newID(), Subject: events.ReservationHeld, TenantID: tenant, DedupeKey: events.KeyHold(id), Actor: events.Actor{Type: "api_key", ID: "k"},
		Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: payload}
}

// The sums of a tenant's accounts are those of each of its events once: of the events that are read before the head is locked, and of
// those recorded since.
func TestP7_FoldedAccountsCountEachEventOnce(t *testing.T) {
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate))
	s, tenant := New(pool, l, Config{}), newID()
	hold := func(id string, amount int64) {
		if err := s.Change(t.Context(), tenant, func(tx commands.Tx) error {
			_, err := tx.Append(heldEvent(t, tenant, id, amount))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	key := domain.AccountKey{TenantID: tenant, Feature: "calls", PeriodKey: domain.PeriodLifetime}
	hold("a", 1)
	hold("b", 20)
	sums, at, err := s.FoldedAccounts(t.Context(), tenant)
	if err != nil || sums[key].Held.String() != "21" {
		t.Fatalf("%+v up to %s: %v", sums, at, err)
	}
	hold("c", 300)
	err = s.ChangeAccounts(t.Context(), tenant, func(tx commands.AccountTx) error {
		_, err := tx.AddFoldedAccounts(tenant, at.Position, sums)
		return err
	})
	if got := sums[key].Held.String(); err != nil || got != "321" {
		t.Errorf("reservations hold %s, want 321: %v", got, err)
	}
}

// A change whose COMMIT had no answer, and whose outcome is not found either, may have been made: what is cached of its tenant is read
// again.
func TestAChangeOfUnknownOutcomeEvictsItsTenant(t *testing.T) {
	w := newCachingWorld(t, localtest.Migrated(t, postgres.Migrate))
	w.fill()
	w.loads()
	err := w.store.changed(&changeTx{concerned: []uuid.UUID{w.a.id}}, fmt.Errorf("%w: the connection was lost", postgres.ErrCommitUnknown))
	if err == nil || !strings.Contains(err.Error(), commands.ErrUnavailable.Error()) {
		t.Errorf("the outcome is unknown, and the answer is %v", err)
	}
	if read := w.loads(); read != "Aa" {
		t.Errorf("%q was read again, want Aa", read)
	}
}

// A reservation is found by its tenant, too: two tenants may give reservations of a feature the same id.
func TestP9_AReservationIsThatOfItsTenant(t *testing.T) {
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate))
	s, tenants := New(pool, l, Config{}), []uuid.UUID{newID(), newID()}
	for i, tenant := range tenants {
		const sql = `INSERT INTO reservations (tenant_id, reservation_id, feature, period_key, subscription_id, feature_type, amount, state, expires_at, held_position)
 VALUES ($1, 'r', 'calls', 'lifetime', $2, 'QUOTA', $3, 'HELD', now(), 1)`
		if _, err := pool.Exec(t.Context(), sql, tenant, newID(), i+1); err != nil {
			t.Fatal(err)
		}
	}
	for i, tenant := range tenants {
		if r, err := s.Reservation(t.Context(), tenant, "calls", "r"); err != nil || r == nil || r.Amount != int64(i+1) {
			t.Errorf("tenant %d has %+v, want an amount of %d: %v", i, r, i+1, err)
		}
	}
	if r, err := s.Reservation(t.Context(), newID(), "calls", "r"); err != nil || r != nil {
		t.Errorf("a tenant without reservations has %+v: %v", r, err)
	}
}
