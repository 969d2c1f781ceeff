package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

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
	for range tier.Draws(t, 8, 24) {
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
			accepted, duplicates, conflicts, rejected = accepted+f.accepted, duplicates+f.duplicates, conflicts+f.conflicts,
				rejected+f.rejected
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
	l.awaitMore(tier.Draws(t, 200, 600))
	l.stop()
	w.drain()
	i.stop()
	if moved := moveOffsets(w, false); moved == 0 {
		t.Error("no offset was moved")
	}
	i.start()
	again := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return i.url() })
	again.awaitMore(tier.Draws(t, 100, 300))
	again.stop()
	w.drain()
	within(t, "the old records were consumed again", func(ctx context.Context) (bool, string) {
		n := w.metric(i, `meterplex_events_consumed_total{consumer="meterplex-usage-aggregator",result="noop",topic="usage.validated"}`)
		return n > 0, fmt.Sprint(n)
	})
	w.finish()
}

// moveOffsets commits the beginning or the end for every group and returns the number of
// changed offsets. The groups must have no members.
func moveOffsets(w *deployment, toEnd bool) (moved int) {
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
