package verify

import (
	"fmt"
	"slices"
	"strings"
)

// tally collects the result of one check.
type tally struct {
	name         string
	unit         string // of n
	n            int64
	faults       int64
	first        []string // the first faults
	notes        []string // printed behind the figures
	sums         []sumUp  // of all partitions, printed behind the figures
	undetermined string
	skip         string
	done         bool
}

// sumUp is a figure summed over the partitions.
type sumUp struct {
	text string
	n    int64
}

// maxShown bounds the faults that are printed in full.
const maxShown = 3

func (t *tally) fault(format string, args ...any) {
	if t.faults++; len(t.first) < maxShown {
		t.first = append(t.first, fmt.Sprintf(format, args...))
	}
}

func (t *tally) expect(holds bool, format string, args ...any) {
	if !holds {
		t.fault(format, args...)
	}
}

func (t *tally) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, n := range t.notes {
		if n == text {
			return
		}
	}
	t.notes = append(t.notes, text)
}

// add adds to a figure that is printed if it is not 0.
func (t *tally) add(n int64, text string) {
	for i := range t.sums {
		if t.sums[i].text == text {
			t.sums[i].n += n
			return
		}
	}
	t.sums = append(t.sums, sumUp{text, n})
}

// incomplete records that the check could not run, or not completely.
func (t *tally) incomplete(err error) {
	if t.undetermined == "" {
		t.undetermined = err.Error()
	}
}

func (t *tally) result() Check {
	c := Check{Name: t.name, Looked: t.skip == ""}
	if !c.Looked {
		c.Figures = "not checked: " + t.skip
		return c
	}
	parts := []string{fmt.Sprintf("%d %s", t.n, t.unit)}
	for _, s := range t.sums {
		if s.n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", s.n, s.text))
		}
	}
	parts = append(parts, t.notes...)
	if t.faults > 0 {
		parts = append(parts, fmt.Sprintf("%d violations: %s", t.faults, strings.Join(t.first, "; ")))
	}
	if t.undetermined != "" {
		parts = append(parts, "undetermined: "+t.undetermined)
	}
	c.Figures = strings.Join(parts, ", ")
	if holds := t.faults == 0; !holds || t.undetermined == "" {
		c.Holds = &holds
	}
	return c
}

// report holds the checks, one for each line of the output.
type report struct {
	dense, order, home, unique, hashes, heads, below, still, verdicts, contents, usage, used, consumed, letters *tally
	relays, generation, rls, grants, idle                                                                       *tally
	topics, bytes, first                                                                                        *tally

	all []*tally
}

func newReport() *report {
	r := &report{}
	add := func(name, unit string) *tally {
		t := &tally{name: name, unit: unit}
		r.all = append(r.all, t)
		return t
	}
	r.dense = add("P1 positions run from 1 to the head without a gap", "events")
	r.order = add("P10 events are in the order in which they were recorded", "events")
	r.home = add("P9 each event is in its tenant's partition and on its subject's topic", "events")
	r.unique = add("P2 each dedupe key is stored once for a tenant", "keys")
	r.hashes = add("P4 stored hashes match the payloads", "payloads")
	r.heads = add("P3 the counters of the heads match the rows", "heads")
	r.below = add("P1 no checkpoint is beyond the head", "checkpoints")
	r.still = add("P1 recorded events do not change and no position decreases", "events read twice")
	r.verdicts = add("P3 each recorded event up to the validator's checkpoint has one verdict", "recorded events")
	r.contents = add("P3 each verdict matches its recorded event", "verdicts")
	r.usage = add("P5 usage_aggregates equals the sum of the log up to its checkpoint", "rows")
	r.used = add("P5 entitlement_usage equals the sum of the log up to its checkpoint", "rows")
	r.consumed = add("P3 consumed verdicts = applied + dead-lettered + withheld", "verdicts consumed")
	r.letters = add("P3 dead letters and their states match the log", "dead letters")
	r.relays = add("P10 each partition is leased by one live relay", "partitions")
	r.generation = add("P5 each projection has one live generation for all tenants", "projections")
	r.rls = add("P9 row level security is forced on every table that tenants read", "tables")
	r.grants = add("P6 the roles of the service own no object and cannot alter the log", "roles")
	r.idle = add("no session of the service is idle in a transaction", "sessions")
	r.topics = add("P11 the topics hold the same events as the log", "records")
	r.bytes = add("P11 each record equals its event byte for byte", "records")
	r.first = add("P10 events of a tenant are first published in the order of the log", "first records")
	return r
}

func (r *report) skip(why string, which ...*tally) {
	for _, t := range which {
		t.skip = why
	}
}

// read marks the checks that the partitions' passes have completed.
func (r *report) read() {
	later := []*tally{r.still, r.relays, r.generation, r.rls, r.grants, r.idle}
	for _, t := range r.all {
		t.done = t.done || !slices.Contains(later, t)
	}
}

// unknown marks the checks that were not completed.
func (r *report) unknown(err error) {
	for _, t := range r.all {
		if !t.done {
			t.incomplete(err)
		}
	}
}

func (r *report) list() []Check {
	list := make([]Check, len(r.all))
	for i, t := range r.all {
		list[i] = t.result()
		list[i].Needs = "database"
		if t == r.topics || t == r.bytes || t == r.first {
			list[i].Needs = "topics"
		}
	}
	return list
}
