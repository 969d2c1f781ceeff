package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestTheServiceOnEachPostgres: on each major version the service refuses a login without
// rights and names the missing right, starts with a login for each address, and keeps its
// promises through a kill.
func TestTheServiceOnEachPostgres(t *testing.T) {
	tier.AtSize(t)
	for _, major := range local.Majors() {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			s := localtest.PostgresOf(t, major)
			w := newEmptyDeployment(t)
			w.pipe = "postgres"
			moveTo(w, s)
			if err := w.prepare("").tryStart(); err == nil ||
				!strings.Contains(err.Error(),
					`the login "app" may not create the roles meterplex_tenant, meterplex_worker. Run as a superuser:`) {
				t.Errorf("a login without rights: %v", err)
			}
			at := w.serve("", "DATABASE_MIGRATE_URL="+s.URL(), "DATABASE_READ_URL="+strings.Replace(w.db, "//app:", "//reader:", 1))
			w.catalogue(at)
			tenants := w.createTenants(at, 2)
			w.ingest(at, tenants[0], "accepted", events("e", 20, "api_calls")...)
			l := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return at.url() })
			l.awaitMore(200)
			l.killDuringRequest(at)
			at.start()
			l.awaitMore(100)
			l.stop()
			w.settle(at, tenants...)
			w.finish()
		})
	}
}

// moveTo moves the deployment to another server, and to a login there that may only create tables.
func moveTo(w *deployment, s *localtest.Server) {
	w.t.Helper()
	address := func(of string, user *url.Userinfo) string {
		u, err := url.Parse(of)
		must.OK(w.t, err)
		u.Path = "/meterplex"
		if user != nil {
			u.User = user
		}
		return u.String()
	}
	var err error
	if w.sql, err = pgxpool.New(w.t.Context(), address(s.AdminURL(), nil)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.sql.Close)
	for _, statement := range []string{`CREATE ROLE app LOGIN PASSWORD 'p'`, `CREATE ROLE reader LOGIN PASSWORD 'p'`,
		`GRANT CREATE ON SCHEMA public TO app`} {
		if _, err := w.sql.Exec(w.t.Context(), statement); err != nil {
			w.t.Fatal(statement, err)
		}
	}
	w.db = address(s.AdminURL(), url.UserPassword("app", "p"))
}
