package main

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/meterplex/meterplex/cmd/planted/overlay"
)

// bug is a plausible fault, planted by edits of the sources, with the test that has to catch it.
type bug struct {
	name    string
	what    string // what the code does wrong
	promise string // the broken promise
	// elsewhere says that another metering service had this bug, and lost or doubled usage.
	elsewhere bool
	edits     []overlay.Edit
	pkg       string // of the test, from the project's root
	run       string // the test, as a pattern of go test -run
	says      string // a regular expression of the test's failure text: its words, no figures
	// hangs says that the broken promise is to come to an end: a test that times out has
	// caught the bug.
	hangs bool
}

// usualLimit is many times the time of any of the tests.
const usualLimit = 4 * time.Minute

// edit changes one place of a file.
func edit(file, before, after string) overlay.Edit {
	return overlay.Edit{File: file, Old: before, New: after}
}

// catalogue returns every planted bug, in the order of an event's path.
func catalogue() []bug {
	return slices.Concat(
		edgeBugs(), commitBugs(), dedupeBugs(), headBugs(), cacheBugs(), carryBugs(), leaseBugs(), pipeBugs(),
		consumeBugs(), failureBugs(), recordBugs(), sourceBugs(), foldBugs(), foldVersionBugs(), readBugs(), clientBugs(), modelBugs(), batchBugs(), explainBugs(), concurrencyBugs(), serverBugs(),
		processBugs(), brokerBugs(), tenantBugs(), keyBugs(), clientTimeBugs(), safetyBugs(), simulatedBugs(),
		verdictBugs(), periodBugs(), endBugs(), conditionalAnswerBugs(), ingestBugs(), sharedBugs(), memoryBugs(), figureBugs(), limitBugs(), answerTextBugs(),
		watchBugs(), admissionBugs(), fairnessBugs(), upgradeBugs(), connectionBugs(), withheldBugs(), documentedBugs(), serverLifeBugs(), ghostBugs(), vocabularyBugs(), loginBugs(),
	)
}

// choose returns the bugs whose names match one of the patterns of path.Match; all
// bugs if there are no patterns.
func choose(all []bug, patterns []string) ([]bug, error) {
	if len(patterns) == 0 {
		return all, nil
	}
	var chosen []bug
	for _, p := range patterns {
		n := len(chosen)
		for _, b := range all {
			ok, err := path.Match(p, b.name)
			if err != nil {
				return nil, fmt.Errorf("the pattern %q: %w", p, err)
			}
			if ok && !slices.ContainsFunc(chosen, func(c bug) bool { return c.name == b.name }) {
				chosen = append(chosen, b)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no planted bug matches %q; see -list", p)
		}
	}
	return chosen, nil
}
