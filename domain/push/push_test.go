package push

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

var (
	pushTenant = uuid.MustParse("01900000-0000-7000-8000-000000000001")
	pushNoon   = time.Date(2026, 11, 2, 12, 0, 0, 123, time.UTC)
	pushTo     = &events.Billing{Provider: events.ProviderStripe, Customer: "cus_1"}
)

func due(frozen, billable, pushed int64, last int) *Due {
	return &Due{Feature: "calls", Frozen: big.NewInt(frozen), Billable: big.NewInt(billable), Pushed: big.NewInt(pushed), Last: last}
}

func october(snapshot int) domain.Closing {
	return domain.Closing{TenantID: pushTenant, PeriodKey: "2026-10", Snapshot: snapshot}
}

// newPush returns the first push of October.
func newPush() *Push {
	return plan(october(1), due(5, 5, 0, -1), pushNoon)
}

// plan returns the only push of what is due; nil: nothing is due.
func plan(of domain.Closing, d *Due, now time.Time) *Push {
	for _, p := range Plan(func() uuid.UUID { return uuid.UUID{1} }, of, d, nil, pushTo, now) {
		return &p
	}
	return nil
}

func TestP8_APushIsTheDifferenceToAllEarlierOnes(t *testing.T) {
	for name, c := range map[string]struct {
		due    *Due
		amount int64
		key    string // "": nothing is pushed
	}{
		"the first":                    {due(5, 5, 0, -1), 5, ":2"},
		"nothing":                      {due(5, 5, 5, -1), 0, ""},
		"a later snapshot":             {due(7, 7, 5, -1), 2, ":2"},
		"less":                         {due(3, 3, 5, -1), -2, ":2"},
		"an adjustment":                {due(5, 9, 5, 0), 4, ":2:a1"},
		"a second one":                 {due(5, 9, 7, 1), 2, ":2:a2"},
		"after one was taken back":     {due(5, 9, 5, 2), 4, ":2:a3"},
		"of a figure of earlier ones":  {due(5, 9, 5, -1), 4, ":2:a1"},
		"of nothing":                   {due(0, 9, 0, -1), 9, ":2:a1"},
		"approved before the figure":   {due(5, 9, 0, -1), 9, ":2"},
		"approved in place of another": {due(7, 9, 5, -1), 4, ":2"},
	} {
		p := plan(october(2), c.due, pushNoon)
		if (p == nil) != (c.key == "") {
			t.Errorf("%s: %+v", name, p)
		}
		if p == nil {
			continue
		}
		key := pushTenant.String() + ":calls:2026-10" + c.key
		if p.Amount.Int64() != c.amount || p.Key != key || p.Identifier != Identifier(key) || p.Event != "calls" ||
			p.State != StatePending {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A figure that was never pushed counts in its period, also if an approval pushes it. Of a period from before the billing it fails, and is
// not billed today.
func TestP8_AnApprovalMovesNoFigureToALaterPeriod(t *testing.T) {
	p := plan(october(1), due(1000, 1001, 0, -1), pushNoon)
	if want := time.Date(2026, 10, 31, 23, 59, 59, 0, time.UTC); !p.Timestamp.Equal(want) {
		t.Errorf("the figure of October counts at %s", p.Timestamp)
	}
	much := pushNoon.Add(100 * 24 * time.Hour)
	p = plan(october(1), due(1000, 1001, 0, -1), much)
	if p.Begin(much) || !p.Stop(much) || p.State != StateFailed || p.Code != TooOld {
		t.Errorf("%+v", p)
	}
}

// Every member of a push is in its key, and no two pushes share an identifier.
func TestP8_KeysOfPushesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, tenant := range []uuid.UUID{{1}, {2}} {
		for _, feature := range []string{"a", "a.b"} {
			for _, period := range []string{"2026-10", "2026", domain.PeriodLifetime} {
				for snapshot := 1; snapshot < 12; snapshot++ {
					for n := range 12 {
						id := Identifier(Key(tenant, feature, period, snapshot, n))
						if seen[id] || len(id) != 43 || !strings.HasPrefix(id, "mp_") {
							t.Fatalf("%s of %s %s %s %d %d", id, tenant, feature, period, snapshot, n)
						}
						seen[id] = true
					}
				}
			}
		}
	}
	if got := Identifier("k"); got != "mp_8254c329a92850f6d539dd376f4816ee2764517d" {
		t.Errorf("the identifier of k is %s", got)
	}
}

func TestPushesCountInThePastAndInTheirPeriod(t *testing.T) {
	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339, text)
		must.OK(t, err)
		return v
	}
	for _, c := range []struct {
		period string
		n      int
		want   string
	}{
		{"2026-10", 0, "2026-10-31T23:59:59Z"},
		{"2025", 0, "2025-12-31T23:59:59Z"},
		{"2026-11", 0, "2026-11-02T12:00:00Z"}, // closed early
		{"2026", 0, "2026-11-02T12:00:00Z"},
		{domain.PeriodLifetime, 0, "2026-11-02T12:00:00Z"},
		{"2026-10", 1, "2026-11-02T12:00:00Z"},
	} {
		if got := Timestamp(c.period, c.n, pushNoon); !got.Equal(at(c.want)) {
			t.Errorf("%s %d: %s instead of %s", c.period, c.n, got, c.want)
		}
	}
	for stored, want := range map[string]string{
		"2026-10-31T23:59:58.9Z": "2026-10-31T23:59:58Z", "2026-10-31T23:59:59.9Z": "2026-10-31T23:59:59Z",
		"2026-11-01T00:00:00Z": "2026-10-31T23:59:59Z", "2026-11-01T00:00:00.9Z": "2026-10-31T23:59:59Z",
		"2026-11-01T00:00:01Z": "2026-10-31T23:59:59Z",
	} {
		if got := Timestamp("2026-10", 0, at(stored)); !got.Equal(at(want)) {
			t.Errorf("stored at %s: %s instead of %s", stored, got, want)
		}
	}
}

func (p *Push) begun(t *testing.T, now time.Time) *Push {
	t.Helper()
	if !p.Begin(now) {
		t.Fatalf("%+v does not begin at %s", p, now)
	}
	return p
}

// From its beginning an attempt may have been counted: a push whose answer is lost is unknown.
func TestP8_AnAttemptIsUnknownUntilItsAnswer(t *testing.T) {
	p := newPush().begun(t, pushNoon)
	if p.State != StateUnknown || p.Attempts != 1 || !p.UnknownSince.Equal(pushNoon) || !p.FirstAttemptAt.Equal(pushNoon) {
		t.Errorf("%+v", p)
	}
	if p.Begin(pushNoon.Add(Attempt - 1)) {
		t.Error("a second attempt began while the first may run")
	}
	p.begun(t, pushNoon.Add(Attempt))
	if !p.UnknownSince.Equal(pushNoon) {
		t.Errorf("unknown since %s", p.UnknownSince)
	}
}

func TestP8_ResultsOfAttempts(t *testing.T) {
	later := pushNoon.Add(time.Second)
	for _, c := range []struct {
		result  Result
		state   string
		unknown bool
		next    time.Duration // 0: none
	}{
		{Result{Outcome: Delivered}, StateDelivered, true, 0},
		{Result{Outcome: Refused, Code: "no_meter", Reason: "No such meter"}, StateFailed, false, 0},
		{Result{Outcome: Later}, StatePending, false, 5 * time.Second},
		{Result{Outcome: Later, RetryAfter: time.Minute}, StatePending, false, time.Minute},
		{Result{Outcome: Later, RetryAfter: 100 * time.Hour}, StatePending, false, 6 * time.Hour},
		{Result{Outcome: Unknown, Reason: "timeout"}, StateUnknown, true, 5 * time.Second},
	} {
		p := newPush().begun(t, pushNoon)
		if !p.Answered(c.result, 1, later) || p.State != c.state || (p.UnknownSince != nil) != c.unknown || p.LastError != c.result.Reason {
			t.Errorf("%+v: %+v", c.result, p)
		}
		if (p.NextAt == nil) != (c.next == 0) || p.NextAt != nil && !p.NextAt.Equal(later.Add(c.next)) {
			t.Errorf("%+v: next at %v", c.result, p.NextAt)
		}
		if failed := p.Failures == 1; failed != (c.state == StateFailed) {
			t.Errorf("%+v: %d failures", c.result, p.Failures)
		}
	}
}

// The doubt about an attempt outlives the refusal of a later one.
func TestP8_ALostAnswerIsNotForgotten(t *testing.T) {
	for _, outcome := range []Outcome{Later, Refused} {
		p := newPush().begun(t, pushNoon)
		p.Answered(Result{Outcome: Unknown}, 1, pushNoon)
		p.begun(t, pushNoon.Add(time.Hour))
		p.Answered(Result{Outcome: outcome}, 2, pushNoon.Add(time.Hour))
		if p.UnknownSince == nil || !p.UnknownSince.Equal(pushNoon) || p.State == StatePending {
			t.Errorf("%s: %+v", outcome, p)
		}
		refusal := p.Retry("r", "a", pushNoon.Add(UnknownFor))
		if refusal == nil || refusal.Code != "push_unknown" {
			t.Errorf("%s: a retry after 23 h: %v", outcome, refusal)
		}
	}
}

// A delivery counts whenever it is known; another result only of the last attempt.
func TestP8_ResultsOfEarlierAttempts(t *testing.T) {
	p := newPush().begun(t, pushNoon).begun(t, pushNoon.Add(Attempt))
	if p.Answered(Result{Outcome: Refused}, 1, pushNoon) || p.Answered(Result{Outcome: Later}, 1, pushNoon) || p.State != StateUnknown {
		t.Errorf("%+v", p)
	}
	if !p.Answered(Result{Outcome: Delivered}, 1, pushNoon) || p.State != StateDelivered {
		t.Errorf("%+v", p)
	}
	if p.Answered(Result{Outcome: Refused}, 2, pushNoon) || p.Answered(Result{Outcome: Delivered}, 2, pushNoon) ||
		p.State != StateDelivered {
		t.Errorf("%+v", p)
	}
}

// Providers forget identifiers after 24 hours: a push whose answer is unknown is not sent later than 23 hours.
func TestP8_AnUnknownPushIsNotSentAfter23Hours(t *testing.T) {
	end := pushNoon.Add(UnknownFor)
	p := newPush().begun(t, pushNoon)
	p.Answered(Result{Outcome: Unknown}, 1, pushNoon)
	p.NextAt = &pushNoon
	for at, begins := range map[time.Time]bool{end.Add(-1): true, end: false, end.Add(2 * time.Hour): false} {
		q := *p
		if got := q.Begin(at); got != begins {
			t.Errorf("begins %s after the first attempt: %v", at.Sub(pushNoon), got)
		}
		if code, _ := p.Give(at); (code == Undecided) == begins {
			t.Errorf("gives %q at %s", code, at)
		}
	}
	p.Stop(end)
	if p.State != StateUnknown || p.NextAt != nil || p.Failures != 1 || !p.Undecided(end) {
		t.Errorf("%+v", p)
	}
	pending := newPush() // was never sent
	pending.Timestamp = pushNoon
	if !pending.Begin(end.Add(24 * time.Hour)) {
		t.Error("a pending push does not begin")
	}
}

func TestAPushOlderThan35DaysFails(t *testing.T) {
	p := newPush()
	p.Timestamp = pushNoon.Add(-Oldest)
	if p.Begin(pushNoon) {
		t.Error("an old push was sent")
	}
	p.Stop(pushNoon)
	if p.State != StateFailed || p.Code != TooOld || p.Failures != 1 || p.NextAt != nil {
		t.Errorf("%+v", p)
	}
}

func TestOperatorsRetryAndResolvePushes(t *testing.T) {
	unknown := func() *Push {
		p := newPush().begun(t, pushNoon)
		p.Answered(Result{Outcome: Unknown}, 1, pushNoon)
		return p
	}
	failed := func() *Push {
		p := newPush().begun(t, pushNoon)
		p.Answered(Result{Outcome: Refused}, 1, pushNoon)
		return p
	}
	delivered := func() *Push {
		p := newPush().begun(t, pushNoon)
		p.Answered(Result{Outcome: Delivered}, 1, pushNoon)
		return p
	}
	now := pushNoon.Add(time.Hour)
	retry := func(p *Push, at time.Time) *domain.Error { return p.Retry("r", "a", at) }
	yes := func(p *Push, at time.Time) *domain.Error { return p.Resolve(true, "r", "a", at) }
	no := func(p *Push, at time.Time) *domain.Error { return p.Resolve(false, "r", "a", at) }
	for name, c := range map[string]struct {
		p     *Push
		do    func(*Push, time.Time) *domain.Error
		at    time.Time
		state string
		code  string
	}{
		"retry failed":            {failed(), retry, now, StatePending, ""},
		"retry unknown":           {unknown(), retry, now, StateUnknown, ""},
		"retry unknown, later":    {unknown(), retry, now.Add(UnknownFor), StateUnknown, "push_unknown"},
		"retry pending":           {newPush(), retry, now, StatePending, "push_pending"},
		"retry delivered":         {delivered(), retry, now, StateDelivered, "push_delivered"},
		"resolve unknown":         {unknown(), yes, now.Add(UnknownFor), StateDelivered, ""},
		"resolve unknown, not":    {unknown(), no, now.Add(UnknownFor), StatePending, ""},
		"resolve failed":          {failed(), yes, now, StateDelivered, ""},
		"resolve failed, not":     {failed(), no, now, StatePending, ""},
		"resolve pending":         {newPush(), yes, now, StatePending, "push_pending"},
		"resolve delivered":       {delivered(), yes, now, StateDelivered, "push_delivered"},
		"resolve delivered, not ": {delivered(), no, now, StateDelivered, "push_delivered"},
	} {
		refusal := c.do(c.p, c.at)
		code := ""
		if refusal != nil {
			code = refusal.Code
		}
		if code != c.code || c.p.State != c.state {
			t.Errorf("%s: %q, %+v", name, code, c.p)
		}
		if refusal == nil && (c.p.LastReason != "r" || c.p.LastActor != "a" || c.p.State != StateDelivered && !c.p.NextAt.Equal(c.at)) {
			t.Errorf("%s: %+v", name, c.p)
		}
	}
	for _, resolve := range []func(*Push, time.Time) *domain.Error{yes, no} {
		if refusal := resolve(newPush().begun(t, pushNoon), pushNoon.Add(time.Second)); refusal == nil || refusal.Code != "push_pending" {
			t.Errorf("the result of a running attempt is known: %v", refusal)
		}
	}
	running := newPush().begun(t, pushNoon)
	if refusal := retry(running, pushNoon.Add(time.Second)); refusal != nil || running.Begin(pushNoon.Add(time.Second)) {
		t.Errorf("a retry began a second attempt beside a running one: %v", refusal)
	}
}

// The instance that sent an attempt may be dead: from the end of the attempt's time on an operator may tell its result.
func TestAnAttemptRunsForItsTimeOnly(t *testing.T) {
	p := newPush().begun(t, pushNoon)
	if refusal := p.Resolve(true, "r", "a", pushNoon.Add(Attempt-1)); refusal == nil {
		t.Error("the result of a running attempt is known")
	}
	if refusal := p.Resolve(true, "r", "a", pushNoon.Add(Attempt)); refusal != nil || p.State != StateDelivered {
		t.Errorf("%v, %+v", refusal, p)
	}
}

// The provider may have counted a push in doubt: it stays as it was sent, and is sent again, whatever its age, as long as a repetition is
// detected.
func TestP8_APushInDoubtStaysAsItWasSent(t *testing.T) {
	p := newPush().begun(t, pushNoon)
	p.Answered(Result{Outcome: Unknown}, 1, pushNoon)
	again := pushNoon.Add(time.Hour)
	p.begun(t, again).Answered(Result{Outcome: Refused}, 2, again)
	if p.Readdress(&events.Billing{Provider: events.ProviderStripe, Customer: "cus_2"}, "other", nil); p.State != StateFailed ||
		p.Customer != "cus_1" || p.Event != "calls" {
		t.Errorf("%+v", p)
	}
	p = newPush()
	last := p.Timestamp.Add(Oldest - time.Hour)
	p.begun(t, last).Answered(Result{Outcome: Unknown}, 1, last)
	if later := last.Add(2 * time.Hour); p.Stop(later) || !p.Begin(later) {
		t.Errorf("%+v", p)
	}
}

// A comparison is repeated if its pushes changed while the total was read.
func TestP8_SumsOfPushesDifferInEachMember(t *testing.T) {
	sums := func(delivered, unknown int64, undecided, onTheWay int) *Sums {
		return &Sums{Delivered: big.NewInt(delivered), Unknown: big.NewInt(unknown), Undecided: make([]Push, undecided), OnTheWay: onTheWay}
	}
	if !sums(7, 3, 1, 0).Equal(sums(7, 3, 1, 0)) {
		t.Error("equal sums differ")
	}
	for _, other := range []*Sums{sums(8, 3, 1, 0), sums(7, 4, 1, 0), sums(7, 3, 2, 0), sums(7, 3, 1, 1)} {
		if sums(7, 3, 1, 0).Equal(other) {
			t.Errorf("%+v is equal", other)
		}
	}
}

func TestP8_TotalsDecideAllOrNothing(t *testing.T) {
	for _, c := range []struct {
		total, delivered, unknown int64
		counted, decided          bool
	}{
		{10, 7, 3, true, true}, {7, 7, 3, false, true}, {8, 7, 3, false, false}, {7, 7, 0, false, false}, {5, 7, -2, true, true},
		{0, 7, 3, false, false},
	} {
		if counted, decided := OfTotal(big.NewInt(c.total), big.NewInt(c.delivered), big.NewInt(c.unknown)); counted != c.counted ||
			decided != c.decided {
			t.Errorf("%+v: %v %v", c, counted, decided)
		}
	}
}
