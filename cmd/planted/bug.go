package main

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/meterplex/meterplex/cmd/planted/overlay"
)

// bug is a fault that somebody could make, planted by edits, and the test that has
// to catch it.
type bug struct {
	name    string
	what    string // the code does wrong
	promise string // it breaks
	// elsewhere says that a service of others had it, and lost or doubled usage.
	elsewhere bool
	edits     []overlay.Edit
	pkg       string // of the test, from the project's root
	run       string // the test, as go test -run takes it
	says      string // the test then, as a regular expression: words of what it asserts, no figures
	// hangs says that the promise is to come to an end: a test that runs out of its
	// time has caught it.
	hangs bool
}

// usualLimit is many times what any of the tests takes.
const usualLimit = 4 * time.Minute

// edit changes one place of a file.
func edit(file, before, after string) overlay.Edit {
	return overlay.Edit{File: file, Old: before, New: after}
}

// catalogue lists every planted bug, in the order of the way that an event takes.
func catalogue() []bug {
	return slices.Concat(
		edgeBugs(), commitBugs(), dedupeBugs(), headBugs(), cacheBugs(), carryBugs(), leaseBugs(), pipeBugs(),
		consumeBugs(), failureBugs(), recordBugs(), sourceBugs(), foldBugs(), readBugs(), clientBugs(), modelBugs(), batchBugs(), explainBugs(), crowdBugs(), serverBugs(),
		memberBugs(), brokerBugs(), tenantBugs(), keyBugs(), clientTimeBugs(), safetyBugs(), simulatedBugs(),
		verdictBugs(), periodBugs(), endBugs(), answerBugs(), ingestBugs(), sharedBugs(), memoryBugs(), figureBugs(), limitBugs(), toldBugs(),
		watchBugs(), roomBugs(), shareBugs(), upgradeBugs(), wayBugs(), withheldBugs(), documentedBugs(), lifeBugs(), ghostBugs(), vocabularyBugs(), loginBugs(),
	)
}

// choose gives the bugs whose name is one of the patterns, as path.Match has them;
// all where there is none.
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
			return nil, fmt.Errorf("no planted bug is named %q; -list names them", p)
		}
	}
	return chosen, nil
}
