package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

func TestClosablePeriods(t *testing.T) {
	begin, end := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	all := closings()
	for name, c := range map[string]struct {
		changes int
		key     string
		early   bool
		now     time.Time
		want    int
		known   string // the state of the known change
		code    string
	}{
		"at its end":                    {0, "2026-05", false, end, 1, "", ""},
		"before its end":                {0, "2026-05", false, end.Add(-time.Microsecond), 0, "", "period_not_ended"},
		"early":                         {0, "2026-05", true, begin, 1, "", ""},
		"before it begins":              {0, "2026-05", true, begin.Add(-time.Microsecond), 0, "", "period_not_closable"},
		"a year":                        {0, "2026", false, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), 1, "", ""},
		"a year before its end":         {0, "2026", false, end, 0, "", "period_not_ended"},
		"closing":                       {2, "2026-05", false, end, 0, StateClosing, ""},
		"closed":                        {3, "2026-05", false, end, 0, StateClosed, ""},
		"closed, before its end":        {3, "2026-05", false, begin, 0, StateClosed, ""},
		"reopened":                      {4, "2026-05", false, end, 2, "", ""},
		"reopened, before its end":      {4, "2026-05", false, begin, 0, "", "period_not_ended"},
		"another one is closed":         {6, "2026-06", true, end, 1, "", ""},
		"lifetime":                      {0, "lifetime", true, end, 0, "", "period_not_closable"},
		"month 13":                      {0, "2026-13", true, end, 0, "", "period_key_invalid"},
		"month 0":                       {0, "2026-00", true, end, 0, "", "period_key_invalid"},
		"a year of two digits":          {0, "26-05", true, end, 0, "", "period_key_invalid"},
		"a space behind":                {0, "2026-05 ", true, end, 0, "", "period_key_invalid"},
		"a space before":                {0, " 2026-05", true, end, 0, "", "period_key_invalid"},
		"a month of one digit":          {0, "2026-5", true, end, 0, "", "period_key_invalid"},
		"a day":                         {0, "2026-05-01", true, end, 0, "", "period_key_invalid"},
		"the year 0":                    {0, "0000", true, end, 0, "", "period_key_invalid"},
		"a month of the year 0":         {0, "0000-05", true, end, 0, "", "period_key_invalid"},
		"a sign":                        {0, "+2026", true, end, 0, "", "period_key_invalid"},
		"other digits":                  {0, "２０２６", true, end, 0, "", "period_key_invalid"},
		"lifetime in other case":        {0, "Lifetime", true, end, 0, "", "period_key_invalid"},
		"none":                          {0, "", true, end, 0, "", "period_key_invalid"},
		"a NUL":                         {0, "2026-0\x00", true, end, 0, "", "period_key_invalid"},
		"the first year, which counts":  {0, "0001", false, end, 1, "", ""},
		"a year without a writable end": {0, "9999", true, end, 0, "", "period_key_invalid"},
		"its last month":                {0, "9999-12", true, end, 0, "", "period_key_invalid"},
		"the month before":              {0, "9999-11", true, end, 0, "", "period_not_closable"},
	} {
		h := PeriodHistory{Changes: all.Changes[:c.changes]}
		snapshot, known, refusal := h.Closable(c.key, c.early, c.now)
		code := ""
		if refusal != nil {
			code = refusal.Code
		}
		if snapshot != c.want || (known != nil) != (c.known != "") || known != nil && known.State() != c.known || code != c.code {
			t.Errorf("%s: snapshot %d, known %+v, refusal %v", name, snapshot, known, refusal)
		}
	}
}

// Only the offboarding closes lifetime: a close of it by request finds the one that is there.
func TestAClosedLifetimeIsKnown(t *testing.T) {
	now := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	h := PeriodHistory{Changes: []PeriodChange{{1, PeriodLifetime, 1, PeriodCloseRequested}}}
	for _, want := range []string{StateClosing, StateClosed} {
		if snapshot, known, refusal := h.Closable(PeriodLifetime, false, now); snapshot != 0 || known == nil || known.State() != want ||
			refusal != nil {
			t.Errorf("%s: snapshot %d, %+v, %v", want, snapshot, known, refusal)
		}
		h.Changes = append(h.Changes, PeriodChange{2, PeriodLifetime, 1, PeriodClosed})
	}
	h.Changes = append(h.Changes[:2], PeriodChange{3, PeriodLifetime, 1, PeriodReopened})
	if _, known, refusal := h.Closable(PeriodLifetime, true, now); known != nil || refusal == nil || refusal.Code != "period_not_closable" {
		t.Errorf("reopened: %+v, %v", known, refusal)
	}
}

// Each close of a period has the next number, also if other periods have as many.
func TestP8_EachCloseHasTheNextSnapshot(t *testing.T) {
	var h PeriodHistory
	for want := 1; want <= 5; want++ {
		got, known, refusal := h.Closable("2026-05", false, time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC))
		if got != want || known != nil || refusal != nil {
			t.Fatalf("close %d has the snapshot %d, %+v, %v", want, got, known, refusal)
		}
		for _, change := range []string{PeriodCloseRequested, PeriodClosed, PeriodReopened} {
			at := int64(10 * len(h.Changes))
			h.Changes = append(h.Changes, PeriodChange{at, "2026-05", got, change},
				PeriodChange{at + 1, "2026-06", 1, PeriodCloseRequested})
		}
		if snapshot, refusal := (&PeriodHistory{Changes: h.Changes[:len(h.Changes)-2]}).Reopenable("2026-05"); snapshot != want ||
			refusal != nil {
			t.Errorf("close %d is reopened as %d, %v", want, snapshot, refusal)
		}
	}
}

func TestReopenablePeriods(t *testing.T) {
	all := closings()
	for name, c := range map[string]struct {
		changes int
		want    int
		code    string
	}{
		"never closed": {1, 0, "period_not_closed"}, "closing": {2, 0, "period_closing"}, "closed": {3, 1, ""},
		"reopened":      {4, 0, "period_not_closed"},
		"closing again": {5, 0, "period_closing"}, "closed again": {6, 2, ""},
	} {
		h := PeriodHistory{Changes: all.Changes[:c.changes]}
		snapshot, refusal := h.Reopenable("2026-05")
		if snapshot != c.want || (refusal != nil) != (c.code != "") || refusal != nil && refusal.Code != c.code {
			t.Errorf("%s: snapshot %d, %v", name, snapshot, refusal)
		}
	}
}

// figures returns lines of a feature, each "amount:count".
func figures(lines ...string) *Figures {
	f := &Figures{Logic: "usage_aggregates/v1"}
	for i, line := range lines {
		amount, count, _ := strings.Cut(line, ":")
		n, _ := new(big.Int).SetString(amount, 10)
		events, _ := new(big.Int).SetString(count, 10)
		f.Lines = append(f.Lines, FigureLine{Feature: "calls", SubscriptionID: uuid.UUID{byte(i + 1)}, Amount: n,
			EventCount: events.Int64()})
	}
	return f
}

// The hash is that of the document that a reader makes from the answer, in the canonical form: exact at any size of its integers.
func TestP8_TheHashOfFiguresIsThatOfTheCanonicalDocument(t *testing.T) {
	tenant, cut := uuid.MustParse("01900000-0000-7000-8000-0000000000aa"), events.Position{Partition: 17, Number: 4711}
	huge := "123456789012345678901234567890123456789"
	odd := figures("9007199254740993:9007199254740993", "-5:-1", huge+":1", "0:0")
	odd.Lines[1].Feature, odd.Logic = "a\"b\\c\u00e9\u2028", "usage_aggregates/v2"
	seen := map[string]string{}
	for name, f := range map[string]*Figures{
		"none": figures(), "one": figures("5:1"), "odd": odd, "2^53": figures("9007199254740992:1"),
		"2^53+1": figures("9007199254740993:1"),
		"large":  figures(huge + ":1"), "larger by 1": figures("123456789012345678901234567890123456790:1"), "count": figures("5:2"),
	} {
		lines := []map[string]any{}
		for _, l := range f.Lines {
			lines = append(lines, map[string]any{"feature": l.Feature, "subscriptionId": l.SubscriptionID.String(),
				"amount":     l.Amount.String(),
				"eventCount": json.Number(big.NewInt(l.EventCount).String())})
		}
		document, err := json.Marshal(map[string]any{"tenantId": tenant.String(), "snapshot": 3, "periodKey": "2026-05", "logic": f.Logic,
			"lines": lines, "cut": "17-4711"})
		must.OK(t, err)
		// The canonical form writes numbers as doubles: a count above 2^53 − 1 is no number that it keeps, and none that a tenant reaches.
		canonical, fault := strictjson.Canonical([]byte(strings.ReplaceAll(string(document), ":9007199254740993", `:"count"`)))
		if fault != nil {
			t.Fatal(fault)
		}
		sum := sha256.Sum256([]byte(strings.ReplaceAll(string(canonical), `"eventCount":"count"`, `"eventCount":9007199254740993`)))
		got := f.FiguresHash(tenant, "2026-05", 3, cut)
		if want := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s: the hash is %s, that of the document %s:\n%s", name, got, want, canonical)
		}
		if other, known := seen[got]; known {
			t.Errorf("%s and %s have one hash", name, other)
		}
		seen[got] = name
	}
	one := figures("5:1")
	for name, got := range map[string]string{
		"tenant": one.FiguresHash(uuid.UUID{1}, "2026-05", 3, cut), "period": one.FiguresHash(tenant, "2026-06", 3, cut),
		"snapshot": one.FiguresHash(tenant, "2026-05", 4, cut),
		"cut":      one.FiguresHash(tenant, "2026-05", 3, events.Position{Partition: 17, Number: 4712}),
	} {
		if other, known := seen[got]; known {
			t.Errorf("another %s has the hash of %s", name, other)
		}
	}
}

func TestP8_FiguresThatDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		log, rows *Figures
		differs   bool
	}{
		"none":                       {figures(), figures(), false},
		"equal":                      {figures("5:1", "7:2"), figures("5:1", "7:2"), false},
		"amount":                     {figures("5:1", "7:2"), figures("5:1", "8:2"), true},
		"count":                      {figures("5:1"), figures("5:2"), true},
		"by the last of many digits": {figures("123456789012345678901234567890:1"), figures("123456789012345678901234567891:1"), true},
		"a line more in the log":     {figures("5:1", "7:2"), figures("5:1"), true},
		"a line more in the rows":    {figures("5:1"), figures("5:1", "7:2"), true},
		"a row of nothing":           {figures("5:1"), figures("5:1", "0:0"), false},
		"a line of nothing":          {figures("5:1", "0:0"), figures("5:1"), false},
		"a row of events":            {figures("5:1"), figures("5:1", "0:1"), true},
		"a row of an amount":         {figures("5:1"), figures("5:1", "-1:0"), true},
	} {
		if got := c.log.Differs(c.rows); (got != "") != c.differs {
			t.Errorf("%s: %q", name, got)
		}
		if got := c.rows.Differs(c.log); (got != "") != c.differs {
			t.Errorf("%s, the other way: %q", name, got)
		}
	}
	moved := figures("5:1")
	moved.Lines[0].SubscriptionID = uuid.UUID{9}
	if figures("5:1").Differs(moved) == "" {
		t.Error("the figure of another subscription does not differ")
	}
}

// The parts hold all lines in their order; a period without usage has one part without lines.
func TestPartsOfFigures(t *testing.T) {
	for lines, sizes := range map[int][]int{0: {0}, 1: {1}, events.MaxFrozenLines: {500}, events.MaxFrozenLines + 1: {500, 1},
		2*events.MaxFrozenLines + 7: {500, 500, 7}} {
		f := &Figures{}
		for i := range lines {
			f.Lines = append(f.Lines, FigureLine{Feature: "calls", SubscriptionID: uuid.UUID{byte(i >> 8), byte(i)},
				Amount: big.NewInt(int64(i)), EventCount: int64(i)})
		}
		var got []events.FrozenLine
		var counts []int
		for i, part := range f.Parts("2026-05", 2) {
			if part.PeriodKey != "2026-05" || part.Snapshot != 2 || part.Part != i+1 || part.Parts != len(sizes) || part.Lines == nil {
				t.Errorf("%d lines: part %+v", lines, part)
			}
			got, counts = append(got, part.Lines...), append(counts, len(part.Lines))
		}
		if !reflect.DeepEqual(counts, sizes) {
			t.Errorf("%d lines are in parts of %v", lines, counts)
		}
		for i, l := range got {
			if l.SubscriptionID != f.Lines[i].SubscriptionID || l.Amount != f.Lines[i].Amount.String() || l.EventCount != int64(i) {
				t.Fatalf("line %d of %d is %+v", i, lines, l)
			}
		}
	}
}

func TestDecidedAdjustmentsAreNotDecidable(t *testing.T) {
	for state, decidable := range map[string]bool{events.AdjustmentPending: true, events.AdjustmentApproved: false,
		events.AdjustmentWaived: false, events.AdjustmentVoid: false} {
		refusal := (&Adjustment{State: state}).Decidable()
		if (refusal == nil) != decidable || refusal != nil && refusal.Code != "adjustment_decided" {
			t.Errorf("%s: %v", state, refusal)
		}
	}
}
