package e2e

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// recovery is a way to recover a database without its last events. keep makes the standby,
// copy or backup; back kills the primary and recovers the database from it.
type recovery struct {
	name   string
	reason string // of the epoch that the recovery begins
	keep   func(p *serverPair) (back func())
}

func standbyPromoted() recovery {
	return recovery{"asynchronous standby promoted", "promoted", func(p *serverPair) func() {
		p.attach()
		p.link.set(cuts) // the standby lags from here on
		return p.failOver
	}}
}

func volumeSetBack() recovery {
	return recovery{"volume set back", "restarted", func(p *serverPair) func() { return p.copyVolume().putBack }}
}

func backupRestored() recovery {
	return recovery{"backup restored on another server", "promoted", func(p *serverPair) func() { return p.takeBackup().restore }}
}

// setBack counts 3 events of amount 1, and publishes n events of amount 1,000 while the
// consumers are frozen. Then the database is recovered without the n events, whose records
// are still on the topics.
func (r *failoverTest) setBack(how recovery, n int, restart bool) {
	r.t.Helper()
	r.sendCounted(usage("kept", 3, 1))
	back := how.keep(r.servers)
	r.sql.Reset()
	r.freeze()
	r.ingest(r.front, r.spare[0].by, "accepted", usage("lost", n, 1000)...)
	r.allPublished()
	before := r.servers.logRows(r.servers.primary, nil)
	if restart {
		r.front.kill()
		r.back.kill()
	}
	back()
	lost := r.servers.lostEvents(before)
	r.noteRecovery(lost)
	r.removeLost(lost)
	usage := 0
	for _, e := range lost {
		if e.producer != "" {
			usage++
		}
	}
	if usage != n || r.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 1`, r.tenant.id) != 3 {
		r.t.Fatalf("%s lost %d of %d events; want all lost, and 3 others present", how.name, usage, n)
	}
	if restart {
		r.front.start()
		r.back.start()
	}
}

// checkAfterRecovery sends n events of amount 1, resumes the consumers, and waits until the figures show
// 3 + n events of amount 1. Half of the events are sent with a key at its first use, the
// others with the key whose first use was lost.
func (r *failoverTest) checkAfterRecovery(how recovery, n int, frozen bool) {
	r.t.Helper()
	for _, key := range []spareKey{r.spare[1], r.spare[0]} {
		r.ingest(r.front, key.by, "accepted", usage("after-"+key.id, n/2, 1)...)
	}
	if frozen {
		r.back.signal(syscall.SIGCONT)
	}
	r.awaitFigures(total{int64(3 + n), int64(3 + n)})
	r.checkEpochRaised(how.reason)
	for _, key := range r.spare {
		if sent := r.count(`SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
WHERE l.tenant_id = $1 AND l.subject = 1 AND l.payload ->> 'eventId' LIKE 'after-' || $2 || '-%' AND o.actor_id = $2`, r.tenant.id, key.id); sent != n/2 {
			r.t.Errorf("the log has %d events of the key %s, want %d", sent, key.id, n/2)
		}
	}
}

// P2: the database is recovered without its last events. Their unread records are never counted,
// even when their positions are issued again. TestRunbookRestore does the same with a dump.
func TestP2_RecordsOfLostEventsAreNotCounted(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	type variant struct {
		how     recovery
		events  int
		restart bool
	}
	for _, c := range []variant{
		{standbyPromoted(), 20, false}, {backupRestored(), 1000, false}, {volumeSetBack(), 20, false}, {volumeSetBack(), 1000, true},
	} {
		name := fmt.Sprintf("%s, %d events", c.how.name, c.events)
		if c.restart {
			name += ", instances restarted"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFailoverTest(t, consumers()...)
			r.setBack(c.how, c.events, c.restart)
			if n := r.lostRecords("usage.raw", "meterplex-usage-validator"); n != c.events {
				t.Errorf("%d records of lost events are unread on usage.raw, want %d", n, c.events)
			}
			r.checkAfterRecovery(c.how, c.events, !c.restart)
			r.checkDropped("meterplex-usage-validator", c.events)
			r.prove()
		})
	}
}

// P2: records of lost verdicts, which only the aggregator has not read, are never counted. The validator
// has read the lost events, and decides again on the events that now have their positions.
func TestP2_VerdictsOfLostEventsAreNotCounted(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newFailoverTest(t, "aggregator")
	how := standbyPromoted()
	r.setBack(how, 20, false)
	if n := r.lostRecords("usage.validated", "meterplex-usage-aggregator"); n != 20 {
		t.Errorf("%d records of lost verdicts are unread, want 20", n)
	}
	r.checkAfterRecovery(how, 20, true)
	r.checkDropped("meterplex-usage-aggregator", 20)
	r.prove()
}

// P2: a crash loses no event. Unread records from before the crash count once: their epoch
// still owns their positions, even if it has ended.
func TestP2_RecordsUnreadAtACrashCountOnce(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	for _, crash := range []struct {
		name   string
		do     func(p *serverPair)
		raises bool // an epoch: the postmaster starts
	}{{"the postmaster is killed", (*serverPair).crash, true}, {"a session is killed", (*serverPair).crashBackend, false}} {
		t.Run(crash.name, func(t *testing.T) {
			t.Parallel()
			const n = 1000
			r := newFailoverTest(t, consumers()...)
			r.sendCounted(usage("kept", 3, 1))
			r.freeze()
			r.ingest(r.front, r.tenant, "accepted", usage("unread", n, 1000)...)
			r.allPublished()
			crash.do(r.servers)
			r.noteRecovery(nil)
			r.ingest(r.front, r.tenant, "accepted", usage("after", n, 1)...)
			if at := r.count(`SELECT position FROM consumer_checkpoints WHERE consumer = 'meterplex-usage-validator' AND partition = $1`, r.partition()); int64(at) >= r.servers.fork[r.partition()] {
				t.Errorf("the validator had read up to %d before the crash: no record was unread", at)
			}
			r.back.signal(syscall.SIGCONT)
			r.awaitFigures(total{3 + n*1000 + n, 3 + n + n})
			if crash.raises {
				r.checkEpochRaised("restarted")
			}
			r.prove()
		})
	}
}

// P11: the relay caches its cursors from an ended life of the database. Events that
// the next life records below these cursors are published and counted, even if no further
// event follows. TestRunbookFailover does the same with a promoted standby.
func TestP11_FewerEventsThanWereLostArePublished(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newFailoverTest(t)
	r.sendCounted(usage("kept", 3, 1))
	back := volumeSetBack().keep(r.servers)
	r.sql.Reset()
	r.sendCounted(usage("lost", 20, 1000))
	before := r.servers.logRows(r.servers.primary, nil)
	back()
	lost := r.servers.lostEvents(before)
	r.noteRecovery(lost)
	r.removeLost(lost)
	if len(lost) != 40 { // 20 events with their verdicts
		t.Fatalf("%d events of the log were lost, want 40", len(lost))
	}
	r.ingest(r.front, r.tenant, "accepted", usage("after", 5, 1)...)
	r.awaitFigures(total{8, 8})
	r.checkEpochRaised("restarted")
	// Producers send the lost events again, and each counts once.
	r.sendCounted(usage("lost", 20, 1000))
	r.awaitFigures(total{20_008, 28})
	r.prove()
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
	theirs := other.createTenantsAlone(front, 8)
	for _, x := range theirs {
		other.ingest(front, x, "accepted", usage("theirs", n, 1000)...)
	}
	within(t, "their events are on the topics", func(context.Context) (bool, string) {
		unpublished := other.unpublished()
		return unpublished == 0, fmt.Sprint(unpublished)
	})
	front.stop()

	w := newDeployment(t)
	w.prefix = other.prefix
	i := w.serve("api,projector")
	w.catalogue(i)
	x := w.createTenantBeside(i, theirs)
	w.lost = other.occurrences()
	verdicts := w.ingest(i, x, "accepted", usage("ours", n, 1)...)
	from, to := other.recorded(theirs[partitionOf(x.id)]), w.recorded(x)
	if from["theirs-0"].position != to["ours-0"].position || len(from) != n || len(to) != n {
		t.Fatalf("their first event is at %s, ours at %s: want the same positions", from["theirs-0"].position, to["ours-0"].position)
	}
	at := verdicts[n-1].Position
	back := w.serve("relay,validator,aggregator,deadletter,commands") // reads their records first, although the log has ours
	w.drain()
	var response aggregates
	w.ask(x.key, http.MethodGet, i, "/api/v1/usage/aggregates?limit=500&minPosition="+at, nil, &response, http.StatusOK)
	if sums := response.sums(); sums["api_calls"] != n || len(sums) != 1 {
		t.Errorf("%d events of amount 1 were sent, the sums are %v", n, sums)
	}
	if counted := w.metricOf(back.health(), `meterplex_events_other_log_total{consumer="meterplex-usage-validator"}`); counted < n {
		t.Errorf("the validator counts %v dropped records of another log, want at least %d", counted, n)
	}
	w.requireProven("meterplex verify --all", w.verify(i, "--all"))
	w.finish()
}

// createTenantsAlone creates n tenants and returns those that are alone in their partition.
func (w *deployment) createTenantsAlone(at *instance, n int) map[int]*tenant {
	w.t.Helper()
	alone, taken := map[int]*tenant{}, map[int]bool{0: true} // the catalogue is in 0
	for _, x := range w.createTenants(at, n) {
		p := partitionOf(x.id)
		if alone[p] = x; taken[p] {
			delete(alone, p)
		}
		taken[p] = true
	}
	return alone
}

// createTenantBeside creates tenants until one is in the partition of another database's tenant.
// Their first usage has the same position.
func (w *deployment) createTenantBeside(at *instance, others map[int]*tenant) *tenant {
	w.t.Helper()
	for range 500 {
		x := w.createTenants(at, 1)[0]
		if others[partitionOf(x.id)] != nil {
			return x
		}
	}
	w.t.Fatalf("none of 500 tenants shares a partition with one of %d others", len(others))
	return nil
}

// occurrences returns all events of the log.
func (w *deployment) occurrences() map[occurrence]bool {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), `SELECT partition || '-' || position, epoch::text, event_id::text FROM event_log_rows`)
	must.OK(w.t, err)
	all := map[occurrence]bool{}
	var o occurrence
	if _, err := pgx.ForEachRow(found, []any{&o.position, &o.epoch, &o.id}, func() error {
		all[o] = true
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return all
}
