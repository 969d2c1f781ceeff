package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/uuid"
)

// The entitlements' fold leaves out verdicts whose dead letter is discarded: those that the aggregator could not
// fold and those that were withheld; not those that another read model could not fold, and not beyond the checkpoint.
func TestDiscardedVerdictsAreNotUsed(t *testing.T) {
	const head = 40
	s := stateAt(head, aggregator, entitlements)
	s.services[2], s.services[3] = aggregator, "meterplex-other-reads"
	x := newTestPass(s)
	x.figures = newFigureSums(0, head, 0)
	tenant := uuid.UUID{1}
	verdict := func(position int64, amount int) {
		r := event(position, validated, topicValidated, fmt.Sprint("v/", position), "")
		r.tenant = tenant
		x.figures.add(x, r, &content{Feature: "calls", Amount: json.Number(strconv.Itoa(amount)), Count: 1, PeriodKey: "2026-05"}, nil)
	}
	letter := func(position int64, subject int16, origin int32, source int64, discardedAt int64) {
		r := event(position, subject, topicLetters, "", "")
		r.origin = origin
		x.figures.add(x, r, &content{DeadLetterID: r.id, SourcePosition: source, Topic: "usage.validated"}, nil)
		x.figures.add(x, event(discardedAt, letterClosed, topicLetters, "", ""), &content{DeadLetterID: r.id, Status: stateDiscarded}, nil)
	}
	for i, amount := range []int{1, 10, 100, 1000, 10000} {
		verdict(int64(i+1), amount)
	}
	letter(11, aggregationFailed, 2, 2, 21)
	letter(12, publishFailed, 1, 3, 22)
	letter(13, aggregationFailed, 3, 4, 23)
	letter(14, aggregationFailed, 2, 5, head+1)
	for position, amount := range map[int64]int{2: 10, 3: 100, 4: 1000, 5: 10000} { // as settleFailed reads them again
		x.figures.count(x, validated, position, tenant, &content{Feature: "calls", Amount: json.Number(strconv.Itoa(amount)), Count: 1,
			PeriodKey: "2026-05"}, -1)
	}
	of := figure{tenant: tenant, feature: "calls", period: "2026-05"}
	if got := x.figures.used[of].amount.String(); got != "11001" {
		t.Errorf("%s used, want 11001", got)
	}
}
