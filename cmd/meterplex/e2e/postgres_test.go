package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// A backend is killed, so PostgreSQL ends all others and recovers. Then the postmaster is killed
// twice under load and restarts with all acknowledged events; the service waits for it.
func TestPostgresKilled(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, server := newDeploymentOnOwnServer(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	m := busyTraffic()
	m.pause = 0
	l := w.startLoad(tenants, 3, m, func(int) string { return i.url() })
	l.awaitMore(200)
	backend := w.count(`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'meterplex' ORDER BY state, xact_start LIMIT 1`)
	if err := syscall.Kill(backend, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.awaitServer()
	for range 2 {
		l.awaitMore(400)
		before := l.lost()
		if err := syscall.Kill(server.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-server.Done()
		within(t, "requests are refused without the database", func(context.Context) (bool, string) {
			return l.lost() > before, fmt.Sprint(l.lost())
		})
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.sql.Reset() // the test's own connections ended with the server
		if !i.alive() {
			t.Fatalf("the service ended with its database:\n%s", i.lastLines(30))
		}
	}
	l.awaitMore(400)
	l.stop()
	w.finish()
}

// awaitServer waits until the server answers again after a crash, which ended the test's own connections too.
func (w *deployment) awaitServer() {
	w.t.Helper()
	within(w.t, "the server is back", func(ctx context.Context) (bool, string) {
		err := w.sql.Ping(ctx)
		return err == nil, fmt.Sprint(err)
	})
	w.sql.Reset()
}
