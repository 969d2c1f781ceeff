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

// killableInstance is an instance that dies at a chosen kill point.
type killableInstance struct {
	*instance
	w       *deployment
	arm     string // the file that names the kill point
	reached int
	// afterDeath, if not nil, is called before the process starts again.
	afterDeath func()
}

func (w *deployment) killable(roles string, env ...string) *killableInstance {
	w.t.Helper()
	m := w.prepareKillable(roles, env...)
	m.start()
	return m
}

func (w *deployment) prepareKillable(roles string, env ...string) *killableInstance {
	w.t.Helper()
	m := &killableInstance{w: w, arm: filepath.Join(w.t.TempDir(), "place")}
	m.instance = w.prepare(roles, append(env, "METERPLEX_FAULT_ARM="+m.arm)...)
	m.build = faulty
	return m
}

// tryStart is tryStart of an instance. A process that passes the armed kill point before it prints its
// address has started too: awaitDeath finds it dead.
func (m *killableInstance) tryStart() error {
	err := m.instance.tryStart()
	if _, reached := os.Stat(m.arm + ".reached"); reached == nil {
		return nil
	}
	return err
}

// killAt kills the process when it passes a kill point for the n-th time, and starts it again.
// cause, if not nil, makes the process pass there. It has returned when killAt returns.
func (m *killableInstance) killAt(place string, n int, cause func()) bool {
	return m.killAtEach([]string{place}, n, cause)
}

// killAtEach is killAt for several kill points in one piece of work. Each is armed before the
// process restarts: otherwise the process could have passed it already.
func (m *killableInstance) killAtEach(places []string, n int, cause func()) bool {
	if !m.armAt(places[0], n) {
		return false
	}
	var caused sync.WaitGroup
	defer caused.Wait() // cause may need the restarted process
	if cause != nil {
		caused.Go(cause)
	}
	for i, place := range places {
		if !m.awaitDeath(place) {
			return false
		}
		if i+1 < len(places) && !m.armAt(places[i+1], n) {
			return false
		}
		if m.afterDeath != nil {
			m.afterDeath()
		}
		if err := m.tryStart(); err != nil {
			m.t.Error(err)
			return false
		}
		m.reached++
	}
	return true
}

// armAt arms the next kill point.
func (m *killableInstance) armAt(place string, n int) bool {
	err := os.WriteFile(m.arm+".new", []byte(place+"#"+strconv.Itoa(n)), 0o600)
	if err == nil {
		err = os.Rename(m.arm+".new", m.arm)
	}
	if err != nil {
		m.t.Error(err)
	}
	return err == nil
}

// awaitDeath waits for the process to die at the armed kill point.
func (m *killableInstance) awaitDeath(place string) bool {
	m.mu.Lock()
	running := m.run
	m.mu.Unlock()
	select {
	case <-running.done:
	case <-m.t.Context().Done():
		return false
	case <-time.After(patience):
		_ = os.Remove(m.arm)
		m.t.Errorf("%s did not reach %q", m.name, place)
		return false
	}
	if err := os.Remove(m.arm + ".reached"); err != nil {
		m.t.Errorf("%s ended before it reached %q:\n%s", m.name, place, m.lastLines(30))
		return false
	}
	return true
}

// diesWithin reports whether the process passes the armed kill point within a time.
func (m *killableInstance) diesWithin(limit time.Duration) bool {
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(m.arm); err != nil {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// retryUntilAnswered repeats one request, with the same Idempotency-Key, until the answer is not 503.
func (w *deployment) retryUntilAnswered(key, method string, at *instance, path string, in object, want int) (body []byte) {
	w.t.Helper()
	once, status := uuid.NewString(), 0
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		var err error
		status, body, err = w.call(w.t.Context(), key, method, at.url()+path, in, "Idempotency-Key", once)
		if err == nil && status != http.StatusServiceUnavailable {
			break
		}
	}
	if status != want {
		w.t.Errorf("%s %s: %d, want %d: %s", method, path, status, want, body)
	}
	return body
}

// killTest is a deployment in which each role is a process of its own, so that each can die
// while the others work.
type killTest struct {
	*deployment
	api, relay, validator, aggregator, letters, commands, projector *killableInstance
	tenants                                                         []*tenant
	source                                                          *externalProducer
}

func newKillTest(t *testing.T) *killTest {
	w := newDeployment(t)
	d := &killTest{deployment: w, api: w.killable("api")}
	for to, roles := range map[**killableInstance]string{
		&d.relay: "relay", &d.validator: "validator", &d.aggregator: "aggregator", &d.letters: "deadletter", &d.commands: "api,commands",
	} {
		*to = w.killable(roles)
	}
	d.projector = w.killable("projector", "METERPLEX_REBUILD_CHUNK=20")
	w.catalogue(d.api.instance)
	d.tenants = w.createTenants(d.api.instance, 3)
	d.source = w.newExternalProducer()
	return d
}

// P1, P2: every process dies at every kill point, under load and at the same time as the
// others. Each acknowledged event is stored, once.
func TestP2_KilledAtEveryKillPoint(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := newKillTest(t)
	failed := d.rejections(5)
	l := d.startLoad(d.tenants, 1, lightTraffic(), func(int) string { return d.api.url() })
	d.awaitFolded(d.api.instance, "meterplex-usage-aggregator")
	var dying sync.WaitGroup
	ready := make(chan rebuild, 1)
	dying.Go(func() { d.killAPI(failed[:3], ready) })
	dying.Go(func() { d.killRelay() })
	dying.Go(func() { killConsumer(d.validator, "meterplex-usage-validator") })
	dying.Go(func() { killConsumer(d.aggregator, "meterplex-usage-aggregator") })
	dying.Go(func() { killConsumer(d.letters, "meterplex-dead-letter-handler") })
	dying.Go(func() { d.killCommands(failed[3:]) })
	dying.Go(func() { d.killProjector(ready) })
	dying.Wait()
	l.stop()
	d.awaitConsumed()
	d.settle(d.api.instance, d.tenants...)
	reached := 0
	for _, m := range []*killableInstance{d.api, d.relay, d.validator, d.aggregator, d.letters, d.commands, d.projector} {
		reached += m.reached
	}
	t.Logf("%d deaths", reached)
	if l.lost() == 0 {
		t.Error("no request was under way at a death")
	}
	d.drain()
	d.checkSameUsage(1, 2)
	d.retried(failed)
	d.finish()
}

// rejections creates n dead letters: usage accepted by an instance that did not know yet
// that the subscription had ended.
func (d *killTest) rejections(n int) (letters []deadLetter) {
	d.t.Helper()
	x := d.tenants[0]
	for range n {
		d.acceptThenReject(d.api.instance, d.commands.instance, x)
	}
	within(d.t, "the rejections are dead letters", func(context.Context) (bool, string) {
		var page struct{ Data []deadLetter }
		d.ask(d.operator, http.MethodGet, d.api.instance, "/api/v1/dead-letters?stage=VALIDATION&tenantId="+x.id, nil, &page, http.StatusOK)
		letters = page.Data
		return len(letters) == n, fmt.Sprintf("%+v", letters)
	})
	return letters
}

// retried checks that each requested retry counted once.
func (d *killTest) retried(letters []deadLetter) {
	d.t.Helper()
	for _, l := range letters {
		n := d.count(`SELECT count(*) FROM event_log_rows l WHERE subject = 6 AND l.payload ->> 'deadLetterId' = $1`, l.ID)
		resolved := d.count(`SELECT count(*) FROM dead_letter_events WHERE generation = 1 AND id = $1 AND status = 'RESOLVED'`, l.ID)
		if n != 1 || resolved != 1 {
			d.t.Errorf("dead letter %s was retried %d times, resolved %d", l.ID, n, resolved)
		}
	}
}

// large sends a batch that its partition's own writer stores, in several pieces.
func (d *killTest) large(n int) func() {
	x := d.tenants[1]
	c := &client{w: d.deployment, tenant: x, to: d.api.url}
	return func() {
		if c.send(d.t.Context(), events(fmt.Sprint("large", n), 900, "api_calls")) == nil {
			d.t.Error("a large batch was never answered")
		}
	}
}

func (d *killTest) retry(l deadLetter) func() {
	return func() {
		d.retryUntilAnswered(d.operator, http.MethodPost, d.api.instance, "/api/v1/dead-letters/"+l.ID+"/retry", object{"reason": "fixed"}, http.StatusAccepted)
	}
}

// killAPI kills the process that accepts requests.
func (d *killTest) killAPI(failed []deadLetter, ready <-chan rebuild) {
	for _, place := range []string{"small: before the transaction", "small: heads locked", "small: before COMMIT", "small: after COMMIT", "ingest: before the answer"} {
		d.api.killAt(place, 2, nil)
	}
	for n, place := range []string{"large: before the transaction", "large: heads locked", "large: between two pieces of the COPY", "large: before COMMIT", "large: after COMMIT"} {
		d.api.killAt(place, 1, d.large(n))
	}
	d.api.killAt("change 13: before COMMIT", 1, d.retry(failed[0]))
	d.api.killAt("change 13: after COMMIT", 1, d.retry(failed[1]))
	d.retry(failed[2])()
	rewind := func() {
		d.retryUntilAnswered(d.operator, http.MethodPost, d.api.instance, "/api/v1/replays/rewind", object{"to": "start", "reason": "test"}, http.StatusAccepted)
	}
	d.api.killAt("change 52: before COMMIT", 1, rewind)
	d.api.killAt("change 52: after COMMIT", 1, rewind)
	r, ok := <-ready
	if !ok {
		return
	}
	promote := func() {
		d.retryUntilAnswered(d.operator, http.MethodPost, d.api.instance, "/api/v1/rebuilds/"+r.ID+"/promote", object{"reason": "test"}, http.StatusAccepted)
	}
	d.api.killAt("change 42: before COMMIT", 1, promote)
	d.retryUntilAnswered(d.operator, http.MethodPost, d.api.instance, "/api/v1/rebuilds/"+r.ID+"/rollback", object{"reason": "again"}, http.StatusAccepted)
	d.api.killAt("change 42: after COMMIT", 1, promote)
}

func (d *killTest) killRelay() {
	for _, place := range []string{"relay: before it publishes", "relay: between the broker's ack and the cursor", "relay: after the cursor"} {
		d.relay.killAt(place, 2, nil)
	}
	// A replay publishes what the relay has published: no event, if it was just rewound to the start. Another one is requested then.
	d.relay.killAt("replay: between the broker's ack and the cursor", 1, func() {
		for end := time.Now().Add(patience); time.Now().Before(end); {
			d.retryUntilAnswered(d.operator, http.MethodPost, d.api.instance, "/api/v1/replays", object{"topic": "usage.raw", "fromTime": "2026-01-01T00:00:00Z", "reason": "test"}, http.StatusAccepted)
			if d.relay.diesWithin(5 * time.Second) {
				return
			}
		}
	})
	// The lease of a dead process on a replay lasts two minutes. The test ends it at once.
	if _, err := d.sql.Exec(d.t.Context(), `UPDATE replay_units SET lease_until = '-infinity'`); err != nil {
		d.t.Error(err)
	}
}

func killConsumer(m *killableInstance, group string) {
	m.killAt(group+": before COMMIT", 1, nil)
	m.afterDeath = func() { m.w.endMembers(group) } // after the first death, their sessions end by time
	m.killAt(group+": between COMMIT and ack", 1, nil)
	if group == "meterplex-usage-validator" {
		m.killAt("rewind: offsets moved, not recorded", 1, func() {
			api := m.w.instances[0]
			m.w.retryUntilAnswered(m.w.operator, http.MethodPost, api, "/api/v1/replays/rewind", object{"consumer": group, "to": "start", "reason": "test"}, http.StatusAccepted)
		})
	}
}

// killCommands kills the process that executes commands and accepts usage from the topic.
func (d *killTest) killCommands(failed []deadLetter) {
	message := func() { d.source.batch(d.tenants[2]) }
	d.commands.killAt("usage.commands: before the transaction", 1, message)
	d.commands.afterDeath = func() { d.endMembers("meterplex-command-handler", usageCommandsGroup) }
	d.commands.killAt("meterplex-command-handler: before COMMIT", 1, d.retry(failed[0]))
	d.commands.killAt("usage.commands: between COMMIT and ack", 1, message)
	d.commands.killAt("meterplex-command-handler: between COMMIT and ack", 1, d.retry(failed[1]))
}

// killProjector kills the process that rebuilds, and passes on the rebuild when it is ready.
func (d *killTest) killProjector(ready chan<- rebuild) {
	defer close(ready)
	d.projector.killAt("meterplex-entitlement-reads: before COMMIT", 2, nil)
	d.projector.killAt("meterplex-entitlement-reads: between COMMIT and ack", 2, nil)
	start := func() {
		d.retryUntilAnswered(d.operator, http.MethodPost, d.api.instance, "/api/v1/projections/usage_aggregates/rebuilds", object{"reason": "test", "workers": 2}, http.StatusAccepted)
	}
	if !d.projector.killAtEach([]string{
		"rebuild: a chunk, before COMMIT", "rebuild: a chunk, after COMMIT", "rebuild: the last chunk, before COMMIT", "rebuild: ready, before COMMIT", "rebuild: ready, after COMMIT",
	}, 1, start) {
		return
	}
	var r rebuild
	if err := d.sql.QueryRow(d.t.Context(), `SELECT id::text, generation FROM projection_rebuilds WHERE state = 'READY'`).Scan(&r.ID, &r.Generation); err != nil {
		d.t.Error(err)
		return
	}
	ready <- r
}

// endMembers removes the members of a dead process from consumer groups without the wait for their sessions. No other process may have any.
func (w *deployment) endMembers(groups ...string) {
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
