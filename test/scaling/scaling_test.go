package main

import (
	"runtime"
	"slices"
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
	texts, err := readDocuments(root)
	must.OK(t, err)
	wants := slices.Clone(texts)
	must.OK(t, fill(wants, inputsOf(t).tables()))
	for n, path := range documents() {
		old, now := strings.Split(texts[n], "\n"), strings.Split(wants[n], "\n")
		for i := range min(len(old), len(now)) {
			if old[i] != now[i] {
				t.Fatalf("%s:%d does not follow from docs/benchmarks and test/scaling/plan.json; run: go run ./test/scaling\ngot  "+
					"%s\nwant %s", path, i+1, old[i], now[i])
			}
		}
		if len(old) != len(now) {
			t.Fatalf("%s has the wrong number of lines; run: go run ./test/scaling", path)
		}
	}
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
			t.Errorf("%s: measured %s, simulated %s: a factor of %s, the limit is %s", what, num(measured), num(simulated), num(f),
				num(factor))
		}
	}
	b1, b2, b4, b5 := in.benchB1(c, 8), in.benchB2(c, 8), in.benchB4(c, 40), in.benchB5(c, 30)
	within("B1", in.figures["B1"].Value, b1.perSecond, throughputWithin)
	within("B2", in.figures["B2"].Value, b2.perSecond, throughputWithin)
	within("B4", in.figures["B4"].Value, b4.perSecond, throughputWithin)
	within("B5, p50", in.figures["B5"].Latency.P50, b5.fresh.quantile(0.5), freshnessWithin)
}
