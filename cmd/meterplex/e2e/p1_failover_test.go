package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// newSynchronous is a failover test in which each COMMIT waits for the standby and some
// usage is counted.
func newSynchronous(t testing.TB) *failoverTest {
	t.Helper()
	r := newFailoverTest(t)
	r.servers.attach()
	r.servers.synchronous(true)
	r.sendCounted(usage("kept", 3, 1))
	return r
}

// sentOnce sends an event once and returns its answer.
func (r *failoverTest) sentOnce(e event) (answer string, acked bool) {
	began := time.Now()
	verdicts, ok := (&client{w: r.deployment, tenant: r.tenant, to: r.front.url}).sendOnce(r.t.Context(), []event{e})
	answer = "no answer, or 503"
	if ok {
		answer = verdicts[0].Status
	}
	return fmt.Sprintf("%s after %s", answer, time.Since(began).Round(time.Millisecond)), ok
}

// countInLog counts how often an event is in the log of one server.
func (r *failoverTest) countInLog(server *local.Postgres, e event) (n int) {
	r.t.Helper()
	err := r.servers.runOn(server, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND dedupe_key = 'u/' || $2`, r.tenant.id, e.EventID).Scan(&n)
	})
	must.OK(r.t, err)
	return n
}

// failOver promotes the standby. Commits no longer wait for a standby.
func (r *failoverTest) failOver() {
	r.t.Helper()
	r.servers.killPrimary()
	r.servers.promote(false)
	r.noteRecovery(r.servers.lostByFailover())
}

// noCrash is the name of the case without a crash.
const noCrash = "no crash"

// P1: an event that a crash left in the database of the primary, and not on the standby,
// is answered neither accepted nor duplicate. The promoted standby does not have the event,
// and no client was told that it exists.
func TestP1_NoAnswerBeforeTheStandbyHasTheEvent(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	crashes := map[string]func(p *serverPair){
		"the postmaster is killed": (*serverPair).crash, "a session is killed": (*serverPair).crashBackend, noCrash: func(*serverPair) {},
	}
	for name, crash := range crashes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSynchronous(t)
			e := usage("doubtful", 1, 1000)[0]
			r.servers.link.set(cuts)
			if answer, acked := r.sentOnce(e); acked {
				t.Errorf("without the standby the event was answered: %s", answer)
			}
			crash(r.servers)
			r.sql.Reset()
			if n := r.countInLog(r.servers.primary, e); name != noCrash && n != 1 {
				t.Fatalf("after the crash the primary has the event %d times, want once", n)
			}
			for began := time.Now(); time.Since(began) < 5*time.Second; {
				if answer, acked := r.sentOnce(e); acked {
					t.Errorf("the event was answered although the standby does not have it: %s", answer)
					break
				}
			}
			if n := r.countInLog(r.servers.standby, e); n != 0 {
				t.Fatalf("the standby has the event %d times, want 0", n)
			}
			r.failOver()
			if n := r.countInLog(r.servers.primary, e); n != 0 {
				t.Fatalf("the promoted server has the event %d times", n)
			}
			r.settle(r.front, r.tenant)
			r.awaitFigures(total{1003, 4})
			r.checkEpochRaised("promoted")
			r.prove()
		})
	}
}

// P1: an event that a crash left on the primary is answered duplicate once the standby is
// back. The promoted standby has it.
func TestP1_DuplicateOnceTheStandbyHasTheEvent(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newSynchronous(t)
	e := usage("doubtful", 1, 1000)[0]
	r.servers.link.set(cuts)
	if answer, acked := r.sentOnce(e); acked {
		t.Errorf("without the standby the event was answered: %s", answer)
	}
	r.servers.crash()
	r.sql.Reset()
	if n := r.countInLog(r.servers.primary, e); n != 1 {
		t.Fatalf("after the crash the primary has the event %d times, want once", n)
	}
	r.servers.link.set(passes)
	verdicts := r.settle(r.front, r.tenant)
	if len(verdicts) != 1 || verdicts[0].Status != "duplicate" {
		t.Errorf("with the standby the event is answered %+v, want duplicate", verdicts)
	}
	r.failOver()
	if n := r.countInLog(r.servers.primary, e); n != 1 {
		t.Errorf("the event was answered, and the promoted server has it %d times", n)
	}
	r.awaitFigures(total{1003, 4})
	r.prove()
}

// P1: if the wait for the standby is cancelled, the server answers COMMIT with a warning.
// That is no acknowledgement: the standby does not have the event, and after its
// promotion the event does not exist.
func TestP1_ACancelledWaitForTheStandbyIsNotACommit(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newSynchronous(t)
	e := usage("cancelled", 1, 1000)[0]
	name, status := "cancelled-"+uuid.NewString(), 0
	r.servers.link.set(cuts)
	r.servers.whileCancelled(func() {
		if answer, acked := r.sentOnce(e); acked {
			t.Errorf("the event was answered although the wait for the standby was cancelled: %s", answer)
		}
	})
	r.servers.whileCancelled(func() {
		var body []byte
		if status, body, _ = r.call(t.Context(), r.operator, http.MethodPut, r.front.url()+"/api/v1/features/"+name, object{"name": "cancelled", "type": "METERED", "unit": "each"}); status < 500 {
			t.Errorf("a feature was answered with %d although the wait for the standby was cancelled: %s", status, body)
		}
	})
	if n := r.countInLog(r.servers.primary, e); n != 1 {
		t.Fatalf("the primary has the event %d times, want once, by a COMMIT without its wait", n)
	}
	if n := r.countInLog(r.servers.standby, e); n != 0 {
		t.Fatalf("the standby has the event %d times, want 0", n)
	}
	r.failOver()
	if n := r.countInLog(r.servers.primary, e); n != 0 {
		t.Fatalf("the promoted server has the event %d times", n)
	}
	r.settle(r.front, r.tenant)
	if status, body, err := r.callOnceServed(t.Context(), r.operator, http.MethodGet, r.front.url()+"/api/v1/features/"+name, nil); status != http.StatusNotFound {
		t.Errorf("the promoted server has the feature: %d %v %s", status, err, body)
	}
	r.awaitFigures(total{1003, 4})
	r.prove()
}

// P1: a later COMMIT that waited for the standby makes a cancelled one durable. Then the event
// is answered duplicate, and the promoted standby has it.
func TestP1_ALaterCommitSettlesACancelledOne(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newSynchronous(t)
	e := usage("cancelled", 1, 1000)[0]
	r.servers.link.set(cuts)
	r.servers.whileCancelled(func() {
		if answer, acked := r.sentOnce(e); acked {
			t.Errorf("the event was answered although the wait for the standby was cancelled: %s", answer)
		}
	})
	r.servers.link.set(passes)
	r.servers.awaitStandby()
	for _, v := range r.settle(r.front, r.tenant) {
		if v.Status != "duplicate" {
			t.Errorf("with the standby the event is answered %+v, want duplicate", v)
		}
	}
	r.failOver()
	if n := r.countInLog(r.servers.primary, e); n != 1 {
		t.Errorf("the event was answered, and the promoted server has it %d times", n)
	}
	r.awaitFigures(total{1003, 4})
	r.prove()
}
