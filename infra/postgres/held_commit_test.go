package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// commits holds the commits of transactions that change a table, until it releases them.
type commits struct {
	testing.TB
	owner *sql.DB
	lock  *sql.Conn
}

// holdCommits makes each COMMIT after a change of a table wait for a lock of the test's.
func holdCommits(t *testing.T, database, change, table string) *commits {
	t.Helper()
	owner, err := OwnerDB(database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Close() })
	c := &commits{TB: t, owner: owner}
	c.exec(owner.ExecContext(t.Context(), `CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = '1min' AS
 $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$`))
	c.exec(owner.ExecContext(t.Context(), fmt.Sprintf(`CREATE CONSTRAINT TRIGGER held AFTER %s ON %s DEFERRABLE INITIALLY DEFERRED
 FOR EACH ROW EXECUTE FUNCTION held()`, change, table)))
	if c.lock, err = owner.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.lock.Close() })
	c.exec(c.lock.ExecContext(t.Context(), `SELECT pg_advisory_lock(7)`))
	return c
}

func (c *commits) exec(_ sql.Result, err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// reached waits until a COMMIT is held, or until a time limit.
func (c *commits) reached() {
	c.Helper()
	end := time.Now().Add(time.Minute)
	for n := 0; n == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.Fatal("no COMMIT was reached in a minute")
		}
		err := c.owner.QueryRowContext(c.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
		if err != nil {
			c.Fatal(err)
		}
	}
}

func (c *commits) letGo() {
	c.Helper()
	c.exec(c.lock.ExecContext(c.Context(), `SELECT pg_advisory_unlock(7)`))
}

func TestP1_NothingIsAnsweredBeforeItsCommit(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": 3 * smallRows} {
		t.Run(name, func(t *testing.T) {
			l, _, database := openLog(t)
			tenant := uuid.Must(uuid.NewV7())
			var batch []commands.Submitted
			for n := range size {
				batch = append(batch, usageEvent(tenant, fmt.Sprint("e", n), 1))
			}
			held := holdCommits(t, database, "INSERT", "event_log_rows")
			answered := make(chan error, 1)
			go func() {
				_, err := l.Submit(context.Background(), tenant, batch)
				answered <- err
			}()
			held.reached()
			select {
			case err := <-answered:
				answered <- err
				t.Errorf("a batch was answered while its COMMIT was under way: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			held.letGo()
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

// A reader sees the old state while a change commits, and never after the change is answered.
func TestWhatIsKeptIsForgottenAfterTheCommit(t *testing.T) {
	l, _, database := openLog(t)
	tenant := domain.Tenant{ID: uuid.Must(uuid.NewV7()), Name: "A", Class: "small", Status: domain.TenantActive, DataResidency: "eu", CreatedAt: time.Now()}
	secret := [32]byte{1}
	save := func(key bool) error {
		return l.ChangeCatalogue(context.Background(), tenant.ID, func(tx commands.CatalogueTx) error {
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
		_, of, err := l.Keys().Find(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		return of.Status
	}
	held := holdCommits(t, database, "UPDATE", "tenants")
	tenant.Status = domain.TenantSuspended
	changed := make(chan error, 1)
	go func() { changed <- save(false) }()
	held.reached()
	if s := told(); s != domain.TenantActive {
		t.Errorf("the tenant is %s before that is committed", s)
	}
	held.letGo()
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if s := told(); s != domain.TenantSuspended {
		t.Errorf("the change was answered, and the tenant is still %s", s)
	}
}
