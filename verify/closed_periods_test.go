package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
)

const nilText = "00000000-0000-0000-0000-000000000000"

// figuresHashOf is the hash of a snapshot with one line, from the document that docs/how-to/prove-an-invoice-line.md shows.
func figuresHashOf(cut, snapshot int, amount string, count int) string {
	sum := sha256.Sum256(fmt.Appendf(nil,
		`{"cut":"0-%d","lines":[{"amount":%q,"eventCount":%d,"feature":"f","subscriptionId":%q}],"logic":"usage_aggregates/v1",`+
			`"periodKey":"2000-01","snapshot":%d,"tenantId":%q}`,
		cut, amount, count, nilText, snapshot, nilText))
	return hex.EncodeToString(sum[:])
}

// closedLog is a log with a period that is closed, has every kind of adjustment, and is reopened and closed again. Behind its positions:
//
//	1      the tenant accepts late usage
//	2-3    5 count
//	4-6    7 could not be folded
//	7-8    9 are rejected
//	9-11   snapshot 1, despite the dead letter: 5
//	12-13  3 are late
//	14-15  the 9 are retried
//	16-17  the 7 are folded again
//	18-19  the 5 are corrected to 4
//	20     the 3 are approved
//	21     the period is reopened
//	22-24  snapshot 2: 23
//	25-26  the 3 are retracted
func closedLog() []*row {
	verdict := func(raw int64, id, amount string, count int, more string) string {
		return fmt.Sprintf(
			`{"rawPosition":%d,"eventId":%q,"feature":"f","amount":%s,"count":%d,"timestamp":"2000-01-01T00:00:00Z","periodKey":"2000-01"%s}`, raw, id, amount, count, more)
	}
	const billing = 7
	letter := idOf(6)
	closing := func(at int64, snapshot int, amount string, count int) []*row {
		key := fmt.Sprintf("p/2000-01/%d/", snapshot)
		charged := frozenSnapshot{periodKey: periodKey{period: "2000-01"}, number: snapshot,
			charges: []frozenCharge{{Feature: "f", Grant: -1, Status: "BEFORE", Amount: amount, EventCount: int64(count)}}}
		charges, _ := json.Marshal(charged.charges)
		chargesHash, _ := charged.chargesHash(fmt.Sprintf("0-%d", at))
		return []*row{
			event(at, periodRequested, billing, key+"close", fmt.Sprintf(`{"periodKey":"2000-01","snapshot":%d}`, snapshot)),
			event(at+1, periodFrozen, billing, key+"frozen/1",
				fmt.Sprintf(
					`{"periodKey":"2000-01","snapshot":%d,"part":1,"parts":1,"lines":[{"feature":"f","subscriptionId":%q,"amount":%q,"eventCount":%d}],`+
						`"charges":%s}`, snapshot, nilText, amount, count, charges)),
			event(at+2, periodClosed, billing, key+"closed",
				fmt.Sprintf(
					`{"periodKey":"2000-01","snapshot":%d,"cut":"0-%d","logic":"usage_aggregates/v1","figuresHash":%q,"lines":1,"chargesHash":%q,`+
						`"charges":1}`, snapshot, at, figuresHashOf(int(at), snapshot, amount, count), chargesHash)),
		}
	}
	log := []*row{
		event(1, tenantCreated, 6, "e/t", `{"lateUsage":"ADJUST"}`),
		event(2, recorded, topicRaw, "u/a", `[5,"f"]`),
		event(3, validated, topicValidated, "v/2", verdict(2, "a", "5", 1, "")),
		event(4, recorded, topicRaw, "u/p", `[7,"f"]`),
		event(5, validated, topicValidated, "v/4", verdict(4, "p", "7", 1, "")),
		event(6, aggregationFailed, topicLetters, "e/l", fmt.Sprintf(`{"deadLetterId":%q,"sourcePosition":5,"stage":"AGGREGATION"}`,
			letter)),
		event(7, recorded, topicRaw, "u/q", `[9,"f"]`),
		event(8, rejected, topicLetters, "x/7/0", `{"rawPosition":7,"eventId":"q"}`),
	}
	log[5].origin = 2
	log = append(log, closing(9, 1, "5", 1)...)
	log = append(log,
		event(12, recorded, topicRaw, "u/b", `[3,"f"]`),
		event(13, validated, topicValidated, "v/12", verdict(12, "b", "3", 1, `,"late":{"snapshot":1,"kind":"LATE_USAGE"}`)),
		event(14, retried, topicRaw, "r/q/1", `{"rawPosition":7,"attempt":1,"rejected":true}`),
		event(15, validated, topicValidated, "v/7", verdict(7, "q", "9", 1, `,"late":{"snapshot":1,"kind":"RETRY"}`)),
		event(16, reaggregated, topicValidated, "r/p/1", fmt.Sprintf(`{"deadLetterId":%q,"attempt":1,"validated":%s}`, letter,
			verdict(4, "p", "7", 1, ""))),
		event(17, letterClosed, topicLetters, "r/p/closed", fmt.Sprintf(`{"deadLetterId":%q,"status":"RESOLVED"}`, letter)),
		event(18, corrected, topicRaw, "u/c",
			`{"amount":4,"correctionRef":"a","eventId":"c","feature":"f","timestamp":"2000-02-01T00:00:00Z","type":"correction"}`),
		event(19, validated, topicValidated, "v/18",
			verdict(18, "c", "-1", 0,
				`,"kind":"correction","targetPosition":2,"targetEventId":"a","before":5,"after":4,"late":{"snapshot":1,"kind":"CORRECTION"}`)),
		event(20, adjustmentDecided, billing, "e/d",
			fmt.Sprintf(`{"ids":[%q],"decision":"APPROVED","reason":"agreed","count":1,"amount":"3"}`, idOf(13))),
		event(21, periodReopened, billing, "p/2000-01/1/reopen", `{"periodKey":"2000-01","snapshot":1,"reason":"again","voided":3}`))
	log[14].cause = idOf(14)
	log = append(log, closing(22, 2, "23", 4)...)
	return append(log,
		event(25, retracted, topicRaw, "u/r",
			`{"correctionRef":"b","eventId":"r","feature":"f","timestamp":"2000-02-01T00:00:00Z","type":"retraction"}`),
		event(26, validated, topicValidated, "v/25",
			verdict(25, "r", "-3", -1,
				`,"kind":"retraction","targetPosition":12,"targetEventId":"b","before":3,"after":0,"late":{"snapshot":2,"kind":"RETRACTION"}`)))
}

// readClosed passes a log to the checks, as the snapshot of a partition with it would be.
func readClosed(log []*row) *pass {
	s := stateAt(int64(len(log)), validator, aggregator, entitlements)
	s.services[2] = aggregator
	x := newTestPass(s)
	for _, r := range log {
		var c periodContent
		if r.subject == periodRequested || r.subject == periodClosed || r.subject == periodReopened {
			if err := json.Unmarshal(r.body, &c); err != nil {
				panic(err)
			}
			x.periods.change(periodKey{r.tenant, c.PeriodKey}, periodChange{r.position, r.subject, c.Snapshot}, c.Logic)
		}
	}
	for _, r := range log {
		x.add(r)
	}
	x.ends()
	for _, r := range log { // as settleFailed does
		if s, err := r.decode(); err == nil && x.figures.failed[r.position] {
			x.countFrozen(r, &s, -1)
		}
	}
	_ = x.compareSums(context.Background(), nil)
	x.checkPlaces()
	for _, p := range x.periods.of {
		if n := p.present(); n != nil {
			x.compareLines(n, map[figure]*sum{n.figureOf("f", uuid.Nil): sumOf("20", 3)})
		}
	}
	return x
}

func sumOf(amount string, events int64) *sum {
	s := &sum{events: events}
	s.amount.Set(bigOf(amount))
	return s
}

func TestP8_ClosedPeriodsFollowFromTheLog(t *testing.T) {
	x := readClosed(closedLog())
	for _, c := range []*tally{x.frozenFigures, x.frozenSums, x.frozenCharges, x.adjustments, x.adjustmentStates, x.closedPeriods} {
		if r := c.result(); r.Holds == nil || !*r.Holds || c.n == 0 && c != x.adjustments && c != x.adjustmentStates {
			t.Errorf("%s: %s", r.Name, r.Figures)
		}
	}
	states := map[int64]string{13: "APPROVED by 20", 15: "VOID by 21", 16: "VOID by 21", 19: "VOID by 21", 26: "PENDING by 0"}
	all := x.periods.adjusted.byPosition
	for at, state := range states {
		if a := all[at]; a == nil || fmt.Sprint(a.state, " by ", a.decided) != state {
			t.Errorf("the adjustment at %d is %+v, want %s", at, a, state)
		}
	}
	if len(all) != len(states) {
		t.Errorf("%d adjustments at %v, want %d", len(all), slices.Sorted(maps.Keys(all)), len(states))
	}
}

// A discard voids a decided adjustment, unless its snapshot was reopened before.
func TestP8_ADiscardVoidsADecidedAdjustment(t *testing.T) {
	const topicBilling = 7
	letter := idOf(16).String()
	failed := event(16, aggregationFailed, topicLetters, "e/"+letter,
		fmt.Sprintf(`{"deadLetterId":%q,"sourcePosition":13,"stage":"AGGREGATION"}`, letter))
	failed.origin = 2
	log := append(closedLog()[:15], failed,
		event(17, adjustmentDecided, topicBilling, "e/d",
			fmt.Sprintf(`{"ids":[%q],"decision":"APPROVED","reason":"agreed","count":1,"amount":"3"}`, idOf(13))))
	reopening := event(18, periodReopened, topicBilling, "p/2000-01/1/reopen",
		`{"periodKey":"2000-01","snapshot":1,"reason":"again","voided":1}`)
	discard := func(position int64) *row {
		return event(position, letterClosed, topicLetters, "r/"+letter+"/closed",
			fmt.Sprintf(`{"deadLetterId":%q,"status":"DISCARDED","reason":"r"}`, letter))
	}
	for want, log := range map[string][]*row{
		"VOID by 18":     append(slices.Clone(log), discard(18)),
		"APPROVED by 17": append(slices.Clone(log), reopening, discard(19)),
	} {
		x := readClosed(log)
		if a := x.periods.adjusted.byPosition[13]; fmt.Sprint(a.state, " by ", a.decided) != want {
			t.Errorf("the adjustment is %+v, want %s", a, want)
		}
		if r := x.adjustmentStates.result(); r.Holds == nil || !*r.Holds {
			t.Errorf("%s: %s", want, r.Figures)
		}
	}
}

func TestP8_FaultsInClosedPeriodsAreReported(t *testing.T) {
	for _, c := range []struct {
		at      int64
		was, is string
		of      func(x *pass) *tally
		fault   string
	}{
		{10, `"amount":"5"`, `"amount":"6"`, frozenFiguresOf, "its lines have"},
		{11, `"cut":"0-9"`, `"cut":"0-8"`, frozenFiguresOf, "the close was requested at 0-9"},
		{11, `"lines":1`, `"lines":2`, frozenFiguresOf, "the events before it 1"},
		{22, `"snapshot":2`, `"snapshot":3`, frozenFiguresOf, "follows subject 73 of snapshot 1"},
		{10, `"part":1`, `"part":2`, frozenFiguresOf, "part 2 of 1"},
		{10, `}],`, `},{"feature":"f","subscriptionId":"` + nilText + `","amount":"5","eventCount":1}],`, frozenFiguresOf,
			"or one is there twice"},
		{11, `"chargesHash"`, `"hash"`, chargesOf, "has the hash , its charges have"},
		{3, `"amount":5`, `"amount":4`, frozenSumsOf, "snapshot 1 has 5 in 1 events for"},
		{16, `"amount":7`, `"amount":8`, frozenSumsOf, "the results up to 0-22 are 24 in 4"},
		{6, `"sourcePosition":5`, `"sourcePosition":4`, frozenSumsOf, "the results up to 0-9 are 12 in 2"},
		{13, `,"late":{"snapshot":1,"kind":"LATE_USAGE"}`, ``, adjustmentsOf,
			"says that it is late for snapshot 0 (); its period says snapshot 1 (LATE_USAGE)"},
		{3, `"periodKey":"2000-01"`, `"periodKey":"2000-01","late":{"snapshot":1,"kind":"LATE_USAGE"}`, adjustmentsOf,
			"its period says snapshot 0"},
		{13, `"snapshot":1`, `"snapshot":2`, adjustmentsOf, "says that it is late for snapshot 2"},
		{19, `"CORRECTION"`, `"LATE_USAGE"`, adjustmentsOf, "its period says snapshot 1 (CORRECTION)"},
		{26, `,"late":{"snapshot":2,"kind":"RETRACTION"}`, ``, adjustmentsOf,
			"0-25 counts after the cut of its closed period, and is no adjustment"},
		{14, `,"rejected":true`, ``, adjustmentsOf, "the retry at 0-14 says that its event had been rejected: ; the log says true"},
		{14, `"rawPosition":7`, `"rawPosition":12`, adjustmentsOf,
			"the retry at 0-14 says that its event had been rejected: true; the log says false"},
		{1, `ADJUST`, `REJECT`, adjustmentsOf, "0-13 accepts late usage"},
		{20, `"count":1`, `"count":2`, statesOf, "0-20 decides 2 adjustments"},
		{20, `"amount":"3"`, `"amount":"4"`, statesOf, "1 of 3 were pending"},
		{20, `APPROVED`, `PENDING`, statesOf, `decides "PENDING"`},
		{20, idOf(13).String(), idOf(12).String(), statesOf, "which is no pending adjustment of its tenant"},
		{21, `"voided":3`, `"voided":4`, statesOf, "voids 4 adjustments, 3 were pending"},
		{26, `"amount":-3`, `"amount":-2`, closedOf, "20 in 3 events, snapshot 2 and its adjustments are 21 in 3: unreconciled -1"},
	} {
		log := closedLog()
		r := log[c.at-1]
		if !bytes.Contains(r.body, []byte(c.was)) {
			t.Fatalf("%d has no %s: %s", c.at, c.was, r.body)
		}
		r.body = bytes.Replace(r.body, []byte(c.was), []byte(c.is), 1)
		requireFault(t, fmt.Sprint(c.at, " with ", c.is), c.of(readClosed(log)), c.fault)
	}
}

func frozenFiguresOf(x *pass) *tally { return x.frozenFigures }
func frozenSumsOf(x *pass) *tally    { return x.frozenSums }
func chargesOf(x *pass) *tally       { return x.frozenCharges }
func adjustmentsOf(x *pass) *tally   { return x.adjustments }
func statesOf(x *pass) *tally        { return x.adjustmentStates }
func closedOf(x *pass) *tally        { return x.closedPeriods }
