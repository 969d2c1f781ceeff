package verify

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
)

// The erasures of the table are those of the log: a row alone excuses no difference.
func TestErasuresFollowFromTheLog(t *testing.T) {
	id := uuid.New()
	step := func(at int64, of uuid.UUID, name string) *row {
		return event(at, erasureStepped, 7, "z/"+of.String()+"/"+name, fmt.Sprintf(`{"erasureId":%q,"step":%q}`, of, name))
	}
	for what, c := range map[string]struct {
		is    *erasure
		log   []*row
		fault string
	}{
		"running":            {&erasure{id: id, requested: true}, []*row{step(1, id, "requested")}, ""},
		"ended":              {&erasure{id: id, requested: true, ended: true}, []*row{step(1, id, "requested"), step(2, id, "erased")}, ""},
		"not in the log":     {&erasure{id: id}, nil, "requested false"},
		"ended in the table": {&erasure{id: id, requested: true, ended: true}, []*row{step(1, id, "requested")}, "has ended: true"},
		"ended in the log": {&erasure{id: id, requested: true}, []*row{step(1, id, "requested"), step(2, id, "erased")},
			"has ended: false"},
		"another": {&erasure{id: id, requested: true}, []*row{step(1, uuid.New(), "requested")}, "not in the table"},
	} {
		x := readClosed(nil)
		x.erased = erasures{uuid.Nil: c.is}
		for _, r := range c.log {
			x.addOffboarding(r, nil, nil)
		}
		x.compareErasures()
		if c.fault != "" {
			requireFault(t, what, x.offboardings, c.fault)
		} else if r := x.offboardings.result(); r.Holds == nil || !*r.Holds {
			t.Errorf("%s: %+v", what, r)
		}
		if x.erased.of(uuid.Nil) != c.is.requested {
			t.Errorf("%s: differences are excused: %v", what, !c.is.requested)
		}
	}
}

// An erasure removes the hashes of usage only.
func TestP11_MissingHashesOfErasedUsage(t *testing.T) {
	for subject, excused := range map[int16]bool{recorded: true, corrected: true, retracted: true, admitted: true, reservationHeld: false} {
		x := readClosed(nil)
		x.erased = erasures{uuid.Nil: {requested: true}}
		x.addHash(event(1, subject, topicOf[subject], "u/a", `{"amount":1,"feature":"f","reservationId":"a"}`), &content{}, nil)
		if r := x.payloadHashes.result(); excused != (r.Holds != nil && *r.Holds) {
			t.Errorf("subject %d: %+v", subject, r)
		}
	}
}
