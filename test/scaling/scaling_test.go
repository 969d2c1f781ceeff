package main

import (
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
			t.Fatalf("docs/explanation/scaling.md:%d does not follow from docs/benchmarks and test/scaling/plan.json; run: go run ./test/scaling\ngot  %s\nwant %s", i+1, old[i], now[i])
		}
	}
	t.Fatal("docs/explanation/scaling.md has the wrong number of lines; run: go run ./test/scaling")
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
