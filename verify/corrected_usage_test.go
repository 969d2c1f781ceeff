package verify

import (
	"bytes"
	"fmt"
	"testing"
)

// correctedLog is a log with two events of usage, a correction of the first one to 3, and a retraction of it; each has its verdict.
func correctedLog() []*row {
	verdict := func(raw int64, id, amount string, count int, more string) string {
		return fmt.Sprintf(
			`{"rawPosition":%d,"eventId":%q,"feature":"f","amount":%s,"count":%d,"timestamp":"2000-01-01T00:00:00Z","periodKey":"2000-01"%s}`, raw, id, amount, count, more)
	}
	const target = `,"targetPosition":1,"targetEventId":"a"`
	return []*row{
		event(1, recorded, topicRaw, "u/a", `[5,"f"]`),
		event(2, validated, topicValidated, "v/1", verdict(1, "a", "5", 1, "")),
		event(3, corrected, topicRaw, "u/c",
			`{"amount":3,"correctionRef":"a","eventId":"c","feature":"f","timestamp":"2000-01-02T00:00:00Z","type":"correction"}`),
		event(4, validated, topicValidated, "v/3", verdict(3, "c", "-2", 0, `,"kind":"correction"`+target+`,"before":5,"after":3`)),
		event(5, retracted, topicRaw, "u/r",
			`{"correctionRef":"a","eventId":"r","feature":"f","timestamp":"2000-01-02T00:00:00Z","type":"retraction"}`),
		event(6, validated, topicValidated, "v/5", verdict(5, "r", "-3", -1, `,"kind":"retraction"`+target+`,"before":3,"after":0`)),
	}
}

// The verdicts on corrections are compared with one another, and with the corrections.
func TestEachCorrectionFollowsTheOneBeforeIt(t *testing.T) {
	read := func(log []*row) *pass {
		x := newTestPass(stateAt(int64(len(log)), validator, entitlements))
		for _, r := range log {
			x.add(r)
		}
		x.ends()
		return x
	}
	x := read(correctedLog())
	for _, c := range []*tally{x.verdicts, x.verdictContents, x.correctedUsage} {
		if r := c.result(); r.Holds == nil || !*r.Holds || c.n == 0 {
			t.Errorf("%s: %s", r.Name, r.Figures)
		}
	}
	if x.letterStates.counts != (counts{accepted: 3, validated: 3}) {
		t.Errorf("counted %+v", x.letterStates.counts)
	}
	of := figure{feature: "f", period: "2000-01"}
	if s := x.figures.used[of]; s == nil || s.amount.Sign() != 0 || s.events != 0 {
		t.Errorf("used: %+v", s)
	}
	for _, c := range []struct {
		at      int
		was, is string
		fault   string
	}{
		{5, `"before":3`, `"before":4`, "0-6 changes 0-1 from 4, 0-4 has left 3"},
		{5, `"amount":-3`, `"amount":-4`, "0-6 counts -4 in -1 events for a retraction from 3 to 0"},
		{5, `"count":-1`, `"count":0`, "0-6 counts -3 in 0 events"},
		{5, `2000-01-01`, `2000-01-02`, "0-6 and 0-4 differ in what they say of 0-1"},
		{5, `"2000-01"`, `"2000-02"`, "0-6 and 0-4 differ in what they say of 0-1"},
		{3, `"targetPosition":1`, `"targetPosition":3`, "0-4, a correction at 0-3, has a target at 0-3"},
		{3, `"kind":"correction"`, `"kind":"retraction"`, "0-6 changes 0-1, which 0-4 has retracted"},
		{3, `"after":3`, `"after":2`, ""},
		{2, `"correctionRef":"a"`, `"correctionRef":"b"`, ""},
		{4, `"feature":"f"`, `"feature":"g"`, ""},
	} {
		log := correctedLog()
		log[c.at].body = bytes.Replace(log[c.at].body, []byte(c.was), []byte(c.is), 1)
		x := read(log)
		of := x.correctedUsage
		if c.fault == "" { // the correction says something else
			of = x.verdictContents
		}
		requireFault(t, c.is, of, c.fault)
	}
}
