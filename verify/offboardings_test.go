package verify

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// endedWorld is a log with a tenant that was offboarded, its row, and its figures. The offboarding begins at 13, behind the close of a
// period; usage until 15 is drained.
func endedWorld() ([]*row, *offboarding) {
	id := idOf(500)
	log := closedLog()[:11]
	step := func(at int64, name, detail string) *row {
		return event(at, offboardingStepped, 7, "o/"+id.String()+"/"+name,
			fmt.Sprintf(`{"offboardingId":%q,"step":%q,"outcome":"done","detail":%q}`, id, name, detail))
	}
	log = append(log, event(12, recorded, topicRaw, "u/z", `[1,"f"]`), step(13, "requested", ""), step(14, "suspended", ""),
		event(15, recorded, topicRaw, "u/y", `[1,"f"]`),
		step(16, "drained", ""), step(17, "closed", ""), step(18, "pushed", ""))
	lines, sum := 0, sha256.New()
	for _, r := range log {
		payload, err := r.payload()
		if err != nil {
			panic(err)
		}
		n, _ := fmt.Fprintf(sum, "0-%d %s %d %s\n", r.position, r.id, r.subject, payload)
		lines += n
	}
	text := fmt.Sprintf(
		`{"tenantId":%q,"snapshots":[{"periodKey":"2000-01","snapshot":1,"cutPosition":"0-9","lines":1,"bytes":1,"sha256":%q}],`+
			`"log":{"events":18,"firstPosition":"0-1","lastPosition":"0-18","bytes":%d,"sha256":"%x"}}`,
		uuid.Nil, figuresHashOf(9, 1, "5", 1), lines, sum.Sum(nil))
	log = append(log, step(19, "exported", fmt.Sprintf("sha256 %x", sha256.Sum256([]byte(text)))), step(20, "archived", ""))
	return log, &offboarding{id: id, state: "ARCHIVED", step: "archived", suspended: true, drainedTo: 15, manifest: text}
}

func readEnded(log []*row, o *offboarding, status string, keys, subscriptions int64) *tally {
	x := readClosed(log[:11])
	x.ending.note(*o)
	for _, r := range log {
		x.addOffboarding(r, nil, nil)
	}
	for _, o := range x.ending.of {
		x.offboardings.n++
		x.checkSteps(o)
		x.checkManifest(o)
	}
	x.checkEnded(uuid.Nil, status, keys, subscriptions)
	return x.offboardings
}

func TestP8_OffboardingsFollowFromTheLog(t *testing.T) {
	log, o := endedWorld()
	if r := readEnded(log, o, "ARCHIVED", 0, 0).result(); r.Holds == nil || !*r.Holds || r.Figures != "1 offboardings" {
		t.Errorf("%+v", r)
	}
	// A cancelled one ends with the tenant's usage.
	log, o = endedWorld()
	for at, step := range map[int]string{19: "cancelled", 20: "reverted"} {
		log[at-1] = event(int64(at), offboardingStepped, 7, "o/"+o.id.String()+"/"+step, fmt.Sprintf(`{"offboardingId":%q,"step":%q}`, o.id,
			step))
	}
	log = append(log, event(21, recorded, topicRaw, "u/x", `[1,"f"]`))
	o.state, o.step, o.manifest = "CANCELLED", "reverted", ""
	if r := readEnded(log, o, "ACTIVE", 2, 1).result(); r.Holds == nil || !*r.Holds {
		t.Errorf("%+v", r)
	}
}

func TestP8_FaultsInOffboardingsAreReported(t *testing.T) {
	for fault, change := range map[string]func(log []*row, o *offboarding){
		"is RUNNING after \"archived\"":                 func(_ []*row, o *offboarding) { o.state = "RUNNING" },
		"is ARCHIVED after \"pushed\"":                  func(_ []*row, o *offboarding) { o.step = "pushed" },
		"which is not in the table":                     func(_ []*row, o *offboarding) { o.id = idOf(501) },
		`has the steps ["requested" "drained"`:          func(log []*row, _ *offboarding) { log[13], log[15] = log[15], log[13] },
		`["requested" "suspended" "archived" "drained"`: func(log []*row, _ *offboarding) { log[14] = log[19] },
		"0-15 is usage of the tenant":                   func(_ []*row, o *offboarding) { o.drainedTo = 14 },
		"has the SHA-256":                               func(_ []*row, o *offboarding) { o.manifest += " " },
		"has no manifest":                               func(_ []*row, o *offboarding) { o.manifest = "" },
		"does not list snapshot 1 of": func(_ []*row, o *offboarding) {
			o.manifest = strings.Replace(o.manifest, `"snapshots":[{`, `"snapshots":[],"x":[{`, 1)
		},
		"lists snapshot 2 of 2000-01": func(_ []*row, o *offboarding) {
			o.manifest = strings.Replace(o.manifest, `"snapshot":1`, `"snapshot":2`, 1)
		},
		"cut at \"0-8\"; the log has no such close": func(_ []*row, o *offboarding) {
			o.manifest = strings.Replace(o.manifest, `"0-9"`, `"0-8"`, 1)
		},
		"lists 17 events from 0-1": func(_ []*row, o *offboarding) {
			o.manifest = strings.Replace(o.manifest, `"events":18`, `"events":17`, 1)
		},
		"the log has 18 from 0-1": func(log []*row, _ *offboarding) { log[11].body = []byte(`[2,"f"]`) },
		"has the key \"o/x\"":     func(log []*row, _ *offboarding) { log[12].key = []byte("o/x") },
	} {
		log, o := endedWorld()
		change(log, o)
		requireFault(t, fault, readEnded(log, o, "ARCHIVED", 0, 0), fault)
	}
	log, o := endedWorld()
	requireFault(t, "a tenant", readEnded(log, o, "ACTIVE", 0, 0), "is ACTIVE, and has an offboarding that archived it: true")
	requireFault(t, "a key", readEnded(log, o, "ARCHIVED", 1, 0), "has 1 keys")
	requireFault(t, "a subscription", readEnded(log, o, "ARCHIVED", 0, 1), "has 1 subscriptions")
	o.state, o.step = "RUNNING", "pushed"
	requireFault(t, "running", readEnded(log[:18], o, "ACTIVE", 0, 0), "is ACTIVE while its offboarding suspends it")
}
