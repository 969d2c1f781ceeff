package http_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

// interruptibleDialer is a connection to the database that can be interrupted.
type interruptibleDialer struct {
	mu    sync.Mutex
	away  bool
	conns []net.Conn
}

var errDatabaseDown = &net.OpError{Op: "dial", Err: errors.New("the database is away")}

func (c *interruptibleDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return nil, errDatabaseDown
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	c.conns = append(c.conns, conn)
	return conn, err
}

func (c *interruptibleDialer) interrupt(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Checks are answered from the cache for one second after the database is lost, then with
// 503 until it is back.
func TestChecksFailClosed(t *testing.T) {
	way := &interruptibleDialer{}
	var grants *entitlements.Cache
	var behind *pgxpool.Pool
	w := newTestService(t, func(s *http.Server) {
		config := s.Reads.Entitlements.Pool.Config()
		config.ConnConfig.DialFunc = way.dial
		var err error
		behind, err = pgxpool.NewWithConfig(t.Context(), config)
		must.OK(t, err)
		t.Cleanup(behind.Close)
		grants = entitlements.NewCache(behind, behind)
		s.Reads = models.NewReads(query.DB{Pool: behind}, grants, models.DefaultFolds(), time.Now, 0)
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- grants.Run(ctx) }()
	defer func() { stop(); w.must(<-done) }()
	w.catalogue()
	a := w.newAccount("A")
	w.fold()
	w.must(grants.Confirm(ctx))
	check := call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}
	list := call{method: "GET", path: "/api/v1/entitlements", key: a.key}
	w.want(200, check)
	for range 2 {
		way.interrupt(true)
		gone := time.Now()
		if got := w.do(check); got.status != 200 && time.Since(gone) < 500*time.Millisecond && !testing.Short() {
			t.Errorf("what was confirmed just now is not used: %d %s", got.status, got.body)
		}
		time.Sleep(time.Until(gone.Add(1100 * time.Millisecond)))
		for _, c := range []call{check, list, {"POST", "/api/v1/entitlements/check", a.key, nil, `{"features":[{"feature":"sso"}]}`}} {
			w.refused(w.do(c), 503, "unavailable")
		}
		way.interrupt(false)
		for back := time.Now(); w.do(check).status != 200; time.Sleep(10 * time.Millisecond) {
			if time.Since(back) > time.Minute {
				t.Fatal("the database is back, and nothing is answered")
			}
		}
	}
}
