package verify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// failedWorld is a log with two failures of a push and a difference, its row, and the row of the comparison.
func failedWorld() ([]*row, pushRow, comparison) {
	id := idOf(1)
	failed := func(at int64, n int, code string) *row {
		return event(at, pushFailed, 7, fmt.Sprintf("b/%s/failed/%d", id, n),
			fmt.Sprintf(
				`{"pushId":%q,"provider":"stripe","key":"k","identifier":"i","feature":"f","periodKey":"2000-01","snapshot":1,"amount":"5",`+
					`"attempt":%d,"code":%q}`, id, n, code))
	}
	log := []*row{failed(1, 1, "resource_missing"), failed(2, 2, "push_unknown"),
		event(3, pushCompared, 7, "e/3",
			`{"provider":"stripe","customer":"c","feature":"f","periodKey":"2000-01","total":"7","delivered":"9","difference":"-2"}`)}
	return log, pushRow{uuid.Nil, "f", "2000-01", 1, "5", "stripe", "k", "i", 2}, comparison{"stripe", "c", "2000-01", "7", "9"}
}

func readFailed(log []*row, p pushRow, c comparison, state, code string, failures int) *tally {
	x := newTestPass(stateAt(3))
	for _, r := range log {
		x.addPushEnd(r, nil, nil)
	}
	x.compareFailures(idOf(1), p, state, failures, code, true)
	x.compareDifference(c, []uuid.UUID{uuid.Nil})
	return x.pushFailures
}

func TestP8_FailuresOfPushesFollowFromTheLog(t *testing.T) {
	log, p, c := failedWorld()
	if r := readFailed(log, p, c, "UNKNOWN", "push_unknown", 2).result(); !*r.Holds || r.Figures != "3 events" {
		t.Errorf("%+v", r)
	}
	log, p, c = failedWorld()
	if r := readFailed(log, p, c, "DELIVERED", "", 2).result(); !*r.Holds {
		t.Errorf("%+v", r)
	}
	for fault, change := range map[string]func(log []*row, p *pushRow, c *comparison){
		"has failed 2 times, in the log 0":              func(log []*row, _ *pushRow, _ *comparison) { log[0], log[1] = log[2], log[2] },
		"is failure 1 of its delivery, and has the key": func(log []*row, _ *pushRow, _ *comparison) { log[0], log[1] = log[1], log[0] },
		"has failed at its attempt 2, and has 1":        func(_ []*row, p *pushRow, _ *comparison) { p.attempt = 1 },
		"amount:6":                                      func(_ []*row, p *pushRow, _ *comparison) { p.amount = "6" },
		"the log has no such difference":                func(_ []*row, _ *pushRow, c *comparison) { c.total = "8" },
		"7 less 9 is no difference of -3": func(log []*row, _ *pushRow, _ *comparison) {
			log[2].body = []byte(strings.Replace(string(log[2].body), "-2", "-3", 1))
		},
		"9 less 9 is no difference of 0": func(log []*row, _ *pushRow, _ *comparison) {
			log[2].body = []byte(strings.NewReplacer(`"7"`, `"9"`, "-2", "0").Replace(string(log[2].body)))
		},
	} {
		log, p, c := failedWorld()
		change(log, &p, &c)
		requireFault(t, fault, readFailed(log, p, c, "UNKNOWN", "push_unknown", 2), fault)
	}
	for amount, split := range map[string]bool{"1000000000000000": true, "2000000000000001": true, "-1000000000000000": false,
		"999999999999998": false} {
		log, p, c = failedWorld()
		for _, r := range log[:2] {
			r.body = []byte(strings.Replace(string(r.body), `"amount":"5"`, `"amount":"`+amount+`"`, 1))
		}
		p.amount = "999999999999999"
		if r := readFailed(log, p, c, "UNKNOWN", "push_unknown", 2).result(); *r.Holds != split {
			t.Errorf("a push that failed with the amount %s: %+v", amount, r)
		}
	}
	log, p, c = failedWorld()
	requireFault(t, "another code", readFailed(log, p, c, "FAILED", "resource_missing", 2), `with the code "resource_missing"`)
	requireFault(t, "one failure more", readFailed(log, p, c, "FAILED", "push_unknown", 3), "has failed 3 times, in the log 2")
}
