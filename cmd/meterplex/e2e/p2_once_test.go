package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/tier"
)

// Sixteen clients send the same batches, with duplicates, conflicts and rejections, in
// opposite orders at once: each id is accepted exactly once.
func TestP2_RetriesFromSixteenClientsInOppositeOrders(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	source := &source{rng: rand.New(rand.NewPCG(w.seed, 1)), mix: mix{duplicates: 25, conflicts: 8, rejections: 8, batch: 80}, name: "b"}
	var batches [][]event
	for range tier.Histories(t, 8, 24) {
		batches = append(batches, source.batch())
	}
	var wait sync.WaitGroup
	for n := range 16 {
		wait.Go(func() {
			c := &client{w: w, tenant: x, to: i.url}
			for _, batch := range reversedFor(batches, n) {
				c.send(t.Context(), batch)
			}
		})
	}
	wait.Wait()
	var accepted, duplicates, conflicts, rejected int
	for id, fates := range x.ledger.fates {
		times := 0
		for _, f := range fates {
			times += f.accepted
			accepted, duplicates, conflicts, rejected = accepted+f.accepted, duplicates+f.duplicates, conflicts+f.conflicts, rejected+f.rejected
			if f.acked() && f.conflicts > 0 {
				t.Errorf("%s %d was acknowledged and answered as a conflict", id, f.Amount)
			}
		}
		if want := 1; times != want && fates[0].Feature != "not.in.the.plan" {
			t.Errorf("%s was accepted %d times", id, times)
		}
	}
	t.Logf("%d accepted, %d duplicates, %d conflicts, %d rejected", accepted, duplicates, conflicts, rejected)
	if accepted == 0 || duplicates < 10*accepted || conflicts == 0 || rejected == 0 {
		t.Error("a kind of verdict is missing")
	}
	w.finish()
}

// reversedFor reverses the batches and their events for every other client.
func reversedFor(batches [][]event, n int) [][]event {
	if n%2 == 0 {
		return batches
	}
	back := make([][]event, len(batches))
	for i, b := range batches {
		b = slices.Clone(b)
		slices.Reverse(b)
		back[len(back)-1-i] = b
	}
	return back
}

// The groups' offsets are set to the beginning: all records are consumed again.
func TestP2_ConsumerOffsetsRewoundToZero(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return i.url() })
	l.awaitMore(tier.Histories(t, 200, 600))
	l.stop()
	w.drain()
	i.stop()
	if moved := w.moveOffsets(false); moved == 0 {
		t.Error("no offset was moved")
	}
	i.start()
	again := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return i.url() })
	again.awaitMore(tier.Histories(t, 100, 300))
	again.stop()
	w.drain()
	within(t, "the old records were consumed again", func(ctx context.Context) (bool, string) {
		n := w.metric(i, `meterplex_events_consumed_total{consumer="meterplex-usage-aggregator",result="noop",topic="usage.validated"}`)
		return n > 0, fmt.Sprint(n)
	})
	w.finish()
}

// The groups' offsets are set to the end before anything was consumed: the consumers must
// read the skipped events from the log.
func TestP2_ConsumerOffsetsMovedToTheEnd(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("api,relay,projector")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return i.url() })
	l.awaitMore(300)
	l.stop()
	within(t, "all events are on the topics", func(context.Context) (bool, string) {
		n := w.unpublished()
		return n == 0, fmt.Sprint(n)
	})
	i.stop()
	if moved := w.moveOffsets(true); moved == 0 {
		t.Error("no offset was moved")
	}
	whole := w.serve("")
	w.drain()
	if !whole.logContains("reading a lost tail from the log") {
		t.Error("no event was read from the log")
	}
	after := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return whole.url() })
	after.awaitMore(200)
	after.stop()
	w.finish()
}

// moveOffsets commits the beginning or the end for every group and returns the number of
// changed offsets. The groups must have no members.
func (w *deployment) moveOffsets(toEnd bool) (moved int) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	for group, topic := range groups() {
		list := admin.ListStartOffsets
		if toEnd {
			list = admin.ListEndOffsets
		}
		within(w.t, "the group has no members", func(ctx context.Context) (bool, string) {
			to, err := list(ctx, w.prefix+topic)
			if err = errors.Join(err, to.Error()); err != nil {
				return false, err.Error()
			}
			before, err := admin.FetchOffsets(ctx, w.prefix+group)
			if err = errors.Join(err, before.Error()); err != nil {
				return false, err.Error()
			}
			done, err := admin.CommitOffsets(ctx, w.prefix+group, to.Offsets())
			if err = errors.Join(err, done.Error()); err != nil {
				return false, err.Error()
			}
			to.Each(func(o kadm.ListedOffset) {
				if was, ok := before.Lookup(o.Topic, o.Partition); !ok && o.Offset > 0 || ok && was.At != o.Offset {
					moved++
				}
			})
			return true, ""
		})
	}
	return moved
}

// Two instances with all roles share a database and a broker; one is killed and restarted.
func TestP2_TwoInstances(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	a := w.serve("")
	b := w.serve("")
	w.catalogue(a)
	tenants := w.createTenants(a, 3)
	w.awaitKeys(b, tenants)
	// Each client uses one of them, and the other while the first is down.
	l := w.startLoad(tenants, 2, busyTraffic(), func(n int) string {
		first, second := a, b
		if n%2 == 1 {
			first, second = b, a
		}
		if url := first.url(); url != "" {
			return url
		}
		return second.url()
	})
	l.awaitMore(400)
	if n := w.relays(t); n != 2 {
		t.Errorf("%d instances relay, want 2", n)
	}
	l.killDuringRequest(b)
	l.awaitMore(400)
	b.start()
	l.awaitMore(400)
	l.stop()
	w.finish()
}

// An instance is frozen, with heads locked, for longer than its session and its leases
// last, and then continues. Others have its partitions by then.
func TestP2_ZombieInstance(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	a := w.serve("")
	b := w.serve("")
	w.catalogue(a)
	tenants := w.createTenants(a, 3)
	w.awaitKeys(b, tenants)
	w.awaitMembers(2)
	m := lightTraffic()
	l := w.startLoad(tenants, 2, m, func(int) string { return a.url() })
	// Clients of the zombie, too: their requests are frozen with it, locks held.
	z := w.startLoad(tenants, 3, busyTraffic(), func(int) string { return b.url() })
	l.awaitMore(200)
	if n := w.relays(t); n != 2 {
		t.Errorf("%d instances relay, want 2", n)
	}
	w.freezeWithHeads(b, tenants)
	within(t, "the other instance has all partitions", func(ctx context.Context) (bool, string) {
		n := w.members(ctx)
		return n == len(groups()), fmt.Sprint(n)
	})
	for _, x := range tenants {
		from := x.ledger.acked()
		within(t, "no tenant waits for the heads locked by the frozen instance", func(ctx context.Context) (bool, string) {
			return x.ledger.acked() > from, w.transactions(ctx)
		})
	}
	b.signal(syscall.SIGCONT)
	l.awaitMore(200)
	l.stop()
	z.stop()
	w.finish()
}

// freezeWithHeads stops an instance that waits for the tenants' heads, and then releases the
// heads to it: its sessions stay in an open transaction. It tries ten times, since it is
// chance whether the instance waits for a head when it is stopped.
func (w *deployment) freezeWithHeads(i *instance, tenants []*tenant) {
	w.t.Helper()
	for range 10 {
		w.freezeAtHeads(i, tenants)
		if w.becomesTrue(4*time.Second, func(context.Context) bool {
			return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' AND state_change < now() - interval '1 second'`) > 0
		}) {
			return
		}
		i.signal(syscall.SIGCONT)
	}
	w.t.Fatal("the frozen instance never had heads locked")
}

func (w *deployment) freezeAtHeads(i *instance, tenants []*tenant) {
	w.t.Helper()
	tx, err := w.sql.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var partitions []int
	for _, x := range tenants {
		partitions = append(partitions, partitionOf(x.id))
	}
	if _, err := tx.Exec(w.t.Context(), `SELECT FROM log_heads WHERE partition = ANY ($1) ORDER BY partition FOR UPDATE`, partitions); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Second) // by then most writes of both instances wait
	i.signal(syscall.SIGSTOP)
	if err := tx.Rollback(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// transactions describes the sessions with an open transaction.
func (w *deployment) transactions(ctx context.Context) (all string) {
	err := w.sql.QueryRow(ctx, `SELECT coalesce(string_agg(format('%s %s on %s for %s: %s', state, wait_event, pg_blocking_pids(pid), now() - xact_start, left(query, 80)), E'\n'), '')
FROM pg_stat_activity WHERE datname = current_database() AND xact_start < now()`).Scan(&all)
	if err != nil {
		return err.Error()
	}
	return all
}

// relays waits until both instances have partitions and counts the owners of leases.
func (w *deployment) relays(t *testing.T) (n int) {
	t.Helper()
	within(t, "both instances relay", func(ctx context.Context) (bool, string) {
		err := w.sql.QueryRow(ctx, `SELECT count(DISTINCT owner) FROM relay_cursors WHERE lease_until > now()`).Scan(&n)
		return err == nil && n == 2, fmt.Sprint(n, err)
	})
	return n
}
