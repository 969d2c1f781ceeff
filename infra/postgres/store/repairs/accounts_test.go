package repairs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// asOwner opens a database as its owner, which may write rows that the service may not.
func asOwner(t *testing.T, url string) *sql.DB {
	t.Helper()
	owner, err := postgres.OwnerDB(url)
	must.OK(t, err)
	t.Cleanup(func() { _ = owner.Close() })
	return owner
}

// heldEvent makes the event of a hold of calls.
func heldEvent(t *testing.T, tenant uuid.UUID, id string, amount int64) events.Pending {
	t.Helper()
	used, held := json.Number("0"), json.Number(fmt.Sprint(amount))
	payload, err := codec.EncodePayload(events.ReservationHeld, &events.Reservation{ReservationID: id, Feature: "calls",
		PeriodKey:      domain.PeriodLifetime,
		SubscriptionID: newID(), FeatureType: domain.FeatureQuota, Amount: amount,
		ExpiresAt: time.Now().UTC().Add(time.Hour).Truncate(time.Microsecond), Used: &used, Held: &held})
	must.OK(t, err)
	return events.Pending{EventID: newID(), Subject: events.ReservationHeld, TenantID: tenant, DedupeKey: events.KeyHold(id),
		Actor:     events.Actor{Type: "api_key", ID: "k"},
		Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: payload}
}

// The sums of a tenant's accounts are those of each of its events once: of the events that are read before the head is locked, and of
// those recorded since.
func TestP7_FoldedAccountsCountEachEventOnce(t *testing.T) {
	l, pool := logtest.Open(t, localtest.Migrated(t, postgres.Migrate))
	s, tenant := store.New(pool, l, store.Config{}), newID()
	accounts := &Accounts{Store: s}
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
	sums, at, err := accounts.FoldedAccounts(t.Context(), tenant)
	if err != nil || sums[key].Held.String() != "21" {
		t.Fatalf("%+v up to %s: %v", sums, at, err)
	}
	hold("c", 300)
	err = accounts.ChangeAccounts(t.Context(), tenant, func(tx repair.AccountTx) error {
		_, err := tx.AddFoldedAccounts(tenant, at.Position, sums)
		return err
	})
	if got := sums[key].Held.String(); err != nil || got != "321" {
		t.Errorf("reservations hold %s, want 321: %v", got, err)
	}
}

// failingOver is a store whose server is replaced, by one that has lost the last event, after a fold without a lock.
type failingOver struct {
	*Accounts
	afterAccounts, afterReservations func()
}

func (s *failingOver) FoldedAccounts(ctx context.Context, tenant uuid.UUID) (map[domain.AccountKey]*domain.Account, repair.FoldedTo,
	error) {
	sums, upTo, err := s.Accounts.FoldedAccounts(ctx, tenant)
	s.afterAccounts()
	return sums, upTo, err
}

func (s *failingOver) HeldReservations(ctx context.Context, tenant uuid.UUID) (map[string]*events.ReservationState, repair.FoldedTo,
	error) {
	held, upTo, err := s.Accounts.HeldReservations(ctx, tenant)
	s.afterReservations()
	return held, upTo, err
}

// loseLast loses the last event of a partition, as a failover to a standby that is behind does.
func loseLast(t *testing.T, owner *sql.DB, partition int16) {
	t.Helper()
	for _, lose := range []string{
		`DELETE FROM event_log_rows l USING log_heads h WHERE h.partition = $1 AND l.partition = h.partition AND l.position = h.position`,
		`UPDATE log_heads SET position = position - 1, timeline = timeline - 1, started_at = started_at - interval '1 hour'
			WHERE partition = $1`,
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
	url := localtest.Migrated(t, postgres.Migrate)
	l, pool := logtest.Open(t, url)
	s := store.New(pool, l, store.Config{})
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
			must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme', 'small', 'ACTIVE', now())`,
				tenant)
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
			at := &failingOver{&Accounts{Store: s}, failover, nothing}
			if x.afterReservations {
				at = &failingOver{&Accounts{Store: s}, nothing, failover}
			}
			accounts := &repair.Accounts{Store: at, Now: time.Now, NewID: newID}
			result, err := accounts.Reconcile(t.Context(), commands.Request{}, tenant, true, "INC-1")
			if x.want == "" {
				if !errors.Is(err, commands.ErrUnavailable) || count(t, pool, `SELECT count(*) FROM quota_accounts WHERE tenant_id = $1`,
					tenant) != 0 {
					t.Errorf("no fold is of the log's epoch, and the answer is %+v: %v", result, err)
				}
				return
			}
			if err != nil || !result.Repaired || len(result.Reservations) != 2 {
				t.Fatalf("%+v: %v", result, err)
			}
			var held string
			if err := pool.QueryRow(t.Context(), `SELECT held::text FROM quota_accounts WHERE tenant_id = $1`, tenant).
				Scan(&held); err != nil || held != x.want {
				t.Errorf("the account holds %s, want %s: %v", held, x.want, err)
			}
		})
	}
}
