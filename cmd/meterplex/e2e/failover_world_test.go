package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// rehearsal is a world whose database is lost and recovered.
type rehearsal struct {
	*world
	servers *pair
	front   *instance // has the role api
	back    *instance // consumers that are frozen; nil: none
	tenant  *tenant
}

// consumers are the roles that read topics.
func consumers() []string { return []string{"validator", "aggregator", "deadletter", "commands"} }

// newRehearsal starts an instance with all roles but those that are to be frozen, which
// get an instance of their own.
func newRehearsal(t testing.TB, frozen ...string) *rehearsal {
	t.Helper()
	p := newPair(t)
	r := &rehearsal{world: newWorldAt(t, p.url(), p.adminURL()), servers: p}
	roles := slices.DeleteFunc(append([]string{"api", "relay", "projector"}, consumers()...), func(role string) bool { return slices.Contains(frozen, role) })
	r.front = r.serve(strings.Join(roles, ","))
	if len(frozen) > 0 {
		r.back = r.serve(strings.Join(frozen, ","))
	}
	r.catalogue(r.front)
	r.tenant = r.join(r.front, 1)[0]
	return r
}

// partition is the tenant's.
func (r *rehearsal) partition() int16 { return int16(partitionOf(r.tenant.id)) }

// usage makes n events of one amount.
func usage(name string, n int, amount int64) []event {
	batch := events(name, n, "api_calls")
	for i := range batch {
		batch[i].Amount, batch[i].Timestamp = amount, batch[0].Timestamp
	}
	return batch
}

// counted sends events and waits until the figures have them.
func (r *rehearsal) counted(batch []event) {
	r.t.Helper()
	r.ingest(r.front, r.tenant, "accepted", batch...)
	r.drain()
}

// freeze stops the consumers when they have nothing to do. What is published from now
// on is unread.
func (r *rehearsal) freeze() {
	r.t.Helper()
	r.drain()
	r.back.signal(syscall.SIGSTOP)
}

// published waits until everything that is recorded is on the topics.
func (r *rehearsal) allPublished() {
	r.t.Helper()
	within(r.t, time.Minute, "everything is on the topics", func(context.Context) (bool, string) {
		n := r.unpublished()
		return n == 0, fmt.Sprint(n, " unpublished")
	})
}

// recovered is called when another life of the database has begun: lost are the events
// that it began without. What a ledger was told of them stays.
func (w *world) recovered(lost []logRow) {
	w.t.Helper()
	w.sql.Reset() // the connections of before
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.lost = map[string]bool{}
	}
	for _, e := range lost {
		w.lost[e.id] = true
	}
	w.t.Logf("recovered without %d events", len(lost))
}

// forgiven takes the lost events off the tenants' ledgers: an asynchronous standby, an
// older volume and a backup do not have what was answered last.
func (r *rehearsal) forgiven(lost []logRow) {
	for _, e := range lost {
		for _, x := range r.tenants {
			if x.id == e.tenant && e.producer != "" {
				x.ledger.lose(e.producer)
			}
		}
	}
}

// ghosts are records of lost events on a topic in the tenant's partition that the
// consumer's group has not read.
func (r *rehearsal) ghosts(topic, group string) (unread int) {
	r.t.Helper()
	c := r.kafka()
	defer c.Close()
	offsets, err := kadm.NewClient(c).FetchOffsets(r.t.Context(), r.prefix+group)
	if err != nil {
		r.t.Fatal(err)
	}
	read, _ := offsets.Lookup(r.prefix+topic, int32(r.partition()))
	for _, record := range r.recordsOf(topic, int32(r.partition())) {
		position := numberOf(headerOf(record, "mp-position"))
		if r.lost[headerOf(record, "mp-event-id")] && position > r.servers.fork[r.partition()] && record.Offset >= read.At {
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
func (w *world) recordsOf(topic string, partition int32) (all []*kgo.Record) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	from := map[string]map[int32]kgo.Offset{w.prefix + topic: {partition: kgo.NewOffset().AtStart()}}
	c := w.kafka(kgo.ConsumePartitions(from))
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, w.prefix+topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		w.t.Fatal(err)
	}
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

// figuresTime bounds the wait for figures. Frozen consumers come back to their groups, and a lost
// tail is read from the log, in seconds.
const figuresTime = 90 * time.Second

// figuresAre waits until the figures of the tenant are what its events add up to: the
// aggregates and the entitlements as the API shows them, and the log.
func (r *rehearsal) figuresAre(want total) {
	r.t.Helper()
	state := "nothing was answered"
	within(r.t, figuresTime, fmt.Sprintf("%d events with sum %d are in the figures", want.events, want.amount), func(ctx context.Context) (bool, string) {
		var log total
		err := r.sql.QueryRow(ctx, `SELECT count(*), coalesce(sum((l.payload ->> 'amount')::bigint), 0)::bigint FROM event_log_rows l WHERE tenant_id = $1 AND subject = 1`, r.tenant.id).Scan(&log.events, &log.amount)
		aggregated, used := r.figures(ctx)
		if ctx.Err() != nil { // what was so before counts
			return false, state
		}
		state = fmt.Sprintf("the log has %d events with sum %d, the aggregates %d with sum %d, the entitlement says %d, %v; unpublished %s",
			log.events, log.amount, aggregated.events, aggregated.amount, used, err, r.behind(ctx))
		return err == nil && log == want && aggregated == want && used == want.amount, state
	})
}

// figures asks the API for what the tenant has used.
func (r *rehearsal) figures(ctx context.Context) (aggregated total, used int64) {
	var told struct {
		Data []struct{ Amount, EventCount int64 }
	}
	var check struct{ Used int64 }
	for path, into := range map[string]any{"/api/v1/usage/aggregates?limit=500": &told, "/api/v1/entitlements/api_calls/check": &check} {
		if err := r.get(ctx, r.tenant.key, r.front, path, into); err != nil {
			return total{-1, -1}, -1
		}
	}
	for _, d := range told.Data {
		aggregated = total{aggregated.amount + d.Amount, aggregated.events + d.EventCount}
	}
	return aggregated, check.Used
}

// behind tells what is not published, and which consumers are behind.
func (r *rehearsal) behind(ctx context.Context) string {
	unpublished, consumers := int64(-1), ""
	if err := r.sql.QueryRow(ctx, behindSQL).Scan(&unpublished, &consumers); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d, behind: %s", unpublished, consumers)
}

// epochRaised: the log knows where its present life begins, and operators are told.
func (r *rehearsal) epochRaised() {
	r.t.Helper()
	epochs, from, fork := 0, int64(0), r.servers.fork[r.partition()]
	err := r.sql.QueryRow(r.t.Context(), `SELECT count(*), max(from_position) FROM log_epochs WHERE partition = $1`, r.partition()).Scan(&epochs, &from)
	if err != nil || epochs < 2 || from != fork+1 {
		r.t.Errorf("partition %d has %d epochs, the last from position %d; its head was %d when the database was recovered: %v", r.partition(), epochs, from, fork, err)
	}
	raised := 0.0
	for _, i := range []*instance{r.front, r.back} {
		if i != nil {
			raised += r.metricOf(cmp.Or(i.url(), i.health()), "meterplex_log_epochs_raised_total")
		}
	}
	if raised == 0 {
		r.t.Error("no instance counts a raised epoch")
	}
	if status, body, err := r.call(r.t.Context(), r.operator, http.MethodGet, r.front.url()+"/api/v1/system", nil); err != nil || status != http.StatusOK {
		r.t.Errorf("GET /api/v1/system: %d %v %s", status, err, body)
	}
}

// proved holds the recovered service against every check there is, and ends it.
func (r *rehearsal) proved() {
	r.t.Helper()
	r.drain()
	var told struct {
		Holds bool
		Total terms
	}
	r.ask(r.operator, http.MethodGet, r.front, "/api/v1/system/identity", nil, &told, http.StatusOK)
	if !told.Holds || !told.Total.hold() {
		r.t.Errorf("the identity does not hold: %+v", told)
	}
	r.proven("meterplex verify --all", r.verify(r.front, "--all"))
	r.finish()
}
