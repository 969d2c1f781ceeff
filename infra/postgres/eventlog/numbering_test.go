package eventlog

import (
	"context"
	"errors"
	"fmt"

	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// openTracedLog makes a log whose statements are recorded.
func openTracedLog(t *testing.T, url string) (*Log, *localtest.Statements) {
	t.Helper()
	_, pool := openLogAt(t, url)
	traced, sent := localtest.Traced(t, pool)
	l, err := New(t.Context(), traced, Config{Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
		LongestWait: time.Hour, Written: localtest.CheckPayloads(t).Written})
	must.OK(t, err)
	t.Cleanup(l.Close)
	return l, sent
}

// by makes an event of an actor.
func by(actor string, tenant uuid.UUID, eventID string) metering.Submitted {
	s := usageEvent(tenant, eventID, 1)
	s.Actor.ID = actor
	return s
}

// holdOrigin adds the origin of an actor in a transaction that stays open, so that the log's own
// attempt to add it waits.
func holdOrigin(t *testing.T, pool *pgxpool.Pool, actor string) (let func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	for _, sql := range []string{
		`SET LOCAL idle_in_transaction_session_timeout = 0`,
		`INSERT INTO log_vocabularies VALUES ('` + events.CurrentVocabulary().Hash() + `', '` + events.CurrentVocabulary().Document() +
			`') ON CONFLICT DO NOTHING`,
		`INSERT INTO log_origins (actor_type, actor_id, service, instance, commit, vocabulary, residency)
 VALUES ('api_key', '` + actor + `', 'meterplex', 'test', 'x', '` + events.CurrentVocabulary().Hash() + `', 'unspecified')`,
	} {
		must.Exec(t, tx, sql)
	}
	let = sync.OnceFunc(func() { _ = tx.Commit(context.Background()) })
	t.Cleanup(let)
	return let
}

// isAddingOrigins reports whether a session waits to add origins.
func isAddingOrigins(t *testing.T, url string) func() bool {
	owner := asOwner(t, url)
	return func() (so bool) {
		t.Helper()
		if err := owner.QueryRow(`SELECT EXISTS (SELECT FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO log_origins%' AND datname = current_database())`).Scan(&so); err != nil {
			t.Fatal(err)
		}
		return so
	}
}

// P9's sibling: a tenant's events with new origins, which cannot be added now, delay no event of
// another tenant, whether its origins are new, too, or known.
func TestP9_NewOriginsOfATenantDelayNoOther(t *testing.T) {
	l, pool, url := openLog(t)
	pair := tenantsApart(2)
	a, b := pair[0], pair[1]
	submit(t, l, b, by("known", b, "first"))
	let := holdOrigin(t, pool, "slow")
	stored, done := make(chan struct{}), make(chan struct{})
	go func() { // A sends again until it is accepted
		defer close(done)
		for n := 0; ; n++ {
			_, err := l.Submit(context.Background(), a, []metering.Submitted{by("slow", a, fmt.Sprint(n))})
			if err == nil {
				close(stored)
				return
			}
			if t.Context().Err() != nil {
				return
			}
		}
	}()
	must.Until(t, "A's origin waits", isAddingOrigins(t, url))
	large := make([]metering.Submitted, smallRows+1)
	for i := range large {
		large[i] = by("known", b, fmt.Sprint("large", i))
	}
	for n, batch := range [][]metering.Submitted{{by("known", b, "1")}, {by("new", b, "2")}, large,
		{by("known", b, "3"), by("newer", b, "4")}} {
		if outcomes, err := l.Submit(t.Context(), b, batch); err != nil || outcomes[0].Status != metering.Appended {
			t.Errorf("batch %d of B: %v, %v", n, outcomes, err)
		}
	}
	select {
	case <-stored:
		t.Error("A's event was stored although its origin could not be added")
	default:
	}
	let()
	<-done
	select {
	case <-stored:
	default:
		t.Error("A's event was not stored afterwards")
	}
}

// A process that meets known origins only reads: it allocates no number, adds no row, and finds all
// origins of a submission by one statement.
func TestKnownOriginsAreOnlyRead(t *testing.T) {
	l, _, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	batch := func(round int) (list []metering.Submitted) {
		for n := range 10 {
			list = append(list, by(fmt.Sprint("key ", n), tenant, fmt.Sprint(round, "/", n)))
		}
		return list
	}
	submit(t, l, tenant, batch(0)...)
	last := func() (n int64) {
		t.Helper()
		owner := asOwner(t, url)
		must.OK(t, owner.QueryRow(`SELECT last_value FROM log_origins_id_seq`).Scan(&n))
		return n
	}
	if n := last(); n != 10 {
		t.Fatalf("10 origins took %d numbers", n)
	}
	for round := range 3 {
		again, sent := openTracedLog(t, url)
		submit(t, again, tenant, batch(round+1)...)
		if n := sent.Count("INSERT INTO log_origins") + sent.Count("INSERT INTO log_vocabularies"); n != 0 {
			t.Errorf("%d statements added what is known", n)
		}
		// The first sight of the partition's epoch starts the cache again: one more look.
		if n := sent.Count("FROM log_origins"); n < 1 || n > 2 {
			t.Errorf("%d statements looked up 10 origins", n)
		}
	}
	if n := last(); n != 10 {
		t.Errorf("looks at known origins took %d numbers", n-10)
	}
}

// At the end of the numbers that a row of the log can hold, new origins are refused with a clear
// error; events of known ones are recorded, and no number is given twice.
func TestTheLastNumberOfOrigins(t *testing.T) {
	l, pool, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, by("first", tenant, "1"))
	execute(t, url, `SELECT setval('log_origins_id_seq', 2147483646)`)
	submit(t, l, tenant, by("last", tenant, "2"))
	const want = "all 2147483647 numbers of log_origins are used"
	for range 2 {
		if _, err := l.Submit(t.Context(), tenant, []metering.Submitted{by("one more", tenant, "3")}); !errors.Is(err,
			commands.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("beyond the last number: %v", err)
		}
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := l.AppendTx(t.Context(), tx, []events.Pending{by("another", tenant, "4").Pending})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("beyond the last number, in a transaction: %v", err)
	}
	for _, actor := range []string{"first", "last"} {
		submit(t, l, tenant, by(actor, tenant, "of "+actor))
	}
	if n := count(t, pool,
		`SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin AND o.actor_id IN ('first', 'last')`); n != 4 {
		t.Errorf("%d events have their origins, want 4", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log_rows`); n != 4 {
		t.Errorf("%d events, want 4", n)
	}
}

// TestCloseEndsTheNumberingOfOrigins: Close does not wait until the time for new origins that cannot be added is over.
func TestCloseEndsTheNumberingOfOrigins(t *testing.T) {
	l, pool, url := openLog(t)
	tenant := uuid.New()
	submit(t, l, tenant, by("known", tenant, "0"))
	holdOrigin(t, pool, "slow")
	answer := make(chan error, 1)
	go func() {
		_, err := l.Submit(context.Background(), tenant, []metering.Submitted{by("slow", tenant, "1")})
		answer <- err
	}()
	must.Until(t, "the origin waits", isAddingOrigins(t, url))
	l.Close()
	if err := <-answer; !errors.Is(err, commands.ErrUnavailable) || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("the caller's answer is %v, not that numbering was ended", err)
	}
}
