package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// An instance never has more sessions than it logs at its start, with PostgreSQL as the pipe, too: not under load, and not while a session
// that holds every head makes all others wait. The read server of the second one is its own database. The third one serves the same with as
// few as its roles need, one less than a pod of the chart has.
func TestAnInstanceStaysWithinItsConnections(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	for name, c := range map[string]struct {
		pipe    string
		setting string
		want    map[string]int
	}{
		"kafka":    {"kafka", "METERPLEX_DATABASE_CONNECTIONS=0", map[string]int{"DATABASE_URL": 36}},
		"postgres": {"postgres", "DATABASE_READ_URL", map[string]int{"DATABASE_URL": 50, "DATABASE_READ_URL": 8}},
		"few":      {"postgres", "METERPLEX_DATABASE_CONNECTIONS=31", map[string]int{"DATABASE_URL": 31}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDeployment(t)
			w.pipe = c.pipe
			if c.setting == "DATABASE_READ_URL" {
				c.setting += "=" + w.db
			}
			at := w.serve("", c.setting)
			budget := at.connections()
			if !maps.Equal(budget, c.want) {
				t.Errorf("it logs that it opens %v, docs/how-to/sizing.md says %v", budget, c.want)
			}
			w.catalogue(at)
			tenants := w.createTenants(at, 2)
			ctx, cancel := context.WithCancel(t.Context())
			most := make(chan int)
			go func() { most <- mostSessions(w, ctx) }()
			l := w.startLoad(tenants, 6, busyTraffic(), func(int) string { return at.url() })
			crowd(w, at, tenants)
			l.stop()
			cancel()
			sum := budget["DATABASE_URL"] + budget["DATABASE_READ_URL"]
			if got := <-most; got > sum || got < sum/2 {
				t.Errorf("it had %d sessions at most, and logs %v", got, budget)
			} else {
				t.Logf("%d sessions at most, of %d", got, sum)
			}
			w.finish()
		})
	}
}

// connections returns the greatest numbers of connections that an instance logs, by the setting of the server.
func (i *instance) connections() map[string]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	said := map[string]int{}
	for _, line := range i.logs {
		if m := regexp.MustCompile(`server=(\S+) opens_up_to=(\d+) `).FindStringSubmatch(line); m != nil {
			said[m[1]], _ = strconv.Atoi(m[2])
		}
	}
	return said
}

// mostSessions counts the sessions of instances until ctx ends, and returns the greatest number.
func mostSessions(w *deployment, ctx context.Context) (most int) {
	for ctx.Err() == nil {
		var n int
		err := w.sql.QueryRow(ctx,
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'meterplex%'`).Scan(&n)
		if err != nil && ctx.Err() == nil {
			w.t.Error(err)
			return most
		}
		most = max(most, n)
		time.Sleep(5 * time.Millisecond)
	}
	return most
}

// crowd sends reads, changes and usage of many clients at once, while another session holds every head for a second, and
// tables that reads, folds and the loops of the instance look into.
func crowd(w *deployment, at *instance, tenants []*tenant) {
	w.t.Helper()
	tx, err := w.sql.Begin(w.t.Context())
	if err == nil {
		_, err = tx.Exec(w.t.Context(), `LOCK TABLE replays, reservations, sagas, usage_aggregates IN ACCESS EXCLUSIVE MODE`)
	}
	if err == nil {
		_, err = tx.Exec(w.t.Context(), `SELECT FROM log_heads ORDER BY partition FOR UPDATE`)
	}
	must.OK(w.t, err)
	var clients sync.WaitGroup
	for n := range 60 {
		x := tenants[n%len(tenants)]
		clients.Go(func() {
			_, _, _ = w.call(w.t.Context(), x.key, http.MethodGet, at.url()+"/api/v1/usage/events?limit=1000", nil)
			_, _, _ = w.call(w.t.Context(), w.operator, http.MethodPost, at.url()+"/api/v1/tenants",
				object{"name": fmt.Sprint("T", n), "class": "small"})
			_, _, _ = w.call(w.t.Context(), x.key, http.MethodGet, at.url()+"/api/v1/usage/aggregates", nil)
		})
	}
	time.Sleep(time.Second)
	if err := tx.Rollback(w.t.Context()); err != nil {
		w.t.Error(err)
	}
	clients.Wait()
}
