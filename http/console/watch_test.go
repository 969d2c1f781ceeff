package console

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/must"
)

// keys is commands.Keyring with operators' keys that a test changes, by their hash. Those in tenants are of a tenant.
type keys struct {
	mu      sync.Mutex
	all     map[[32]byte]*domain.APIKey
	tenants map[[32]byte]*domain.Tenant
}

func (k *keys) Find(_ context.Context, hash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[hash], k.tenants[hash], commands.CatalogueAt{}, nil
}

// setTenant makes a key one of a tenant.
func (k *keys) setTenant(hash [32]byte, tenant *domain.Tenant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tenants == nil {
		k.tenants = map[[32]byte]*domain.Tenant{}
	}
	key := *k.all[hash]
	key.TenantID, key.Mode, key.Scopes = tenant.ID, "live", commands.TenantScopes()
	k.all[hash], k.tenants[hash] = &key, tenant
}

func (k *keys) set(hash [32]byte, key *domain.APIKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[hash] = key
}

// watched is a console with open streams.
type watchedConsole struct {
	*fixture
	t     *testing.T
	keys  *keys
	began chan struct{}
}

func newWatchedConsole(t *testing.T) *watchedConsole {
	w := &watchedConsole{fixture: newFixture(t), t: t, keys: &keys{all: map[[32]byte]*domain.APIKey{}}, began: make(chan struct{}, maxViewers)}
	found, err := auth.New(w.keys, "", time.Now)
	must.OK(t, err)
	w.Console.Keys = found
	w.api = func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, "data: {\"text\":\"first\"}\n\n")
		w.began <- struct{}{}
		<-r.Context().Done()
	}
	return w
}

// signIn opens a session of a new key, and returns its cookie and the key's hash.
func (w *watchedConsole) signIn(name string) (cookie string, key [32]byte) {
	key, token := sha256.Sum256([]byte(name)), sha256.Sum256([]byte("token "+name))
	id := uuid.NewSHA1(uuid.Nil, key[:])
	w.keys.set(key, &domain.APIKey{ID: id, TenantID: events.Platform, Mode: "op", Scopes: commands.OperatorScopes()})
	w.open.mu.Lock()
	defer w.open.mu.Unlock()
	w.open.sessions[sha256.Sum256(token[:])] = commands.ConsoleSession{KeyID: id, KeyHash: key[:], CreatedAt: time.Now(), UsedAt: time.Now()}
	return cookieName + "=" + encodeToken(token), key
}

// view opens streams. The channel gets a value for each that has ended.
func (w *watchedConsole) view(cookie string, n int) <-chan struct{} {
	ended := make(chan struct{}, n)
	for range n {
		go func() {
			w.get(livePath, cookie)
			ended <- struct{}{}
		}()
	}
	for range n {
		<-w.began
	}
	return ended
}

// all waits until n streams have ended.
func (w *watchedConsole) all(ended <-chan struct{}, n int, why string) {
	w.t.Helper()
	for range n {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			w.t.Fatal("a stream goes on " + why)
		}
	}
}

// TestWatch_OneReadConfirmsAllStreams, however many there are, and none is read after the last one has left.
func TestWatch_OneReadConfirmsAllStreams(t *testing.T) {
	w := newWatchedConsole(t)
	const streams = 30
	cookie, key := w.signIn("one")
	other, _ := w.signIn("another")
	began := time.Now()
	ended, others := w.view(cookie, streams), w.view(other, streams)
	for reads := func() int { w.open.mu.Lock(); defer w.open.mu.Unlock(); return w.open.reads }; reads() < 3; {
		time.Sleep(time.Millisecond)
	}
	w.open.mu.Lock()
	reads := w.open.reads
	w.open.mu.Unlock()
	if most := int(time.Since(began)/confirmEvery) + 1; reads > most {
		t.Errorf("%d reads for %d streams in %d periods", reads, 2*streams, most)
	}
	w.keys.set(key, nil)
	w.all(ended, streams, "without its key")
	select {
	case <-others:
		t.Error("a stream of another key has ended")
	default:
	}
	w.open.end()
	w.all(others, streams, "without its session")
	w.watching.mu.Lock()
	defer w.watching.mu.Unlock()
	select {
	case <-w.watching.stopped:
	default:
		t.Error("sessions are watched without a stream")
	}
}

// TestWatch_EndsAStreamWithItsKey: revoked, expired, or of a suspended tenant; and with its session's time.
func TestWatch_EndsAStreamWithItsKey(t *testing.T) {
	for name, change := range map[string]func(w *watchedConsole, key [32]byte){
		"after its key was revoked": func(w *watchedConsole, key [32]byte) { w.keys.set(key, nil) },
		"after its key expired": func(w *watchedConsole, key [32]byte) {
			past := time.Now().Add(-time.Second)
			w.keys.set(key, &domain.APIKey{TenantID: events.Platform, ExpiresAt: &past})
		},
		"after the time of its session": func(w *watchedConsole, _ [32]byte) {
			w.open.mu.Lock()
			defer w.open.mu.Unlock()
			for token, s := range w.open.sessions {
				s.UsedAt = s.UsedAt.Add(-commands.ConsoleIdleTime)
				w.open.sessions[token] = s
			}
		},
		"after the server has shut down": func(w *watchedConsole, _ [32]byte) { close(w.shutdown) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatchedConsole(t)
			cookie, key := w.signIn("one")
			ended := w.view(cookie, 2)
			change(w, key)
			w.all(ended, 2, name)
		})
	}
}

// TestWatch_GoesOnAfterAFault: while the database does not answer, no stream ends by its session; afterwards each does.
func TestWatch_GoesOnAfterAFault(t *testing.T) {
	w := newWatchedConsole(t)
	cookie, _ := w.signIn("one")
	set := func(fault error) (reads int) {
		w.open.mu.Lock()
		defer w.open.mu.Unlock()
		w.open.fault = fault
		return w.open.reads
	}
	before := set(errors.New("no database"))
	ended := w.view(cookie, 1)
	w.open.end()
	for set(errors.New("no database")) < before+3 {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-ended:
		t.Error("the stream has ended")
	default:
	}
	set(nil)
	w.all(ended, 1, "without its session")
}
