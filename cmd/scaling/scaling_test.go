package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

const root = "../.."

func inputsOf(t *testing.T) *inputs {
	t.Helper()
	in, err := read(root)
	must.OK(t, err)
	return in
}

// The document's tables equal the program's output for the present figures.
func TestTheDocumentHasTheComputedTables(t *testing.T) {
	tier.AtSize(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("floating point differs between processors, and with it a simulation's last digits")
	}
	text, err := os.ReadFile(filepath.Join(root, document))
	must.OK(t, err)
	want, err := fill(string(text), inputsOf(t).tables())
	must.OK(t, err)
	if want == string(text) {
		return
	}
	old, now := strings.Split(string(text), "\n"), strings.Split(want, "\n")
	for i := range min(len(old), len(now)) {
		if old[i] != now[i] {
			t.Fatalf("docs/scaling.md:%d does not follow from docs/benchmarks and cmd/scaling/plan.json; run: go run ./cmd/scaling\ngot  %s\nwant %s", i+1, old[i], now[i])
		}
	}
	t.Fatal("docs/scaling.md has the wrong number of lines; run: go run ./cmd/scaling")
}

// Beyond these factors the simulation must not be quoted.
const (
	throughputWithin = 1.3
	freshnessWithin  = 3
)

func TestTheSimulationReproducesTheMeasurements(t *testing.T) {
	in := inputsOf(t)
	c := in.calibrate()
	within := func(what string, measured, simulated, factor float64) {
		t.Helper()
		if f := simulated / measured; !(f < factor && f > 1/factor) {
			t.Errorf("%s: measured %s, simulated %s: a factor of %s, the limit is %s", what, num(measured), num(simulated), num(f), num(factor))
		}
	}
	b1, b2, b4, b5 := in.benchB1(c, 8), in.benchB2(c, 8), in.benchB4(c, 40), in.benchB5(c, 30)
	within("B1", in.figures["B1"].Value, b1.perSecond, throughputWithin)
	within("B2", in.figures["B2"].Value, b2.perSecond, throughputWithin)
	within("B4", in.figures["B4"].Value, b4.perSecond, throughputWithin)
	within("B5, p50", in.figures["B5"].Latency.P50, b5.fresh.quantile(0.5), freshnessWithin)
}

func TestTheSimulationLosesNoEvent(t *testing.T) {
	in := inputsOf(t)
	c := in.calibrate()
	const busy = 30_000 // so that requests are under way at every shock
	for _, s := range in.shocks() {
		l := in.cellAt(c, even(), 3)
		l.random(func(int64) float64 { return busy }, in.plan.Traffic.Requests, seconds(10))
		l.after(seconds(5), func() { s.do(l) })
		l.until(seconds(120))
		if l.offered == 0 || l.recorded != l.offered || l.applied != l.offered {
			t.Errorf("%s: %d events sent, %d recorded, %d applied", s.name, l.offered, l.recorded, l.applied)
		}
	}
}

// A queue with a known mean wait: exponential arrivals and service, one and two servers.
func TestQueueWaitsMatchTheory(t *testing.T) {
	for _, q := range []struct {
		cores int
		load  float64 // of the cores
		mean  float64 // times the service time: Erlang's formula
	}{{1, 0.5, 2}, {2, 0.8, 1 / (1 - 0.8*0.8)}} {
		s := newSim(1)
		p := &processor{sim: s, cores: q.cores, speed: 1}
		const service = 500.0 // microseconds
		sum, n := 0.0, 0
		var arrive func()
		arrive = func() {
			began := s.now
			p.run(broker, service, func() { sum, n = sum+float64(s.now-began)/1000, n+1 })
			s.after(micros(s.rng.ExpFloat64()*service/q.load/float64(q.cores)), arrive)
		}
		arrive()
		s.until(seconds(300))
		if got := sum / float64(n) / service; math.Abs(got/q.mean-1) > 0.05 {
			t.Errorf("%d cores at %.0f %%: a task took %.2f times its service, %.2f by theory", q.cores, 100*q.load, got, q.mean)
		}
	}
}

func TestAHeadHasOneHolder(t *testing.T) {
	in := inputsOf(t)
	l := in.cellAt(guess(), even(), 1)
	holding := 0
	for range 5 {
		l.lockHeads([]int{3, 7}, func() {
			holding++
			l.after(seconds(1), func() {
				if holding != 1 {
					t.Errorf("%d holders of the same heads", holding)
				}
				holding--
				l.heads[7].release()
				l.heads[3].release()
			})
		})
	}
	l.until(seconds(10))
	if l.heads[3].held || holding != 0 {
		t.Error("a head is locked without a holder")
	}
}

func TestCommitsShareAFlush(t *testing.T) {
	s := newSim(1)
	d := &disk{sim: s, fsync: spread{1, 1.0001}, perSecond: 1e6}
	done := 0
	for range 100 {
		d.flush(1000, func() { done++ })
	}
	s.until(seconds(1))
	if done != 100 || d.flushes != 2 { // the first alone, all others together
		t.Errorf("%d commits are durable after %d flushes, want 100 after 2", done, d.flushes)
	}
}
