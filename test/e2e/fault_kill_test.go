package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/meterplex/meterplex/internal/tier"
)

// prepareKillable makes an instance that dies at chosen kill points.
func prepareKillable(w *deployment, roles string, env ...string) *instance {
	w.t.Helper()
	arm := filepath.Join(w.t.TempDir(), "point")
	i := w.prepare(roles, append(env, "METERPLEX_FAULT_ARM="+arm)...)
	i.arm, i.build = arm, faulty
	return i
}

// killable starts an instance that dies at chosen kill points.
func (w *deployment) killable(roles string, env ...string) *instance {
	w.t.Helper()
	i := prepareKillable(w, roles, env...)
	i.start()
	return i
}

// killAt kills the process when it passes a kill point for the n-th time, and starts it again.
// cause, if not nil, makes the process pass there. It has returned when killAt returns.
func (i *instance) killAt(point string, n int, cause func()) bool {
	return i.killAtEach([]string{point}, n, cause)
}

// killAtEach is killAt for several kill points in one piece of work. Each is armed before the
// process restarts: otherwise the process could have passed it already.
func (i *instance) killAtEach(points []string, n int, cause func()) bool {
	i.armAt(points[0], n)
	var caused sync.WaitGroup
	defer caused.Wait() // cause may need the restarted process
	if cause != nil {
		caused.Go(cause)
	}
	for at, point := range points {
		if !i.awaitDeath(point) {
			return false
		}
		if at+1 < len(points) {
			i.armAt(points[at+1], n)
		}
		if i.afterDeath != nil {
			i.afterDeath()
		}
		if err := i.tryStart(); err != nil {
			i.t.Error(err)
			return false
		}
		i.reached++
	}
	return true
}

// armAt arms the next kill point.
func (i *instance) armAt(point string, n int) {
	err := os.WriteFile(i.arm+".new", []byte(point+"#"+strconv.Itoa(n)), 0o600)
	if err == nil {
		err = os.Rename(i.arm+".new", i.arm)
	}
	if err != nil {
		i.t.Error(err)
	}
}

// awaitDeath waits for the process to die at the armed kill point.
func (i *instance) awaitDeath(point string) bool {
	i.mu.Lock()
	running := i.run
	i.mu.Unlock()
	select {
	case <-running.done:
	case <-i.t.Context().Done():
		return false
	case <-time.After(patience):
		_ = os.Remove(i.arm)
		i.t.Errorf("%s did not reach %q", i.name, point)
		return false
	}
	if err := os.Remove(i.arm + ".reached"); err != nil {
		i.t.Errorf("%s ended before it reached %q:\n%s", i.name, point, i.lastLines(30))
		return false
	}
	return true
}

// retryUntilAnswered repeats an operator's request to the process that runs, with the same Idempotency-Key, until the answer is not 503.
func retryUntilAnswered(w *deployment, to func() string, path string, in object) {
	once, status, body := uuid.NewString(), 0, []byte(nil)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		var err error
		status, body, err = w.call(w.t.Context(), w.operator, http.MethodPost, to()+path, in, "Idempotency-Key", once)
		if err == nil && status != http.StatusServiceUnavailable {
			break
		}
	}
	if status != http.StatusOK && status != http.StatusAccepted {
		w.t.Errorf("POST %s: %d %s", path, status, body)
	}
}

// killTest has each role in a process of its own, so that each can die while the others work.
type killTest struct {
	w                          *deployment
	api                        *instance
	commands, relay, projector *instance
	tenants                    []*tenant
}

// P1, P2: every process dies at every kill point, under load and at the same time as the
// others. Each acknowledged event is stored, once.
func TestP2_KilledAtEveryKillPoint(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	d := &killTest{w: w, api: w.killable("api")}
	d.relay, d.commands, d.projector = w.killable("relay"), w.killable("api,commands"),
		w.killable("projector", "METERPLEX_REBUILD_CHUNK=20")
	validator, aggregator, letters := w.killable("validator"), w.killable("aggregator"), w.killable("deadletter")
	w.catalogue(d.api)
	d.tenants = w.createTenants(d.api, 3)
	failed := d.rejections(5)
	l := w.startLoad(d.tenants, 1, lightTraffic(), func(int) string { return d.api.url() })
	awaitFolded(w, "meterplex-usage-aggregator")
	var dying sync.WaitGroup
	ready := make(chan string, 1)
	for _, kill := range []func(){
		func() { d.killAPI(failed[:3], ready) }, d.killRelay, func() { d.killCommands(failed[3:]) }, func() { d.killProjector(ready) },
		func() { d.killConsumer(validator, "meterplex-usage-validator") },
		func() { d.killConsumer(aggregator, "meterplex-usage-aggregator") },
		func() { d.killConsumer(letters, "meterplex-dead-letter-handler") },
	} {
		dying.Go(kill)
	}
	dying.Wait()
	l.stop()
	awaitConsumed(w)
	w.settle(d.api, d.tenants...)
	reached := 0
	for _, i := range w.instances {
		reached += i.reached
	}
	t.Logf("%d deaths", reached)
	if l.lost() == 0 {
		t.Error("no request was under way at a death")
	}
	w.drain()
	checkSameUsage(w, 1, 2)
	for _, l := range failed { // each requested retry counted once
		n := w.count(`SELECT count(*) FROM event_log_rows l WHERE subject = 6 AND l.payload ->> 'deadLetterId' = $1`, l.ID)
		resolved := w.count(`SELECT count(*) FROM dead_letter_events WHERE generation = 1 AND id = $1 AND status = 'RESOLVED'`, l.ID)
		if n != 1 || resolved != 1 {
			t.Errorf("dead letter %s was retried %d times, resolved %d", l.ID, n, resolved)
		}
	}
	w.finish()
}

// rejections creates n dead letters: usage accepted by an instance that did not know yet
// that the subscription had ended.
func (d *killTest) rejections(n int) (letters []deadLetter) {
	x := d.tenants[0]
	for range n {
		acceptThenReject(d.w, d.api, d.commands, x)
	}
	within(d.w.t, "the rejections are dead letters", func(context.Context) (bool, string) {
		var page struct{ Data []deadLetter }
		d.w.ask(d.w.operator, http.MethodGet, d.api, "/api/v1/dead-letters?stage=VALIDATION&tenantId="+x.id, nil, &page, http.StatusOK)
		letters = page.Data
		return len(letters) == n, fmt.Sprintf("%+v", letters)
	})
	return letters
}

// request returns a function that sends an operator's request until it is answered.
func (d *killTest) request(path string, in object) func() {
	return func() {
		in["reason"] = "test"
		retryUntilAnswered(d.w, d.api.url, path, in)
	}
}

func (d *killTest) retry(l deadLetter) func() {
	return d.request("/api/v1/dead-letters/"+l.ID+"/retry", object{})
}

// killAPI kills the process that accepts requests.
func (d *killTest) killAPI(failed []deadLetter, ready <-chan string) {
	for _, point := range []string{"small: before the transaction", "small: heads locked", "small: before COMMIT", "small: after COMMIT",
		"ingest: before the answer"} {
		d.api.killAt(point, 2, nil)
	}
	// The partition's own writer stores a large batch, in several pieces.
	c := &client{w: d.w, tenant: d.tenants[1], to: d.api.url}
	for n, point := range []string{"large: before the transaction", "large: heads locked", "large: between two pieces of the COPY",
		"large: before COMMIT", "large: after COMMIT"} {
		d.api.killAt(point, 1, func() { c.send(d.w.t.Context(), events(fmt.Sprint("large", n), 900, "api_calls")) })
	}
	d.api.killAt("change 13: before COMMIT", 1, d.retry(failed[0]))
	d.api.killAt("change 13: after COMMIT", 1, d.retry(failed[1]))
	d.retry(failed[2])()
	d.api.killAt("change 52: before COMMIT", 1, d.request("/api/v1/replays/rewind", object{"to": "start"}))
	d.api.killAt("change 52: after COMMIT", 1, d.request("/api/v1/replays/rewind", object{"to": "start"}))
	id, ok := <-ready
	if !ok {
		return
	}
	d.api.killAt("change 42: before COMMIT", 1, d.request("/api/v1/rebuilds/"+id+"/promote", object{}))
	d.request("/api/v1/rebuilds/"+id+"/rollback", object{})()
	d.api.killAt("change 42: after COMMIT", 1, d.request("/api/v1/rebuilds/"+id+"/promote", object{}))
}

func (d *killTest) killRelay() {
	for _, point := range []string{"relay: before it publishes", "relay: between the broker's ack and the cursor",
		"relay: after the cursor"} {
		d.relay.killAt(point, 2, nil)
	}
	// A replay publishes what the relay has published: no event, if it was just rewound to the start. Another one is requested then.
	d.relay.killAt("replay: between the broker's ack and the cursor", 1, func() {
		replay := d.request("/api/v1/replays", object{"topic": "usage.raw", "fromTime": "2026-01-01T00:00:00Z"})
		armed := func(context.Context) bool { _, err := os.Stat(d.relay.arm); return err != nil }
		for end := time.Now().Add(patience); time.Now().Before(end); {
			if replay(); becomesTrue(d.w, 5*time.Second, armed) {
				return
			}
		}
	})
	// The lease of a dead process on a replay lasts half a minute. The test ends it at once.
	d.w.run(`UPDATE sagas SET next_at = now() WHERE kind = 'replay' AND ended_at IS NULL`)
}

func (d *killTest) killConsumer(i *instance, group string) {
	i.killAt(group+": before COMMIT", 1, nil)
	i.afterDeath = func() { endMembers(d.w, group) } // after the first death, their sessions end by time
	i.killAt(group+": between COMMIT and ack", 1, nil)
}

// killCommands kills the process that executes commands and accepts usage from the topic.
func (d *killTest) killCommands(failed []deadLetter) {
	source := newExternalProducer(d.w)
	message := func() { source.batch(d.tenants[2]) }
	d.commands.killAt("usage.commands: before the transaction", 1, message)
	d.commands.afterDeath = func() { endMembers(d.w, "meterplex-command-handler", usageCommandsGroup) }
	d.commands.killAt("meterplex-command-handler: before COMMIT", 1, d.retry(failed[0]))
	d.commands.killAt("usage.commands: between COMMIT and ack", 1, message)
	d.commands.killAt("rewind: offsets moved, not recorded", 1,
		d.request("/api/v1/replays/rewind", object{"consumer": usageCommandsGroup, "to": "start"}))
	d.commands.killAt("meterplex-command-handler: between COMMIT and ack", 1, d.retry(failed[1]))
}

// killProjector kills the process that rebuilds, and passes on the rebuild when it is ready.
func (d *killTest) killProjector(ready chan<- string) {
	defer close(ready)
	d.projector.killAt("meterplex-entitlement-reads: before COMMIT", 2, nil)
	d.projector.killAt("meterplex-entitlement-reads: between COMMIT and ack", 2, nil)
	if d.projector.killAtEach([]string{
		"rebuild: a chunk, before COMMIT", "rebuild: a chunk, after COMMIT", "rebuild: the last chunk, before COMMIT",
		"rebuild: ready, before COMMIT", "rebuild: ready, after COMMIT",
	}, 1, d.request("/api/v1/projections/usage_aggregates/rebuilds", object{"workers": 2})) {
		var id string
		if err := d.w.sql.QueryRow(d.w.t.Context(), `SELECT id::text FROM projection_rebuilds WHERE state = 'READY'`).
			Scan(&id); err != nil {
			d.w.t.Error(err)
		}
		ready <- id
	}
}

// P1, P2: a process with all roles dies at every kill point that only such a process has, under load: it validates usage as it
// records it, and its consumers read events from its memory.
func TestP2_KilledAtEveryKillPointOfOneProcess(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // a killed member of a Kafka group keeps its partitions for ten seconds
	i := w.killable("")
	w.catalogue(i)
	tenants := w.createTenants(i, 3)
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	const validator, aggregator = "meterplex-usage-validator, from memory", "meterplex-usage-aggregator, from memory"
	for n, point := range []string{
		"inline: checkpoints locked", "inline: follow-ups placed", "inline: before COMMIT", "inline: after COMMIT",
		"inline: in memory, not answered",
		validator + ": before COMMIT", validator + ": between COMMIT and ack", aggregator + ": before COMMIT",
		aggregator + ": between COMMIT and ack",
	} {
		if i.killAt(point, 2, nil); i.reached != n+1 {
			t.Fatalf("%s was not reached", point)
		}
		i.afterDeath = func() { // after the first death, leases end by time; no other process may hold any
			w.run(`UPDATE relay_cursors SET lease_until = '-infinity'`, `UPDATE relay_instances SET seen_at = '-infinity'`)
		}
	}
	l.awaitMore(50) // after the last death
	l.stop()
	w.settle(i, tenants...)
	if l.lost() == 0 {
		t.Error("no request was under way at a death")
	}
	w.finish()
}

// endMembers removes the members of a dead process from consumer groups without the wait for their sessions. No other process may have any.
func endMembers(w *deployment, groups ...string) {
	c := w.kafka()
	defer c.Close()
	for _, group := range groups {
		group = w.prefix + group
		all, err := kadm.NewClient(c).DescribeGroups(w.t.Context(), group)
		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Group = group
		for _, m := range all[group].Members {
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			leave.Members = append(leave.Members, member)
		}
		if err == nil && len(leave.Members) > 0 {
			_, err = leave.RequestWith(w.t.Context(), c)
		}
		if err != nil {
			w.t.Error(err)
		}
	}
}
