package domain

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

func TestCancelOffboarding(t *testing.T) {
	for _, c := range []struct {
		state     string
		requested bool
		code, now string
	}{
		{OffboardingRunning, true, "", OffboardingCancelling},
		{OffboardingCancelling, false, "", OffboardingCancelling},
		{OffboardingCancelled, false, "offboarding_ended", OffboardingCancelled},
		{OffboardingArchived, false, "offboarding_ended", OffboardingArchived},
	} {
		o := Offboarding{State: c.state}
		requested, refusal := o.Cancel("r", "a")
		code := ""
		if refusal != nil {
			code = refusal.Code
		}
		if requested != c.requested || code != c.code || o.State != c.now || (o.CancelReason == "r") != c.requested ||
			(o.CancelActor == "a") != c.requested {
			t.Errorf("%s: %v %q, then %+v", c.state, requested, code, o)
		}
	}
}

func TestOffboardingBlocksChanges(t *testing.T) {
	if (*Offboarding)(nil).Blocks() != nil {
		t.Error("no offboarding blocks changes")
	}
	for state, blocks := range map[string]bool{OffboardingRunning: true, OffboardingCancelling: true, OffboardingCancelled: false,
		OffboardingArchived: true} {
		if refusal := (&Offboarding{State: state}).Blocks(); (refusal != nil) != blocks || blocks && refusal.Code != "tenant_offboarding" {
			t.Errorf("%s: %v", state, refusal)
		}
	}
}

func TestOffboardingReachesStepsInOrder(t *testing.T) {
	for i, step := range offboardingSteps {
		o := Offboarding{Step: step}
		for k, other := range offboardingSteps {
			if o.Reached(other) != (k <= i) {
				t.Errorf("at %s: %s %v", step, other, o.Reached(other))
			}
		}
	}
}

func TestP8_OffboardingClosesAndReopensPeriods(t *testing.T) {
	h := PeriodHistory{Changes: []PeriodChange{
		{1, "2026-03", 1, PeriodCloseRequested}, {2, "2026-03", 1, PeriodClosed},
		{3, "2026-04", 1, PeriodCloseRequested},
		{4, "2026-05", 1, PeriodCloseRequested}, {5, "2026-05", 1, PeriodClosed}, {6, "2026-05", 1, PeriodReopened},
		{7, "2026-02", 1, PeriodCloseRequested}, {8, "2026-02", 1, PeriodClosed}, {9, "2026-02", 1, PeriodReopened}, // without usage
	}}
	open, closing := h.ToClose([]string{"lifetime", "2026-05", "2026-03", "2026"})
	if got := fmt.Sprint(open, closing); got != "[2026 2026-05 lifetime] [2026-04]" {
		t.Error(got)
	}
	now := time.Date(2026, 5, 31, 23, 59, 59, 0, time.UTC)
	for _, c := range []struct {
		key      string
		snapshot int
		early    bool
	}{{"2026-05", 2, true}, {"2026", 1, true}, {"lifetime", 1, true}, {"2026-01", 1, false}} {
		if snapshot, early := h.ClosableAtEnd(c.key, now); snapshot != c.snapshot || early != c.early {
			t.Errorf("%s: %d %v", c.key, snapshot, early)
		}
	}
	if _, early := h.ClosableAtEnd("2026-05", now.Add(time.Second)); early {
		t.Error("a period that has ended is closed early")
	}
	o := Offboarding{Closed: []Closing{{PeriodKey: "2026-03", Snapshot: 1}, {PeriodKey: "2026-04", Snapshot: 1},
		{PeriodKey: "2026-05", Snapshot: 1}, {PeriodKey: "2026-03", Snapshot: 2}}}
	reopen, closing := o.ToReopen(&h)
	if got := fmt.Sprintln(len(reopen), reopen[0].PeriodKey, reopen[0].Snapshot, closing); got != "1 2026-03 1 [2026-04]\n" {
		t.Error(got)
	}
}

func TestManifestListsSnapshots(t *testing.T) {
	tenant := uuid.MustParse("0196c0de-0000-7000-8000-000000000001")
	m := OffboardingManifest{TenantID: tenant,
		Snapshots: []ExportedSnapshot{{PeriodKey: "2026-05", Snapshot: 2, Cut: events.Position{Partition: 1, Number: 5}}}}
	for want, list := range map[bool][]Closing{true: {{tenant, "2026-05", 2}}, false: {{tenant, "2026-05", 1}}} {
		if m.Lists(list) != want || m.Lists(nil) || m.Lists(append(list, list...)) {
			t.Errorf("%v: %v", list, m.Lists(list))
		}
	}
	a, err := m.Encode()
	b, _ := m.Encode()
	if err != nil || ManifestHash(a) != ManifestHash(b) || len(ManifestHash(a)) != 64 {
		t.Errorf("%s, %v", a, err)
	}
}
