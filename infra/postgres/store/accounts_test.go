package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/internal/must"
)

// A change whose COMMIT had no answer, and whose outcome is not found either, may have been made: what is cached of its tenant is read
// again.
func TestAChangeOfUnknownOutcomeEvictsItsTenant(t *testing.T) {
	w := newCachingWorld(t, localtest.Migrated(t, postgres.Migrate))
	w.fill()
	w.loads()
	err := w.store.changed(&Tx{concerned: []uuid.UUID{w.a.id}}, fmt.Errorf("%w: the connection was lost", postgres.ErrCommitUnknown))
	if err == nil || !strings.Contains(err.Error(), commands.ErrUnavailable.Error()) {
		t.Errorf("the outcome is unknown, and the answer is %v", err)
	}
	if read := w.loads(); read != "Aa" {
		t.Errorf("%q was read again, want Aa", read)
	}
}

// A reservation is found by its tenant, too: two tenants may give reservations of a feature the same id.
func TestP9_AReservationIsThatOfItsTenant(t *testing.T) {
	l, pool := logtest.Open(t, localtest.Migrated(t, postgres.Migrate))
	s, tenants := New(pool, l, Config{}), []uuid.UUID{newID(), newID()}
	for i, tenant := range tenants {
		const sql = `INSERT INTO reservations (tenant_id, reservation_id, feature, period_key, subscription_id, feature_type, amount, state,
			expires_at, held_position)
 VALUES ($1, 'r', 'calls', 'lifetime', $2, 'QUOTA', $3, 'HELD', now(), 1)`
		must.Exec(t, pool, sql, tenant, newID(), i+1)
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
