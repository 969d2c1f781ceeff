package store

import (
	"crypto/sha256"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/internal/must"
)

// TestEndedSessionsOfTheConsoleAreDeleted: those that are idle or old, and links that have expired. The others remain.
func TestEndedSessionsOfTheConsoleAreDeleted(t *testing.T) {
	_, _, pool, _ := openStore(t)
	run(t, pool, `INSERT INTO console_sessions (token_hash, key_id, created_at, used_at) SELECT sha256(n::text::bytea), $1,
 now() - interval '1 minute' - make_interval(hours => n), now() - make_interval(mins => CASE WHEN n = 3 THEN 31 ELSE 1 END)
 FROM generate_series(0, 20) n`, uuid.Nil)
	run(t, pool, `INSERT INTO console_links (token_hash, key_id, expires_at) SELECT sha256(n::text::bytea), $1,
		now() + make_interval(mins => n) FROM generate_series(-5, 5) n`, uuid.Nil)
	expireAll(t, retention(pool, 2))
	if n := count(t, pool, `SELECT count(*) FROM console_sessions`); n != 11 { // created 0 to 11 h ago, without the idle one
		t.Errorf("%d sessions remain", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM console_sessions WHERE token_hash = sha256('3')
		OR created_at < now() - interval '12 hours'`); n != 0 {
		t.Errorf("%d ended sessions remain", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM console_links`); n != 5 {
		t.Errorf("%d links remain", n)
	}
}

// TestALinkOfTheConsoleIsUsedOnce, also by many browsers at the same time.
func TestALinkOfTheConsoleIsUsedOnce(t *testing.T) {
	_, _, pool, _ := openStore(t)
	s, token, key, now := NewConsoleSessions(pool), sha256.Sum256([]byte("link")), uuid.Must(uuid.NewV7()), time.Now()
	must.OK(t, s.OpenLink(t.Context(), token, key, now.Add(time.Minute)))
	var all sync.WaitGroup
	var mu sync.Mutex
	used := 0
	for range 8 {
		all.Go(func() {
			got, err := s.UseLink(t.Context(), token, now)
			mu.Lock()
			defer mu.Unlock()
			if overloaded := (*commands.Overloaded)(nil); err != nil && !errors.As(err, &overloaded) {
				t.Error(err)
			}
			if got == key {
				used++
			}
		})
	}
	all.Wait()
	if used != 1 {
		t.Errorf("the link was used %d times", used)
	}
}

// TestSessionsOfTheConsoleHoldFewConnections: forged cookies cause reads on the connections that events are written through.
func TestSessionsOfTheConsoleHoldFewConnections(t *testing.T) {
	_, _, pool, _ := openStore(t)
	s := NewConsoleSessions(pool)
	for range maxSessionReads {
		s.seats <- struct{}{}
	}
	overloaded := (*commands.Overloaded)(nil)
	if _, err := s.Session(t.Context(), [32]byte{}); !errors.As(err, &overloaded) {
		t.Errorf("one more read gives %v", err)
	}
	<-s.seats
	if got, err := s.Session(t.Context(), [32]byte{}); got != nil || err != nil {
		t.Errorf("an unknown token gives %v, %v", got, err)
	}
}
