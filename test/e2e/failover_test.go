package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// newDeploymentOnPair starts an instance on a pair of servers for each list of roles, and creates a tenant of which three events are
// counted. The standby is not attached yet.
func newDeploymentOnPair(t testing.TB, roles ...string) (*deployment, *tenant) {
	t.Helper()
	w := newDeploymentOn(newServerPair(t))
	for _, list := range roles {
		w.serve(list, "METERPLEX_ADMIN_ADDR=127.0.0.1:0") // as the image, the chart and the unit have it
	}
	w.catalogue(w.instances[0])
	x := w.createTenants(w.instances[0], 1)[0]
	w.ingest(w.instances[0], x, "accepted", usage("kept", 3, 1)...)
	w.drain()
	return w, x
}

// usage makes n events of one amount.
func usage(name string, n int, amount int64) []event {
	batch := events(name, n, "api_calls")
	for i := range batch {
		batch[i].Amount, batch[i].Timestamp = amount, batch[0].Timestamp
	}
	return batch
}

// awaitFigures waits until the aggregates and the entitlement of a tenant, as the API shows them, have as many events with that sum.
func awaitFigures(w *deployment, x *tenant, want total) {
	w.t.Helper()
	within(w.t, fmt.Sprintf("%d events with sum %d are in the figures", want.events, want.amount),
		func(ctx context.Context) (bool, string) {
			var figures struct {
				Data []struct{ Amount, EventCount int64 }
			}
			var check struct{ Used int64 }
			err := w.get(ctx, x.key, w.instances[0], "/api/v1/usage/aggregates?limit=500", &figures)
			if err == nil {
				err = w.get(ctx, x.key, w.instances[0], "/api/v1/entitlements/api_calls/check", &check)
			}
			var is total
			for _, d := range figures.Data {
				is = total{is.amount + d.Amount, is.events + d.EventCount}
			}
			return err == nil && is == want && check.Used == want.amount, fmt.Sprintf("%+v, used %d, %v", is, check.Used, err)
		})
}

// checkLife checks that the API shows the reason of the present life of the database.
func checkLife(w *deployment, reason string) {
	w.t.Helper()
	var system struct{ Lives []struct{ Reason string } }
	w.ask(w.operator, http.MethodGet, w.instances[0], "/api/v1/system", nil, &system, http.StatusOK)
	if len(system.Lives) < 2 || system.Lives[0].Reason != reason {
		w.t.Errorf("the lives of the database are %+v; want the present one to be %s", system.Lives, reason)
	}
}

// countInLog counts how often an event is in the log of one server.
func countInLog(w *deployment, server *local.Postgres, e event) (n int) {
	w.t.Helper()
	must.OK(w.t, w.servers.runOn(server, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM event_log_rows WHERE dedupe_key = 'u/' || $1`, e.EventID).Scan(&n)
	}))
	return n
}

// P1: an event that is on the primary and not on the synchronous standby is answered neither accepted nor duplicate, whatever
// happens to the primary. The promoted standby does not have it. If the standby comes back instead, the event is a duplicate, and the
// promoted standby has it.
func TestP1_NoAnswerBeforeTheStandbyHasTheEvent(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	killed := func(p *serverPair, send func()) { send(); p.crash() }
	cancelled := func(p *serverPair, send func()) { p.whileCancelled(send) }
	for _, c := range []struct {
		name  string
		fault func(p *serverPair, send func())
		seen  int // events on the primary that its sessions see
		back  bool
	}{
		{"nothing else happens", func(_ *serverPair, send func()) { send() }, 0, false},
		{"the postmaster is killed", killed, 1, false},
		{"a session is killed", func(p *serverPair, send func()) { send(); p.crashBackend() }, 1, false},
		{"each wait is cancelled", cancelled, 1, false},
		{"the postmaster is killed, and the standby comes back", killed, 1, true},
		{"each wait is cancelled, and the standby comes back", cancelled, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, x := newDeploymentOnPair(t, "")
			p, front, e := w.servers, w.instances[0], usage("doubtful", 1, 1000)
			p.attach()
			p.synchronous(true)
			feature := "/api/v1/features/doubtful-" + uuid.NewString()
			send := func() {
				if verdicts, ok := (&client{w: w, tenant: x, to: front.url}).sendOnce(t.Context(), e); ok {
					t.Errorf("the event was answered although the standby does not have it: %+v", verdicts)
				}
			}
			p.link.set(cuts)
			c.fault(p, func() {
				send()
				status, body, _ := w.call(t.Context(), w.operator, http.MethodPut, front.url()+feature,
					object{"name": "doubtful", "type": "METERED", "unit": "each"})
				if status > 0 && status < 500 {
					t.Errorf("a feature was answered with %d although the standby does not have it: %s", status, body)
				}
			})
			w.sql.Reset()
			if n := countInLog(w, p.primary, e[0]); n != c.seen {
				t.Fatalf("the primary has the event %d times, want %d", n, c.seen)
			}
			lasts := 0
			if c.back {
				lasts = 1
				p.link.set(passes)
				for _, v := range w.settle(front, x) {
					if v.Status != "duplicate" {
						t.Errorf("with the standby the event is answered %+v, want duplicate", v)
					}
				}
			} else {
				for began := time.Now(); time.Since(began) < 5*time.Second && !t.Failed(); {
					send()
				}
				if n := countInLog(w, p.standby, e[0]); n != 0 {
					t.Fatalf("the standby has the event %d times, want 0", n)
				}
			}
			p.killPrimary()
			p.promote(false)
			w.sql.Reset()
			if n := countInLog(w, p.primary, e[0]); n != lasts {
				t.Fatalf("the promoted server has the event %d times, want %d", n, lasts)
			}
			w.settle(front, x)
			if status, body, err := callOnceServed(w, t.Context(), w.operator, http.MethodGet, front.url()+feature, nil); !c.back &&
				status != http.StatusNotFound {
				t.Errorf("the promoted server has the feature: %d %v %s", status, err, body)
			}
			w.ingest(front, x, "accepted", usage("after", 1, 1)...)
			awaitFigures(w, x, total{1004, 5})
			checkLife(w, "promoted")
			w.finish()
		})
	}
}

// volumeSetBack copies the data of the stopped primary. back kills the primary and starts it on the copy.
func volumeSetBack(p *serverPair) (back func()) {
	data, kept := filepath.Join(p.primary.Dir(), "data"), filepath.Join(p.dir, "volume")
	copied := func(from, to string) {
		out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
		if err == nil {
			err = p.primary.Restart(context.WithoutCancel(p.t.Context()))
		}
		if err != nil {
			p.t.Fatalf("copy %s to %s: %v\n%s", from, to, err, out)
		}
	}
	p.primary.Halt(p.t.Context())
	copied(data, kept)
	return func() {
		p.address.set(cuts)
		endAtOnce(p.primary)
		must.OK(p.t, os.RemoveAll(data))
		copied(kept, data)
		p.address.set(passes)
	}
}

// standbyPromoted attaches an asynchronous standby, which lags from then on. back promotes it.
func standbyPromoted(p *serverPair) (back func()) {
	p.attach()
	p.link.set(cuts)
	return func() {
		p.killPrimary()
		p.promote(false)
	}
}

// consumers are the roles that read topics.
const consumers = "validator,aggregator,deadletter,commands"

// setBack publishes n events of amount 1,000 while the second instance is frozen. Then the database is recovered without them, while their
// records are unread.
func setBack(w *deployment, x *tenant, n int, keep func(p *serverPair) (back func())) {
	w.t.Helper()
	back := keep(w.servers)
	w.sql.Reset()
	w.drain()
	w.instances[1].signal(syscall.SIGSTOP)
	lost := usage("lost", n, 1000)
	w.ingest(w.instances[0], x, "accepted", lost...)
	within(w.t, "all events are on the topics", func(context.Context) (bool, string) {
		n := w.count(`SELECT sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`)
		return n == 0, fmt.Sprint(n, " unpublished")
	})
	back()
	w.sql.Reset()
	x.ledger.drop(lost)
	if n := w.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 1`, x.id); n != 3 {
		w.t.Fatalf("%d events are left, want the three before", n)
	}
}

// checkPassed sends n events of amount 1 in the place of the lost ones, whose records the consumers of the second instance read then.
func checkPassed(w *deployment, x *tenant, n int) {
	w.t.Helper()
	w.ingest(w.instances[0], x, "accepted", usage("after", n, 1)...)
	w.instances[1].signal(syscall.SIGCONT)
	awaitFigures(w, x, total{int64(3 + n), int64(3 + n)})
}

// P2: the database is recovered without its last events. Their unread records, and those of their verdicts, are never counted,
// even when their positions are issued again. TestRunbookRestore does the same with a dump.
func TestP2_RecordsOfLostEventsAreNotCounted(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	const others = "api,relay,projector"
	for _, c := range []struct {
		name, front, back, reason string
		events                    int
		keep                      func(p *serverPair) (back func())
	}{
		{"asynchronous standby promoted", others, consumers, "promoted", 1000, standbyPromoted},
		{"verdicts, asynchronous standby promoted", others + ",validator,deadletter,commands", "aggregator", "promoted", 20,
			standbyPromoted},
		{"volume set back", others, consumers, "restarted", 20, volumeSetBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, x := newDeploymentOnPair(t, c.front, c.back)
			setBack(w, x, c.events, c.keep)
			checkPassed(w, x, c.events)
			checkLife(w, c.reason)
			// Producers send the lost events again, and each counts once.
			w.ingest(w.instances[0], x, "accepted", usage("lost", c.events, 1000)...)
			n := int64(c.events)
			awaitFigures(w, x, total{3 + 1001*n, 3 + 2*n})
			w.finish()
		})
	}
}

// P2: a crash loses no event. Unread records from before the crash count once: their epoch
// still owns their positions, even if it has ended.
func TestP2_RecordsUnreadAtACrashCountOnce(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	for name, crash := range map[string]func(p *serverPair){"the postmaster is killed": (*serverPair).crash,
		"a session is killed": (*serverPair).crashBackend} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 1000
			w, x := newDeploymentOnPair(t, "api,relay,projector", consumers)
			w.instances[1].signal(syscall.SIGSTOP)
			w.ingest(w.instances[0], x, "accepted", usage("unread", n, 1000)...)
			crash(w.servers)
			w.sql.Reset()
			w.ingest(w.instances[0], x, "accepted", usage("after", n, 1)...)
			if n := w.count(`SELECT count(*) FROM event_log_rows WHERE subject = 2`); n != 3 {
				t.Errorf("%d verdicts were made before the crash: not all records were unread", n)
			}
			w.instances[1].signal(syscall.SIGCONT)
			awaitFigures(w, x, total{3 + n*1000 + n, 3 + n + n})
			w.finish()
		})
	}
}

// P2: a new database uses the topics of another one. Records of the other log have the
// same positions and the same epoch, and are never counted.
func TestP2_RecordsOfAnotherLogAreNotCounted(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	const n = 20
	other := newDeployment(t)
	front := other.serve("api,relay")
	other.catalogue(front)
	theirs := map[int]*tenant{}
	for _, x := range other.createTenants(front, 8) {
		theirs[partitionOf(x.id)] = x
		other.ingest(front, x, "accepted", usage("theirs", n, 1000)...)
	}
	within(t, "their events are on the topics", func(context.Context) (bool, string) {
		n := other.count(`SELECT sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`)
		return n == 0, fmt.Sprint(n)
	})
	front.stop()

	w := newDeployment(t)
	w.prefix = other.prefix
	i := w.serve("api,projector")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	for theirs[partitionOf(x.id)] == nil {
		x = w.createTenants(i, 1)[0]
	}
	verdicts := w.ingest(i, x, "accepted", usage("ours", n, 1)...)
	back := w.serve("relay," + consumers) // reads their records first, although the log has ours
	w.drain()
	var response aggregates
	w.ask(x.key, http.MethodGet, i, "/api/v1/usage/aggregates?limit=500&minPosition="+verdicts[n-1].Position, nil, &response, http.StatusOK)
	if sums := response.sums(); sums["api_calls"] != n || len(sums) != 1 {
		t.Errorf("%d events of amount 1 were sent, the sums are %v", n, sums)
	}
	if dropped := metricOf(w, back.health(), `meterplex_events_other_log_total{consumer="meterplex-usage-validator"}`); dropped < n {
		t.Errorf("the validator counts %v dropped records of another log, want at least %d", dropped, n)
	}
	w.finish()
}

// openRunbook returns a function that runs the transcript under a heading of a page of docs/runbooks, in a folder. It skips the test if a
// program that the page's commands need is missing.
func openRunbook(w *deployment, x *tenant, dir, name string, programs ...string) (run func(heading string, env ...string)) {
	w.t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			w.t.Skipf("SKIPPED, the runbook %s was not run: %v", name, err)
		}
	}
	return func(heading string, env ...string) {
		w.t.Helper()
		env = append(env, "TENANT_KEY="+x.key, "DATABASE_URL="+w.db, "METERPLEX_PIPE="+w.pipe, "METERPLEX_TOPIC_PREFIX="+w.prefix,
			"KAFKA_BROKERS="+strings.Join(w.brokers().Brokers(), ","))
		runTranscript(w, w.instances[0], dir, transcript(w.t, filepath.Join("docs", "runbooks", name), "## "+heading+"\n"), env...)
	}
}

// P11: an operator fails over to an asynchronous standby, finds the lost usage, and sends it again, by docs/runbooks/failover.md. Before
// that, fewer events follow than were lost: the relay publishes them although its cursors were above.
func TestRunbookFailover(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, x := newDeploymentOnPair(t, "")
	dir, front, p := t.TempDir(), w.instances[0], w.servers
	run := openRunbook(w, x, dir, "failover.md", "psql", "curl")
	p.attach()
	p.link.set(cuts)
	gone := usage("lost", 20, 1000)
	w.ingest(front, x, "accepted", gone...)
	w.drain()
	p.killPrimary()
	run("Promote the standby", "STANDBY="+ofDatabase(p.standby))
	p.promoted()
	w.sql.Reset()
	x.ledger.drop(gone)
	run("Check")
	w.ingest(front, x, "accepted", usage("after", 5, 1)...)
	awaitFigures(w, x, total{8, 8})
	must.OK(t, p.former.Restart(t.Context()))
	run("Find lost events", "NEW="+ofDatabase(p.primary), "OLD="+ofDatabase(p.former))
	p.former.Halt(t.Context())
	again, err := os.ReadFile(filepath.Join(dir, "lost.txt"))
	if err != nil || strings.Count(string(again), `"eventId"`) != 20 || !strings.HasPrefix(string(again), x.id+"|") {
		t.Errorf("lost events: %v\n%s", err, again)
	}
	run("Send it again")
	w.ingest(front, x, "duplicate", gone...)
	awaitFigures(w, x, total{20_008, 28})
	run("How to see that it is over")
	checkLife(w, "promoted")
	w.finish()
}

// An operator restores a dump on a new server by docs/runbooks/restore.md, while 1,000
// records of events that the dump does not have are unread.
func TestRunbookRestore(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, x := newDeploymentOnPair(t, "api,relay,projector", consumers)
	run := openRunbook(w, x, t.TempDir(), "restore.md", "pg_dumpall", "pg_dump", "psql", "curl")
	setBack(w, x, 1000, func(p *serverPair) func() {
		run("Make a dump", "DATABASE="+ofDatabase(p.primary))
		return func() {
			p.killPrimary()
			server := p.startLike(p.primary)
			run("Restore a dump", "NEW="+ofDatabase(server))
			p.replace(server)
			p.address.set(passes)
		}
	})
	run("Check")
	checkPassed(w, x, 1000)
	checkLife(w, "restored")
	run("Find the last event", "NEW="+ofDatabase(w.servers.primary))
	run("How to see that it is over")
	w.finish()
}
