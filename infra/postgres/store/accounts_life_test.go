package store

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
)

// failingOver is a store whose server is replaced, by one that has lost the last event, after a fold without a lock.
type failingOver struct {
	*Store
	afterAccounts, afterReservations func()
}

func (s *failingOver) FoldedAccounts(ctx context.Context, tenant uuid.UUID) (map[domain.AccountKey]*domain.Account, commands.FoldedTo, error) {
	sums, upTo, err := s.Store.FoldedAccounts(ctx, tenant)
	s.afterAccounts()
	return sums, upTo, err
}

func (s *failingOver) HeldReservations(ctx context.Context, tenant uuid.UUID) (map[string]*events.ReservationState, commands.FoldedTo, error) {
	held, upTo, err := s.Store.HeldReservations(ctx, tenant)
	s.afterReservations()
	return held, upTo, err
}

// loseLast loses the last event of a partition, as a failover to a standby that is behind does.
func loseLast(t *testing.T, owner *sql.DB, partition int16) {
	t.Helper()
	for _, lose := range []string{
		`DELETE FROM event_log_rows l USING log_heads h WHERE h.partition = $1 AND l.partition = h.partition AND l.position = h.position`,
		`UPDATE log_heads SET position = position - 1, timeline = timeline - 1, started_at = started_at - interval '1 hour' WHERE partition = $1`,
	} {
		if _, err := owner.Exec(lose, partition); err != nil {
			t.Fatal(err)
		}
	}
}

// A failover after the log was folded loses an event, and another one gets its position. The repair sets the account to the log of the new
// epoch. A log that is in another epoch after each fold is reported as unavailable.
func TestP7_ARepairAcrossAFailoverSetsAnAccountToTheLog(t *testing.T) {
	tier.AtSize(t)
	s, _, pool, url := openStore(t)
	owner, nothing := asOwner(t, url), func() {}
	for name, x := range map[string]struct {
		afterReservations bool
		failovers         int
		want              string
	}{
		"after the accounts":     {false, 1, "301"},
		"after the reservations": {true, 1, "301"},
		"after each fold":        {true, 1 << 20, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tenant := newID()
			if _, err := pool.Exec(t.Context(), `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme', 'small', 'ACTIVE', now())`, tenant); err != nil {
				t.Fatal(err)
			}
			hold := func(id string, amount int64) {
				if err := s.Change(t.Context(), tenant, func(tx commands.Tx) error {
					_, err := tx.Append(heldEvent(t, tenant, id, amount))
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			hold("kept", 1)
			hold("lost", 20)
			left := x.failovers
			failover := func() {
				if left--; left >= 0 {
					loseLast(t, owner, events.PartitionOf(tenant))
					hold(newID().String(), 300)
				}
			}
			at := &failingOver{s, failover, nothing}
			if x.afterReservations {
				at = &failingOver{s, nothing, failover}
			}
			accounts := &commands.Accounts{Store: at, Now: time.Now, NewID: newID}
			result, err := accounts.Reconcile(t.Context(), commands.Request{}, tenant, true, "INC-1")
			if x.want == "" {
				if !errors.Is(err, commands.ErrUnavailable) || count(t, pool, `SELECT count(*) FROM quota_accounts WHERE tenant_id = $1`, tenant) != 0 {
					t.Errorf("no fold is of the log's epoch, and the answer is %+v: %v", result, err)
				}
				return
			}
			if err != nil || !result.Repaired || len(result.Reservations) != 2 {
				t.Fatalf("%+v: %v", result, err)
			}
			var held string
			if err := pool.QueryRow(t.Context(), `SELECT held::text FROM quota_accounts WHERE tenant_id = $1`, tenant).Scan(&held); err != nil || held != x.want {
				t.Errorf("the account holds %s, want %s: %v", held, x.want, err)
			}
		})
	}
}
