package http_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/localtest"
)

func TestRatesAndBacklogAreBounded(t *testing.T) {
	backlog := int64(0)
	w, a := newServiceWithAccount(t, func(s *http.Server) {
		s.Limits.EventsPerSecond, s.Limits.EventsBurst = 0.001, 3
		s.Backlog = func() (int64, int64) { return backlog, 10 }
	})
	b := w.newAccount("B")
	w.ingest(a, batch(event("1", nil), event("2", nil)))
	before := w.stored()
	refused := w.do(call{"POST", "/api/v1/usage/events", a.key, nil, batch(event("3", nil), event("4", nil))})
	w.refused(refused, 429, "rate_limited")
	if !strings.Contains(refused.header.Get("RateLimit"), "r=1;") || w.stored() != before {
		t.Errorf("%v", refused.header)
	}
	w.ingest(a, batch(event("3", nil)))
	w.ingest(b, batch(event("1", nil))) // another tenant's bucket is full
	backlog = 11
	w.refused(w.do(call{"POST", "/api/v1/usage/events", b.key, nil, batch(event("2", nil))}), 429, "backlog_full")
}

func TestMissingBodiesTimeOut(t *testing.T) {
	w, a := newServiceWithAccount(t)
	s := http.NewServer("", nil)
	if s.ReadTimeout <= 0 || s.ReadHeaderTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("a connection may take for ever: to send %s, its headers %s, to be answered %s, idle %s; %d bytes of headers",
			s.ReadTimeout, s.ReadHeaderTimeout, s.WriteTimeout, s.IdleTimeout, s.MaxHeaderBytes)
	}
	const short = 300 * time.Millisecond
	w.startServer(func(s *nethttp.Server) { s.ReadTimeout, s.ReadHeaderTimeout = short, short })
	for name, c := range map[string]struct {
		sent, want string
		drips      bool // a header comes byte by byte
	}{
		"a body": {"POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + a.key +
			"\r\nContent-Length: 10\r\n\r\n{", "HTTP/1.1 408", false},
		"headers": {"GET /livez HTTP/1.1\r\nHost: x\r\n", "", false}, "slow headers": {"GET /livez HTTP/1.1\r\nHost: x\r\n", "", true},
	} {
		conn, err := net.Dial("tcp", w.addr)
		w.must(err)
		w.must(conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(conn, c.sent)
		for i := 0; c.drips && err == nil; i++ { // fails after the server has closed the connection
			_, err = fmt.Fprintf(conn, "X-%d: y\r\n", i)
			time.Sleep(20 * time.Millisecond)
		}
		got, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(string(got), c.want) ||
			strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("%s: held, %v, answered %.100q", name, err, got)
		}
		_ = conn.Close()
	}
}

// TestAnUnreachableDatabaseIs503 closes the database to connections and requests each
// route.
func TestAnUnreachableDatabaseIs503(t *testing.T) {
	m := newIsolationFixture(t)
	var name string
	m.must(m.pool.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
	admin, err := pgx.Connect(t.Context(), localtest.Postgres(t).AdminURL())
	m.must(err)
	defer admin.Close(context.Background())
	_, err = admin.Exec(t.Context(), `ALTER DATABASE `+pgx.Identifier{name}.Sanitize()+` ALLOW_CONNECTIONS false`)
	m.must(err)
	for left := 1; left > 0; time.Sleep(5 * time.Millisecond) { // a terminated session may answer once more
		m.must(admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1`, name).
			Scan(&left))
	}
	for _, route := range http.Routes() {
		if route.Who == auth.Public {
			continue
		}
		c, _ := m.sample(route)
		c.key = bootstrap // accepted without the database
		if inMemory := []string{"/api/v1/system/overview", "/api/v1/system/instance"}; route.Who == auth.AnyKey ||
			slices.Contains(inMemory, route.Path) {
			m.want(200, c) // schemas are part of the binary
			continue
		}
		if route.Who == auth.Tenant {
			c.key = m.a.key
		}
		if route.Who == auth.Either && route.Method == "GET" && !strings.Contains(route.Path, "{tenantId}") {
			c.path = with(c.path, "tenantId="+m.a.id)
		}
		got := m.do(c)
		for end := time.Now().Add(time.Minute); strings.Contains(string(got.body), `"overloaded"`) && time.Now().Before(end); {
			got = m.do(c) // a connection attempt took longer than a request waits
		}
		m.refused(got, 503, "unavailable")
	}
	m.refused(m.do(call{method: "GET", path: "/readyz"}), 503, "not_ready")
	m.want(200, call{method: "GET", path: "/livez"})
	_, err = admin.Exec(t.Context(), `ALTER DATABASE `+pgx.Identifier{name}.Sanitize()+` ALLOW_CONNECTIONS true`)
	m.must(err)
	m.want(200, call{method: "GET", path: "/readyz"})
}

func TestMetricsCountVerdictsWithoutTenants(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("1", nil), event("1", map[string]any{"amount": 2}), event("2", map[string]any{"amount": 0})))
	got := string(w.do(call{method: "GET", path: "/metrics"}).body)
	for _, line := range []string{`meterplex_events_ingested_total{tenant_class="small",verdict="accepted"} 1`,
		`meterplex_events_ingested_total{tenant_class="small",verdict="conflict"} 1`,
		`meterplex_events_ingested_total{tenant_class="small",verdict="rejected"} 1`,
		`meterplex_events_ingested_total{tenant_class="large",verdict="accepted"} 0`,
		`meterplex_events_ingested_total{tenant_class="medium",verdict="duplicate"} 0`,
		`meterplex_events_ingested_total{tenant_class="platform",verdict="rejected"} 0`, `meterplex_payload_conflicts_total 1`,
		`meterplex_ingest_duration_seconds_count 1`,
		`meterplex_http_requests_total{method="POST",route="/api/v1/usage/events",status="202"} 1`} {
		w.holds("the metrics", got, line+"\n")
	}
	if strings.Contains(got, a.id) {
		t.Error("a metric names a tenant")
	}
}

func TestBootstrapKeysAreChecked(t *testing.T) {
	for _, key := range []string{"mp_op_short", "mp_live_" + strings.Repeat("x", 40), "secret", "mp_op_" + strings.Repeat("x", 31),
		"mp_op_" + strings.Repeat("ü", 40)} {
		if _, err := (&http.Server{BootstrapOperatorKey: key}).Handler(); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, n := range []int{32, 200, 1000} {
		if _, err := (&http.Server{BootstrapOperatorKey: "mp_op_" + strings.Repeat("x", n)}).Handler(); err != nil {
			t.Errorf("%d characters: %v", n, err)
		}
	}
}

// The list of operator keys has the configured one, by the name and id of its actions in the log, on one page of all.
func TestTheBootstrapKeyIsListed(t *testing.T) {
	w := newTestService(t)
	w.key("", nil, "audit")
	listed, cursor := map[string]map[string]any{}, ""
	for range 9 {
		page := w.want(200, call{method: "GET", path: "/api/v1/operator-keys?limit=1" + cursor, key: bootstrap})
		for _, k := range page["data"].([]any) {
			listed[k.(map[string]any)["id"].(string)] = k.(map[string]any)
		}
		if page["nextCursor"] == nil {
			break
		}
		cursor = "&cursor=" + page["nextCursor"].(string)
	}
	event := w.want(200, call{method: "GET", path: "/api/v1/events?limit=1", key: bootstrap})["data"].([]any)[0].(map[string]any)
	key := listed[event["actor"].(map[string]any)["id"].(string)]
	if len(listed) != 2 || key["name"] != events.BootstrapKeyName || key["createdAt"] != nil {
		t.Errorf("the event %v is by none of %v", event["actor"], listed)
	}
}
