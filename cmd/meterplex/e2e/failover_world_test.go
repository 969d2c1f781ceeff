package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// failoverTest is a deployment whose database is lost and recovered.
type failoverTest struct {
	*deployment
	servers *serverPair
	frozen  []string  // roles of back
	front   *instance // has the role api
	back    *instance // the consumers to freeze; nil: no such instance
	other   *instance // has all roles; nil: no such instance
	tenant  *tenant
	spare   [2]spareKey
}

// spareKey is a key of the tenant that the test uses later. The first use of a key
// records an origin, which instances cache.
type spareKey struct {
	id string
	by *tenant // the tenant, with this key
}

// consumers are the roles that read topics.
func consumers() []string { return []string{"validator", "aggregator", "deadletter", "commands"} }

// newFailoverTest starts an instance with all roles. Roles that the test freezes run in a
// second instance instead.
func newFailoverTest(t testing.TB, frozen ...string) *failoverTest {
	t.Helper()
	p := newServerPair(t)
	r := &failoverTest{deployment: newDeploymentAt(t, p.url(), p.adminURL()), servers: p, frozen: frozen}
	roles := slices.DeleteFunc(append([]string{"api", "relay", "projector"}, consumers()...), func(role string) bool { return slices.Contains(frozen, role) })
	r.front = r.serve(strings.Join(roles, ","), "METERPLEX_ADMIN_ADDR=127.0.0.1:0") // as the image, the chart and the unit have it
	if len(frozen) > 0 {
		r.back = r.serve(strings.Join(frozen, ","))
	}
	r.catalogue(r.front)
	r.tenant = r.createTenants(r.front, 1)[0]
	for n := range r.spare {
		id, secret := r.newKey(r.front, r.tenant, "usage:write")
		by := *r.tenant
		by.key = secret
		r.spare[n] = spareKey{id, &by}
	}
	return r
}

// partition returns the tenant's log partition.
func (r *failoverTest) partition() int16 { return int16(partitionOf(r.tenant.id)) }

// usage makes n events of one amount.
func usage(name string, n int, amount int64) []event {
	batch := events(name, n, "api_calls")
	for i := range batch {
		batch[i].Amount, batch[i].Timestamp = amount, batch[0].Timestamp
	}
	return batch
}

// sendCounted sends events and waits until the figures have them.
func (r *failoverTest) sendCounted(batch []event) {
	r.t.Helper()
	r.ingest(r.front, r.tenant, "accepted", batch...)
	r.drain()
}

// freeze stops the idle consumers. They do not read the records published from now on.
func (r *failoverTest) freeze() {
	r.t.Helper()
	r.drain()
	r.back.signal(syscall.SIGSTOP)
}

// allPublished waits until all recorded events are on the topics, with their verdicts
// unless the validator is frozen.
func (r *failoverTest) allPublished() {
	r.t.Helper()
	if !slices.Contains(r.frozen, "validator") {
		within(r.t, "each event has its verdict", func(context.Context) (bool, string) {
			n := r.count(`SELECT count(*) FILTER (WHERE subject = 1) - count(*) FILTER (WHERE subject = 2) FROM event_log_rows`)
			return n == 0, fmt.Sprint(n, " events have none")
		})
	}
	within(r.t, "all events are on the topics", func(context.Context) (bool, string) {
		n := r.unpublished()
		return n == 0, fmt.Sprint(n, " unpublished")
	})
}

// noteRecovery notes that a new life of the database has begun without some events. The
// ledgers still hold the answers to them.
func (w *deployment) noteRecovery(lost []logRow) {
	w.t.Helper()
	w.sql.Reset() // drops the connections to the lost server
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.lost = map[occurrence]bool{}
	}
	for _, e := range lost {
		w.lost[e.occurrence()] = true
	}
	w.t.Logf("recovered without %d events", len(lost))
}

// removeLost removes lost events from the tenants' ledgers: an asynchronous standby, an older
// volume and a backup lack the last answered events.
func (r *failoverTest) removeLost(lost []logRow) {
	for _, e := range lost {
		for _, x := range r.tenants {
			if x.id == e.tenant && e.producer != "" {
				x.ledger.drop(e.producer)
			}
		}
	}
}

// lostRecords counts the records of lost events in the tenant's partition of a topic that the
// consumer's group has not read.
func (r *failoverTest) lostRecords(topic, group string) (unread int) {
	r.t.Helper()
	c := r.kafka()
	defer c.Close()
	var offsets kadm.OffsetResponses
	within(r.t, "the group's offsets are known", func(ctx context.Context) (bool, string) {
		var err error
		offsets, err = kadm.NewClient(c).FetchOffsets(ctx, r.prefix+group)
		return err == nil, fmt.Sprint(err)
	})
	read, _ := offsets.Lookup(r.prefix+topic, int32(r.partition()))
	for _, record := range r.recordsOf(topic, int32(r.partition())) {
		o := occurrence{headerOf(record, "mp-position"), headerOf(record, "mp-epoch"), headerOf(record, "mp-event-id")}
		if r.lost[o] && numberOf(o.position) > r.servers.fork[r.partition()] && record.Offset >= read.At {
			unread++
		}
	}
	return unread
}

func headerOf(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// recordsOf reads one partition of a topic from beginning to end.
func (w *deployment) recordsOf(topic string, partition int32) (all []*kgo.Record) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	from := map[string]map[int32]kgo.Offset{w.prefix + topic: {partition: kgo.NewOffset().AtStart()}}
	c := w.kafka(kgo.ConsumePartitions(from))
	defer c.Close()
	var ends kadm.ListedOffsets
	within(w.t, "the topic's ends are known", func(ctx context.Context) (bool, string) {
		var err error
		ends, err = kadm.NewClient(c).ListEndOffsets(ctx, w.prefix+topic)
		err = errors.Join(err, ends.Error())
		return err == nil, fmt.Sprint(err)
	})
	end, _ := ends.Lookup(w.prefix+topic, partition)
	for last := int64(-1); last+1 < end.Offset; {
		fetched := c.PollFetches(ctx)
		if ctx.Err() != nil {
			w.t.Fatalf("%s/%d cannot be read to its end %d", topic, partition, end.Offset)
		}
		fetched.EachRecord(func(record *kgo.Record) {
			all, last = append(all, record), record.Offset
		})
	}
	return all
}

// awaitFigures waits until the log, the aggregates and the entitlements of the tenant have
// as many events with that sum. The aggregates and the entitlements are read from the API.
func (r *failoverTest) awaitFigures(want total) {
	r.t.Helper()
	state := "no answer yet"
	within(r.t, fmt.Sprintf("%d events with sum %d are in the figures", want.events, want.amount), func(ctx context.Context) (bool, string) {
		var log total
		err := r.sql.QueryRow(ctx, `SELECT count(*), coalesce(sum((l.payload ->> 'amount')::bigint), 0)::bigint FROM event_log_rows l WHERE tenant_id = $1 AND subject = 1`, r.tenant.id).Scan(&log.events, &log.amount)
		aggregated, used := r.figures(ctx)
		if ctx.Err() != nil { // report the state of the last complete check
			return false, state
		}
		state = fmt.Sprintf("the log has %d events with sum %d, the aggregates %d with sum %d, the entitlement says %d, %v; unpublished %s",
			log.events, log.amount, aggregated.events, aggregated.amount, used, err, r.backlog(ctx))
		return err == nil && log == want && aggregated == want && used == want.amount, state
	})
}

// figures asks the API for the usage of the tenant.
func (r *failoverTest) figures(ctx context.Context) (aggregated total, used int64) {
	var response struct {
		Data []struct{ Amount, EventCount int64 }
	}
	var check struct{ Used int64 }
	for path, into := range map[string]any{"/api/v1/usage/aggregates?limit=500": &response, "/api/v1/entitlements/api_calls/check": &check} {
		if err := r.get(ctx, r.tenant.key, r.front, path, into); err != nil {
			return total{-1, -1}, -1
		}
	}
	for _, d := range response.Data {
		aggregated = total{aggregated.amount + d.Amount, aggregated.events + d.EventCount}
	}
	return aggregated, check.Used
}

// backlog returns the number of unpublished events and the consumers that are behind.
func (r *failoverTest) backlog(ctx context.Context) string {
	unpublished, consumers := int64(-1), ""
	if err := r.sql.QueryRow(ctx, behindSQL).Scan(&unpublished, &consumers); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d, behind: %s", unpublished, consumers)
}

// checkEpochRaised checks that the log has the position where its present life begins, and that
// the metrics and the API show it.
func (r *failoverTest) checkEpochRaised(reason string) {
	r.t.Helper()
	p, fork := r.partition(), r.servers.fork[r.partition()]
	epochs, from := 0, int64(0)
	err := r.sql.QueryRow(r.t.Context(), `SELECT count(*), max(from_position) FROM log_epochs WHERE partition = $1`, p).Scan(&epochs, &from)
	if err != nil || epochs < 2 || from != fork+1 {
		r.t.Errorf("partition %d has %d epochs, the last from position %d; its head was %d when the database was recovered: %v", p, epochs, from, fork, err)
	}
	if n := r.counter("meterplex_log_epochs_raised_total{", `reason="`+reason+`"`); n == 0 {
		r.t.Errorf("no instance counts a raised epoch with the reason %s", reason)
	}
	var system struct {
		LogID      string
		Lives      []struct{ Reason string }
		Partitions []struct {
			Partition int16
			EpochFrom string
		}
	}
	if err := r.get(r.t.Context(), r.operator, r.front, "/api/v1/system", &system); err != nil {
		r.t.Error(err)
		return
	}
	shown := ""
	for _, partition := range system.Partitions {
		if partition.Partition == p {
			shown = partition.EpochFrom
		}
	}
	if want := fmt.Sprint(p, "-", fork+1); len(system.Lives) < 2 || system.Lives[0].Reason != reason || shown != want || system.LogID == "" {
		r.t.Errorf("the system is shown as %+v; want the present life to be %s, and the epoch of partition %d to begin at %s", system, reason, p, want)
	}
}

// counter sums the series of a metric that have a label, over all instances.
func (r *failoverTest) counter(name, label string) (sum float64) {
	r.t.Helper()
	awaitFreshMetrics()
	for _, i := range []*instance{r.front, r.back, r.other} {
		if i != nil {
			sum += r.metricsOf(i.health(), func(series string) bool { return strings.HasPrefix(series, name) && strings.Contains(series, label) })
		}
	}
	return sum
}

// checkDropped checks that a consumer counts the unread records of lost events that it dropped.
func (r *failoverTest) checkDropped(consumer string, unread int) {
	r.t.Helper()
	if n := r.counter("meterplex_events_ghost_total{", `consumer="`+consumer+`"`); n < float64(unread) {
		r.t.Errorf("%s counts %v dropped records of lost events; %d were unread", consumer, n, unread)
	}
}

// prove checks the identity, meterplex verify and the tests' own checker on the recovered
// service, and stops it. If a busy broker or server did not answer in time, verify ends with
// exit code 2 and is run again.
func (r *failoverTest) prove() {
	r.t.Helper()
	r.drain()
	var response struct {
		Holds bool
		Total identityTerms
	}
	r.ask(r.operator, http.MethodGet, r.front, "/api/v1/system/identity", nil, &response, http.StatusOK)
	if !response.Holds || !response.Total.hold() {
		r.t.Errorf("the identity does not hold: %+v", response)
	}
	p := r.verify(r.front, "--all")
	for try := 0; p.code == 2 && try < 3; try++ {
		p = r.verify(r.front, "--all")
	}
	r.requireProven("meterplex verify --all", p)
	r.finish()
}
