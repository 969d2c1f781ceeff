// Package verify runs the checks of the module verify against a real PostgreSQL.
package verify

import (
	"net/url"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/verify"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func TestTheServerThatAcceptsWritesIsFoundAmongSeveralHosts(t *testing.T) {
	database, err := url.Parse(localtest.Migrated(t, postgres.Migrate))
	must.OK(t, err)
	for _, hosts := range []string{"127.0.0.1:1," + database.Host, database.Host + ",127.0.0.1:1"} {
		several := *database
		several.Host, several.RawQuery = hosts, "target_session_attrs=read-write"
		checks, err := verify.Run(t.Context(), verify.Config{DatabaseURL: several.String(), NoTopics: "not read", Partitions: []int16{0},
			Now: time.Now, Progress: func(string) {}})
		must.OK(t, err)
		for _, c := range checks {
			if c.Looked && (c.Holds == nil || !*c.Holds) {
				t.Errorf("%s: %s: %s", hosts, c.Name, c.Figures)
			}
		}
	}
}
