package eventlog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/internal/must"
)

// correctionEvent makes a correction to 1, or a retraction, of usage of "f".
func correctionEvent(t *testing.T, tenant uuid.UUID, kind, id, ref string) metering.Submitted {
	t.Helper()
	amount := ""
	if kind == "correction" {
		amount = `,"amount":1`
	}
	items, err := intake.DecodeBatch(fmt.Appendf(nil,
		`{"events":[{"type":%q,"eventId":%q,"correctionRef":%q,"feature":"f","timestamp":"2026-05-01T00:00:00Z"%s}]}`,
		kind, id, ref, amount))
	if err != nil || items[0].Err != nil {
		t.Fatal(err, items)
	}
	s := usageEvent(tenant, id, 1)
	s.Subject, s.Payload = items[0].Event.Subject(), items[0].Event.Body
	s.Target = &metering.CorrectionTarget{Ref: ref, Feature: "f", Retraction: kind == "retraction"}
	return s
}

// Whole submissions of one group are stored whole or not at all. One that is refused changes no account and no target, and no event of
// it is the first with its key; each of its events that is refused for itself has its refusal.
func TestP3_WholeSubmissionsOfAGroupAreStoredOrLeaveNothing(t *testing.T) {
	const (
		absent, appended, duplicate = metering.Absent, metering.Appended, metering.Duplicate
		conflict, denied            = metering.Conflict, metering.Denied
	)
	tenant := uuid.Must(uuid.NewV7())
	l, pool := openLogAt(t, migrated(t), func(c *Config) { c.Histories = &grants{limits: map[uuid.UUID]int64{tenant: 10}} })
	submit(t, l, tenant, usageEvent(tenant, "x", 2), usageEvent(tenant, "y", 2))
	usage := func(id string, amount int) metering.Submitted { return usageEvent(tenant, id, amount) }
	request := func(id string, amount int) metering.Submitted { return requestFor(tenant, id, amount) }
	retraction := func(id, ref string) metering.Submitted { return correctionEvent(t, tenant, "retraction", id, ref) }
	type batch struct {
		whole bool
		list  []metering.Submitted
		want  []metering.OutcomeStatus
	}
	for n, group := range [][]batch{
		{
			{true, []metering.Submitted{retraction("r1", "x"), retraction("r2", "x")}, []metering.OutcomeStatus{absent, denied}},
			{true, []metering.Submitted{retraction("r3", "y"), request("over", 11)}, []metering.OutcomeStatus{absent, denied}},
			{false, []metering.Submitted{correctionEvent(t, tenant, "correction", "c1", "x"), retraction("r1", "y")},
				[]metering.OutcomeStatus{appended, appended}},
			{true, []metering.Submitted{usage("a", 1), usage("a", 1), usage("b", 1)},
				[]metering.OutcomeStatus{appended, duplicate, appended}},
			{true, []metering.Submitted{request("p", 6), request("q", 6), request("r", 3), request("s", 7)},
				[]metering.OutcomeStatus{absent, denied, absent, denied}},
			{true, []metering.Submitted{request("q", 4), request("s", 6)}, []metering.OutcomeStatus{appended, appended}},
			{false, []metering.Submitted{usage("p", 7), request("last", 1)}, []metering.OutcomeStatus{appended, denied}},
			{true, []metering.Submitted{usage("d", 1), usage("e", 1), usage("e", 2)},
				[]metering.OutcomeStatus{absent, absent, conflict}},
			{false, []metering.Submitted{usage("e", 2)}, []metering.OutcomeStatus{appended}},
		},
		{
			{true, []metering.Submitted{usage("good", 1), usage("x", 3)}, []metering.OutcomeStatus{absent, conflict}},
			{true, []metering.Submitted{request("q", 4), request("s", 6)}, []metering.OutcomeStatus{duplicate, duplicate}},
			{true, []metering.Submitted{usage("good", 1), usage("x", 2)}, []metering.OutcomeStatus{appended, duplicate}},
		},
		{ // refused by the state of now, and recorded before
			{true, []metering.Submitted{request("q", 4), request("s", 6)}, []metering.OutcomeStatus{duplicate, duplicate}},
			{true, []metering.Submitted{usage("z", 1), retraction("r1", "y")}, []metering.OutcomeStatus{appended, duplicate}},
		},
	} {
		var subs []*submission
		for _, b := range group {
			subs = append(subs, &submission{tenant: tenant, batch: b.list, whole: b.whole, outcomes: make([]metering.Outcome, len(b.list)),
				done: make(chan error, 1), load: newQueueLoad(time.Hour)})
		}
		newWriter(l, false).commit(subs)
		for i, s := range subs {
			must.OK(t, <-s.done)
			if got := statuses(s.outcomes); !slices.Equal(got, group[i].want) {
				t.Errorf("group %d, submission %d: %v, want %v", n, i, got, group[i].want)
			}
			for _, p := range s.outcomes {
				if (p.Status == appended || p.Status == duplicate) && p.Position.Number == 0 {
					t.Errorf("group %d, submission %d: %+v has no position", n, i, p)
				}
			}
		}
	}
	if used, rows := usedOf(t, pool, tenant), countRows(t, pool, tenant); used != "10" || rows != 13 {
		t.Errorf("%s are used, want 10; %d rows are stored, want 13", used, rows)
	}
	checkDense(t, pool)
}
