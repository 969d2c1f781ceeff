package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// The simulation runs the service's own code – verdicts at the door, group commit and
// dedupe, relay, consumers, folds, every codec – in a simulation of one goroutine at a
// time, whose database, broker and clock are its own. A seed decides the next actor
// and the next fault; the same seed is the same run. METERPLEX_TEST_SEED=n runs one again.

// setup selects the clients of a run, and whether it keeps a trace.
type setup struct {
	tell        bool
	uncorrected bool // no clients that correct usage, change plans or send requests with several items
}

// usualRequests is the most of a client.
const usualRequests = 4

func newSim(seed uint64, with setup) *sim {
	s := &sim{seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), counts: map[string]int{}, tell: with.tell, began: time.Now()}
	s.plan = newPlan(rand.New(rand.NewPCG(seed, 1)), usualRequests)
	s.db, s.pipe, s.model = newSimDB(s), newSimPipe(s), &model{s: s, sent: map[simKey]map[usageItem]bool{}, tries: map[simKey]int{},
		accepted: map[simKey]usageItem{}}
	s.w = drawFaultRates(s.rng)
	s.changing = seed%2 == 1 && !with.uncorrected
	return s
}

// drawFaultRates leaves about half of the faults out of each run, so that those that
// are left meet more of the work.
func drawFaultRates(rng *rand.Rand) faultRates {
	w := faultRates{crash: 30, cut: 80, lost: 150, limbo: 150, partly: 300, freeze: 30, pass: 100,
		twice: 200, shuffle: 400, drop: 150, damage: 60, rewind: 60, skip: 30, retries: 1, rebuilds: 1, rewinds: 1, restores: 1,
		failovers: 1, moves: 60}
	for _, rate := range w.rates() {
		*rate = rng.IntN(2) * (1 + rng.IntN(*rate))
	}
	return w
}

// runSeed runs a simulation to its end.
func runSeed(t *testing.T, seed uint64, with setup) *sim {
	var s *sim
	synctest.Test(t, func(*testing.T) {
		s = newSim(seed, with)
		s.doors = make([]*metering.IngestUsage, 2)
		s.startAPI(0)
		s.startNode(1)
		if s.rng.IntN(3) > 0 { // others work on the same partitions
			s.startConsumer("validator-0", func(p *proc) projections.Consumer {
				return validate.Consumer(p.newID, new(validate.HistoryReader))
			})
			s.startConsumer("aggregator-0", func(p *proc) projections.Consumer { return aggregatorOfPoison(p.newID) })
		}
		for i := range 2 {
			if i > 0 { // the node has a relay, too
				s.startRelay(fmt.Sprint("relay-", i))
			}
			s.startCommands(fmt.Sprint("commands-", i))
			if s.w.retries > 0 {
				s.startConsumer(fmt.Sprint("retries-", i), s.commandsConsumer)
			}
			if s.w.rebuilds > 0 {
				s.startRebuilder(fmt.Sprint("rebuilder-", i))
			}
		}
		s.tasks, s.retrying = s.newTasks(), s.w.retries > 0
		limits := limitPlan(rand.New(rand.NewPCG(seed, 3)), s.plan.tenants, usualRequests)
		var corrections [][]request
		if seed%2 == 0 && !with.uncorrected { // the other seeds have fewer clients
			corrections = correctionPlan(rand.New(rand.NewPCG(seed, 4)), s.plan.tenants, usualRequests)
		}
		if s.changing {
			limits = append(limits, s.drawSets(usualRequests))
		}
		s.model.open += len(s.plan.clients) + len(limits) + len(corrections) + 1
		s.operate()
		for i, list := range s.plan.clients[:len(s.plan.clients)-1] {
			s.client(fmt.Sprint("client-", i), list, s.model.answer)
		}
		for i, list := range limits {
			s.limitClient(i, list)
			s.startExpiry(fmt.Sprint("expiry-", i))
		}
		for i, list := range corrections {
			s.client(fmt.Sprint("corrections-", i), list, s.model.answerCorrections)
		}
		if seed%3 == 0 && !with.uncorrected {
			for i, tenant := range s.plan.tenants[:2] {
				s.model.open += 2
				s.keyClient(i, tenant)
			}
		}
		s.schedule()
		s.mu.Lock()
		if s.broken == nil {
			s.model.check()
		}
		for _, p := range slices.Clone(s.procs) {
			p.start = nil
			s.kill(p)
		}
		s.mu.Unlock()
		s.wait.Wait()
	})
	return s
}

func aggregatorOfPoison(newID func() uuid.UUID) projections.Consumer {
	return usage.Consumer(newID, poisonedFolds().Usage)
}

// poisonedFolds has a fold of usage that fails on poison.
func poisonedFolds() models.Folds {
	folds := models.DefaultFolds()
	folds.Usage = folds.Usage.With(usage.V1, foldPoisoned)
	return folds
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// onProcessorsOf runs three of four seeds on one processor. One of their goroutines runs at a time: further processors would only be woken
// and find no work.
func onProcessorsOf(seed uint64) (restore func()) {
	if seed%4 == 0 {
		return func() {}
	}
	all := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(all) }
}

func TestP2_SimulatedFaultsLoseAndDoubleNothing(t *testing.T) {
	seeds := tier.Seeds(t, 300, 2000)
	counts, steps := map[string]int{}, 0
	for _, seed := range seeds {
		restore := onProcessorsOf(seed)
		s := runSeed(t, seed, setup{})
		restore()
		if s.broken != nil {
			told := runSeed(t, seed, setup{tell: true}).trace
			t.Fatalf("seed %d: %v\n%s\nagain: METERPLEX_TEST_SEED=%d go test ./test/simulation -run %s", seed, s.broken,
				strings.Join(told[max(0, len(told)-120):], "\n"), seed, t.Name())
		}
		for what, n := range s.counts {
			counts[what] += n
		}
		steps += s.steps
		for _, h := range s.db.heads {
			counts["events in the log"] += int(h.position)
		}
	}
	t.Logf("%d seeds, %d steps", len(seeds), steps)
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%8d %s", counts[what], what)
	}
	if len(seeds) < 1000 {
		return
	}
	for _, what := range append(outcomeNames[1:], "frozen", "commit lost", "late commit", "rewound", "moved forward", "dropped", "damaged",
		"delivered twice",
		"shuffled", "published again", "unique violation", "head left to others", "validated inline", "checkpoint left to others",
		"lease taken over", "cursor refused", "withheld", "savepoint",
		"sum refused by the database", "batch came again", "sent again", "message again", "duplicates passed", "read from the log",
		"strays",
		"retry", "rebuild ready", "promotion", "abandoned", "relay sent back", "restored", "failed over", "epoch raised", "ghost published",
		"told to the validator", "told to the aggregator", "read from memory", "partition moved", "taken from memory",
		"consume granted", "hold granted", "commit granted", "extend granted", "release granted", "enforced granted",
		"consume refused: quota_exceeded", "hold refused: quota_exceeded",
		"enforced refused: quota_exceeded", "commit refused: reservation_ended", "commit refused: amount_exceeds_hold",
		"reservations committed", "reservations released", "reservations expired",
		"due reservations read by a request",
		"plan changed", "consume together granted", "hold together granted", "consume together refused: quota_exceeded",
		"hold together refused: quota_exceeded",
		"consume together refused: payload_conflict", "hold together refused: reservation_conflict",
		"corrections", "retractions", "corrections behind a retraction", "refused: correction_target_unknown",
		"refused: correction_target_retracted", "key ended", "frozen after admission", "refused: the key has ended") {
		if counts[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
}

// Between two steps several goroutines of a process may run, e.g. a writer that passes submissions on and the one that takes them. On one
// processor they take turns in a fixed order. Not with the clients that correct usage: with them a writer often has two submissions at the
// time at which it stops waiting for more, and Go then chooses at random. The runtime interrupts a goroutine that runs for 10 ms, and on a
// busy machine also one that was not run meanwhile: then a third run has to be as one of the two.
func TestASimulationIsDeterministic(t *testing.T) {
	tier.AtSize(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for seed := uint64(1); seed <= 40; seed++ {
		run := func() []string {
			return runSeed(t, seed, setup{tell: true, uncorrected: true}).trace
		}
		if a, b := run(), run(); !slices.Equal(a, b) {
			if c := run(); !slices.Equal(c, a) && !slices.Equal(c, b) {
				t.Fatalf("seed %d: %d steps, then %d, then %d others", seed, len(a), len(b), len(c))
			}
		}
	}
}
