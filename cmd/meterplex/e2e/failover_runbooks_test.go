package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// openRunbook returns a function that runs the transcript under a heading of a page of docs/runbooks, in a folder. It skips the test if a
// program that the page's commands need is missing.
func (r *failoverTest) openRunbook(dir, name string, programs ...string) (run func(heading string, env ...string)) {
	r.t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			r.t.Skipf("SKIPPED, the runbook %s was not run: %v", name, err)
		}
	}
	return func(heading string, env ...string) {
		r.t.Helper()
		env = append(env, "TENANT_KEY="+r.tenant.key, "DATABASE_URL="+r.db, "METERPLEX_PIPE="+r.pipe, "METERPLEX_TOPIC_PREFIX="+r.prefix, "KAFKA_BROKERS="+strings.Join(r.brokers().Brokers(), ","))
		r.runTranscript(r.front, dir, transcript(r.t, filepath.Join("docs", "runbooks", name), "## "+heading+"\n"), env...)
	}
}

// An operator fails over to an asynchronous standby, finds the lost usage, and sends it
// again, by docs/runbooks/failover.md. Before that, fewer events follow than were lost.
func TestRunbookFailover(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newFailoverTest(t)
	dir := t.TempDir()
	run := r.openRunbook(dir, "failover.md", "psql", "curl")
	r.sendCounted(usage("kept", 3, 1))
	r.servers.attach()
	r.servers.link.set(cuts)
	gone := usage("lost", 20, 1000)
	r.sendCounted(gone)

	r.servers.killPrimary()
	run("Promote the standby", "STANDBY="+ofDatabase(r.servers.standby))
	r.servers.promoted()
	lost := r.servers.lostByFailover()
	r.noteRecovery(lost)
	r.removeLost(lost)
	run("Check")
	r.ingest(r.front, r.tenant, "accepted", usage("after", 5, 1)...)
	r.awaitFigures(total{8, 8})
	must.OK(t, r.servers.former.Restart(t.Context()))
	run("Find lost events", "NEW="+ofDatabase(r.servers.primary), "OLD="+ofDatabase(r.servers.former))
	r.servers.former.Halt(t.Context())
	again, err := os.ReadFile(filepath.Join(dir, "lost.txt"))
	if err != nil || strings.Count(string(again), `"eventId"`) != 20 || !strings.HasPrefix(string(again), r.tenant.id+"|") {
		t.Errorf("lost events: %v\n%s", err, again)
	}
	run("Send it again")
	r.ingest(r.front, r.tenant, "duplicate", gone...)
	r.awaitFigures(total{20_008, 28})
	run("How to see that it is over")
	r.checkEpochRaised("promoted")
	r.prove()
}

// An operator restores a dump on a new server by docs/runbooks/restore.md, while 1,000
// records of events that the dump does not have are unread.
func TestRunbookRestore(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newFailoverTest(t, consumers()...)
	run := r.openRunbook(t.TempDir(), "restore.md", "pg_dumpall", "pg_dump", "psql", "curl")
	how := recovery{"dump restored on a new server", "restored", func(p *serverPair) func() {
		run("Make a dump", "DATABASE="+ofDatabase(p.primary))
		return func() {
			p.killPrimary()
			server := p.startEmptyServer()
			run("Restore a dump", "NEW="+ofDatabase(server))
			p.replace(server)
			p.open()
		}
	}}
	r.setBack(how, 1000, false)
	if n := r.lostRecords("usage.raw", "meterplex-usage-validator"); n != 1000 {
		t.Errorf("%d records of lost events are unread on usage.raw, want 1000", n)
	}
	run("Check")
	r.checkAfterRecovery(how, 1000, true)
	r.checkDropped("meterplex-usage-validator", 1000)
	run("Find the last event", "NEW="+ofDatabase(r.servers.primary))
	run("How to see that it is over")
	r.prove()
}
