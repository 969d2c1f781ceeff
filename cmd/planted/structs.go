package main

import (
	"slices"

	"github.com/meterplex/meterplex/cmd/planted/overlay"
)

// edit changes one place of a file.
func edit(file, before, after string) overlay.Edit {
	return overlay.Edit{File: file, Old: before, New: after}
}

// structs returns the bugs that are no patches yet, in the order of an event's path.
func structs() []bug {
	return slices.Concat(
		edgeBugs(), commitBugs(), dedupeBugs(), headBugs(), cacheBugs(), carryBugs(), leaseBugs(), pipeBugs(),
		consumeBugs(), failureBugs(), recordBugs(), sourceBugs(), foldBugs(), foldVersionBugs(), readBugs(), clientBugs(), modelBugs(), batchBugs(), explainBugs(), concurrencyBugs(), serverBugs(),
		processBugs(), brokerBugs(), tenantBugs(), keyBugs(), clientTimeBugs(), safetyBugs(), simulatedBugs(),
		verdictBugs(), periodBugs(), endBugs(), conditionalAnswerBugs(), ingestBugs(), sharedBugs(), memoryBugs(), figureBugs(), limitBugs(), answerTextBugs(),
		watchBugs(), admissionBugs(), fairnessBugs(), upgradeBugs(), connectionBugs(), withheldBugs(), documentedBugs(), serverLifeBugs(), ghostBugs(), vocabularyBugs(), loginBugs(),
	)
}
