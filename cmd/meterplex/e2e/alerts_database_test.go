package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/deploy/observe/feed"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// alertsDatabase is an alertsTest with a pair of servers of its own.
type alertsDatabase struct {
	*alertsTest
	servers *serverPair
}

// TestEveryAlertOnTheServerFiresForItsFault breaks the archive, the standby, a slot and the rights of the login, and promotes the standby.
func TestEveryAlertOnTheServerFiresForItsFault(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	p := newServerPair(t, "archive_mode", "on", "max_wal_size", "32MB", "min_wal_size", "32MB", "wal_keep_size", "32MB", "max_slot_wal_keep_size", "128MB")
	w := &alertsDatabase{&alertsTest{deployment: newDeploymentAt(t, p.url(), p.adminURL()), dir: t.TempDir(), fed: &fedFaults{}}, p}
	w.database, w.pipe = p.adminURL(), "postgres"
	w.archive("true")
	p.admin(p.primary, `GRANT pg_monitor TO meterplex`)
	w.front = w.serve("")
	w.targets = []*instance{w.front}
	w.catalogue(w.front)
	p.attach()
	p.synchronous(true)
	w.serverFaults()
	w.rightsFault()
	w.promotionFault()
	w.fires()
	w.checkCovered()
}

// archive sets archive_command.
func (w *alertsDatabase) archive(command string) {
	w.t.Helper()
	w.servers.admin(w.servers.primary, fmt.Sprintf(`ALTER SYSTEM SET archive_command = '%s'`, command), `SELECT pg_reload_conf()`, `SELECT pg_switch_wal()`)
}

// serverFaults lets the archive fail while the standby is gone, and then a slot without a reader keep WAL.
func (w *alertsDatabase) serverFaults() {
	p := w.servers
	const archived, missing, wal, limit = "meterplex_wal_archived_seconds", "meterplex_synchronous_standbys_missing", "meterplex_wal_bytes", "meterplex_wal_limit_bytes"
	var fails time.Time
	w.happen(
		&brokenPart{alert: "MeterplexArchiveOld", ages: []string{archived}, shown: func(_, now *feed.Scrape) bool {
			return sumOfSeries(now, archived) > now.At.Sub(fails).Seconds()/2 && now.At.Sub(fails) > time.Second
		},
			breaks: func() {
				w.archive("false")
				fails = time.Now()
			},
			mends: func() { w.archive("true") }},
		&brokenPart{alert: "MeterplexStandbyMissing", shown: above(missing, 0),
			breaks: func() {
				_ = syscall.Kill(p.standby.PID(), syscall.SIGKILL)
				<-p.standby.Done()
			},
			mends: func() {
				must.OK(w.t, p.standby.Restart(w.t.Context()))
				p.awaitStandby()
			}},
	)
	w.happen(&brokenPart{alert: "MeterplexWALRetained", shown: func(_, now *feed.Scrape) bool { return sumOfSeries(now, wal) > 0.8*sumOfSeries(now, limit) }, words: map[string]string{"NAME": "idle"},
		breaks: func() {
			p.admin(p.primary, `SELECT pg_create_physical_replication_slot('idle', true)`)
			for range 7 {
				p.admin(p.primary, `SELECT pg_logical_emit_message(false, 'test', 'x')`, `SELECT pg_switch_wal()`)
			}
			p.awaitStandby()
		},
		remedies: []string{"psql"}})
}

// rightsFault takes pg_monitor away from the login.
func (w *alertsDatabase) rightsFault() {
	p := w.servers
	w.happen(&brokenPart{alert: "MeterplexDatabaseNotMonitored", shown: below("meterplex_database_monitored", 1), over: above("meterplex_database_monitored", 0),
		breaks:   func() { p.admin(p.primary, `REVOKE pg_monitor FROM meterplex`) },
		remedies: []string{"psql"}})
}

// promotionFault kills the primary and promotes the standby.
func (w *alertsDatabase) promotionFault() {
	p := w.servers
	raised := `meterplex_log_epoch_raised_seconds{reason="promoted"}`
	w.happen(&brokenPart{alert: "MeterplexServerReplaced", labels: `reason="promoted"`, lasts: true, env: []string{"STANDBY=" + ofDatabase(p.standby)},
		shown: func(_, now *feed.Scrape) bool { return len(now.Metric(raised)) > 0 },
		breaks: func() {
			p.killPrimary()
			appendTo(w.t, filepath.Join(p.standby.Dir(), "data", "postgresql.auto.conf"), "synchronous_standby_names = ''\n")
			p.admin(p.standby, `SELECT pg_reload_conf()`)
			for _, s := range transcript(w.t, filepath.Join("docs", "runbooks", "failover.md"), "## Promote the standby\n") {
				s.command = strings.ReplaceAll(s.command, "$STANDBY", ofDatabase(p.standby))
				w.runStep(&brokenPart{alert: "MeterplexServerReplaced"}, s)
			}
			p.promoted()
			w.sql.Reset()
		}})
}
