package verify

import (
	"net/url"
	"testing"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
)

// TestTheServerThatAcceptsWritesIsFoundAmongSeveralHosts: the checks' own sessions only read.
func TestTheServerThatAcceptsWritesIsFoundAmongSeveralHosts(t *testing.T) {
	database, err := url.Parse(localtest.Migrated(t, postgres.Migrate))
	must.OK(t, err)
	for _, hosts := range []string{"127.0.0.1:1," + database.Host, database.Host + ",127.0.0.1:1"} {
		several := *database
		several.Host, several.RawQuery = hosts, "target_session_attrs=read-write"
		v := &verifier{Config: Config{DatabaseURL: several.String()}}
		if err := v.connect(t.Context()); err != nil {
			t.Errorf("%s: %v", hosts, err)
			continue
		}
		var role, readOnly string
		if err := v.log.QueryRow(t.Context(), `SELECT current_user, current_setting('transaction_read_only')`).Scan(&role, &readOnly); err != nil || role != postgres.WorkerRole || readOnly != "on" {
			t.Errorf("%s: role %s, read only %s, %v", hosts, role, readOnly, err)
		}
		v.close()
	}
}
