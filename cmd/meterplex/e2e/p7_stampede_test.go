package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// stampede is 200 clients that want the last 50 units of a tenant at once, while an instance dies.
type stampede struct {
	name  string
	place string // the kill point
	pass  int    // of the kill point, the one at which the instance dies
	whole bool   // the instance with all roles dies, not the other one
	// send sends the requests of a client, and returns them.
	send func(d *limitsTest, x *tenant, id string, amount int64, to []*instance) []*request
	// frees: clients commit less than they hold, or release it, so that a refused amount may fit later.
	frees bool
}

const (
	stampedeClients = 200
	lastUnits       = 50
	// lateClients begin at the instance that survives. Their amounts, at most lateAmount each, leave some units for the instance that
	// dies, so that it grants a request and passes the kill point.
	lateClients, lateAmount = 20, 2
)

func consumeUnits(d *limitsTest, x *tenant, id string, amount int64, to []*instance) []*request {
	return d.sendAll(x, to, consumeOf(id, amount))
}

func holdUnits(d *limitsTest, x *tenant, id string, amount int64, to []*instance) []*request {
	return d.sendAll(x, to, holdOf(id, amount, 3600))
}

func ingestUnits(d *limitsTest, x *tenant, id string, amount int64, to []*instance) []*request {
	return d.sendAll(x, to, ingestOf(id, amount, time.Now()))
}

// workUnits holds an amount, and commits a part of it or releases it.
func workUnits(d *limitsTest, x *tenant, id string, amount int64, to []*instance) []*request {
	sent := d.sendAll(x, to, holdOf(id, amount, 3600))
	if !sent[0].granted(d.t) {
		return sent
	}
	if amount > 1 {
		return append(sent, d.sendAll(x, to, commitOf(id, amount-1))...)
	}
	return append(sent, d.sendAll(x, to, releaseOf(id))...)
}

func (d *limitsTest) sendAll(x *tenant, to []*instance, list ...*request) []*request {
	for _, r := range list {
		d.send(x, r, to...)
	}
	return list
}

func stampedes() (all []stampede) {
	for _, place := range []string{"small: before COMMIT", "small: after COMMIT", "limits: before the answer"} {
		ingested := place
		if place == "limits: before the answer" {
			ingested = "ingest: before the answer"
		}
		all = append(all,
			stampede{name: "consume", place: place, pass: 1, send: consumeUnits},
			stampede{name: "hold", place: place, pass: 1, send: holdUnits},
			stampede{name: "hold, then commit or release", place: place, pass: 2, send: workUnits, frees: true},
			stampede{name: "enforced usage", place: ingested, pass: 1, send: ingestUnits})
	}
	return append(all, stampede{name: "consume", place: "small: after COMMIT", pass: 1, whole: true, send: consumeUnits})
}

// P7: 200 clients want the last 50 units of a HARD limit at once, and one of two instances is killed before COMMIT, after it,
// or before an answer. Each client sends its request again until it is answered. The limit is granted exactly, no request is
// refused that fits, and each repeated request gets its first answer. Accounts read meanwhile are sums of the log.
func TestP7_StampedesWhileAnInstanceIsKilled(t *testing.T) {
	t.Parallel()
	d := newLimitsTest(t)
	rng := rand.New(rand.NewPCG(d.seed, 7))
	all := stampedes()
	if testing.Short() { // one of consumptions before COMMIT, one of enforced usage after it
		all = []stampede{all[0], all[7]}
	}
	for n, s := range all {
		d.stampede(s, rng, n)
	}
	d.verifyAtEnd()
}

func (d *limitsTest) stampede(s stampede, rng *rand.Rand, n int) {
	d.t.Helper()
	dies, other := d.api, d.whole
	if s.whole {
		dies, other = d.whole, d.api
	}
	x := d.limitedTenant(d.whole.instance, d.api.instance)
	d.mustSend(x, consumeOf("before", unitLimit-lastUnits), 200, other.instance)
	if s.whole {
		d.drain() // otherwise the verdict on the first amount may pass the kill point
	}
	amounts := make([]int64, stampedeClients)
	for c := range amounts {
		amounts[c] = 1 + rng.Int64N(3)
		if c < lateClients {
			amounts[c] = 1 + rng.Int64N(lateAmount)
		}
	}
	sent := make([][]*request, stampedeClients)
	samples := d.sampled(other.instance, x, func() {
		dies.killAt(s.place, s.pass, func() {
			var all sync.WaitGroup
			for c := range sent {
				to := []*instance{dies.instance, other.instance}
				if c < lateClients {
					slices.Reverse(to)
				}
				all.Go(func() { sent[c] = s.send(d, x, fmt.Sprint("client-", c), amounts[c], to) })
			}
			all.Wait()
		})
	})
	list := slices.Concat(sent...)
	states := d.fold(x)
	d.checkGrants(s, list, states)
	d.checkSamples(samples, states)
	d.repeated(x, list, s.frees)
	d.checkAccount(d.api.instance, x, d.fold(x))
	lost := 0
	for _, r := range list {
		lost += r.lost
	}
	d.t.Logf("%d: %s, killed %s: %d requests, %d without an answer at first, %d samples", n, s.name, s.place, len(list), lost, len(samples))
	if lost == 0 {
		d.t.Error("no request was under way at the death")
	}
}

// sampled reads an account again and again while do runs.
func (d *limitsTest) sampled(at *instance, x *tenant, do func()) (samples []account) {
	ctx, stop := context.WithCancel(d.t.Context())
	var sampling sync.WaitGroup
	sampling.Go(func() {
		for ctx.Err() == nil {
			if a, err := d.accountAt(ctx, at, x); err == nil {
				samples = append(samples, a)
			} else if ctx.Err() == nil {
				d.t.Error(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	do()
	stop()
	sampling.Wait()
	return samples
}

// checkSamples checks that each account that was read is that of the log at its head, and is not above the limit.
func (d *limitsTest) checkSamples(samples, states []account) {
	d.t.Helper()
	if len(samples) == 0 {
		d.t.Error("no account was read during the stampede")
	}
	for _, a := range samples {
		at, found := slices.BinarySearchFunc(states, a.position, func(s account, head int64) int { return int(s.position - head) })
		if !found {
			at--
		}
		if want := states[at]; a.used != want.used || a.held != want.held || a.used+a.held > unitLimit {
			d.t.Errorf("at the head %d the account had %d used and %d held, in the log %d and %d", a.position, a.used, a.held, want.used, want.held)
		}
	}
}

// checkGrants checks that the limit was granted exactly and never passed, and that refused requests did not fit when they were decided.
func (d *limitsTest) checkGrants(s stampede, list []*request, states []account) {
	d.t.Helper()
	seen := map[[2]int64]bool{}
	for _, a := range states {
		seen[[2]int64{a.used, a.held}] = true
		if a.used+a.held > unitLimit {
			d.t.Errorf("%s: at %d there are %d used and %d held", s.name, a.position, a.used, a.held)
		}
	}
	last := states[len(states)-1]
	rest := unitLimit - last.used - last.held
	if !s.frees && rest != 0 || s.frees && last.held != 0 {
		d.t.Errorf("%s: at the end %d remain, %d are held", s.name, rest, last.held)
	}
	granted := int64(0)
	for _, r := range list {
		o := r.outcome(d.t)
		if r.granted(d.t) {
			granted += r.amount
			continue
		}
		if r.status == 202 { // a verdict names no account
			o.Limit, o.Used, o.Held, o.Remaining = unitLimit, last.used, last.held, rest
		}
		if o.Limit != unitLimit || o.Remaining != o.Limit-o.Used-o.Held || o.Remaining >= r.amount || !seen[[2]int64{o.Used, o.Held}] {
			d.t.Errorf("%s of %d was refused: %s", r.path, r.amount, r.answer)
		}
		if rest >= r.amount && o.Held == 0 {
			d.t.Errorf("%s of %d was refused though %d remain, and none were held: %s", r.path, r.amount, rest, r.answer)
		}
	}
	if !s.frees && granted != lastUnits {
		d.t.Errorf("%s: %d units were granted, want %d", s.name, granted, lastUnits)
	}
}

// repeated sends requests again to both instances, and checks that each gets its first answer. Refused ones are left out if
// they may fit by now.
func (d *limitsTest) repeated(x *tenant, list []*request, mayFit bool) {
	d.t.Helper()
	var all sync.WaitGroup
	for n, r := range list {
		granted := r.granted(d.t)
		if !granted && mayFit {
			continue
		}
		all.Go(func() {
			again := r.fresh()
			if !d.send(x, again, []*instance{d.api.instance, d.whole.instance}[n%2]) {
				return
			}
			if granted != again.granted(d.t) || granted && !sameAnswer(d.t, r, again) {
				d.t.Errorf("%s %s: %d %s, again: %d %s", r.method, r.path, r.status, r.answer, again.status, again.answer)
			}
		})
	}
	all.Wait()
}
