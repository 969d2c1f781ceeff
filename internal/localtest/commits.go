package localtest

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// Commits holds the commits of transactions that change a table, until it releases them.
type Commits struct {
	testing.TB
	owner *sql.DB
	lock  *sql.Conn
}

// HoldCommits makes each COMMIT after a change of a table wait for a lock of the test's.
func HoldCommits(t *testing.T, database, change, table string) *Commits {
	t.Helper()
	owner, err := sql.Open("pgx", database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Close() })
	c := &Commits{TB: t, owner: owner}
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

func (c *Commits) exec(_ sql.Result, err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// Reached waits until a COMMIT is held, or until a time limit.
func (c *Commits) Reached() {
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

// LetGo releases them.
func (c *Commits) LetGo() {
	c.Helper()
	c.exec(c.lock.ExecContext(c.Context(), `SELECT pg_advisory_unlock(7)`))
}
