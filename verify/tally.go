package verify

import (
	"fmt"
	"strings"
)

// tally collects the result of one check.
type tally struct {
	name  string
	unit  string // of n
	scope scope
	steps
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
