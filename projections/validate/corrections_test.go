package validate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

// Usage that is parked cannot be corrected; usage that was corrected before cannot be discarded, and counts once it is retried.
func TestP2_ParkedUsageAndItsCorrections(t *testing.T) {
	s := NewLetters(t)
	tenant := NewID()
	p := events.PartitionOf(tenant)
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
	broken, _ := s.BrokenAggregator()
	s.Append(Usage(tenant, "good", "calls", 3, May), Usage(tenant, "bad", "panics", 10, May),
		Correction(tenant, "bad1", "panics", "bad", 4).Pending, Usage(tenant, "other", "panics", 5, May))
	s.Drain(s.Validating, broken, s.Lettering)
	s.Append(Correction(tenant, "bad2", "panics", "bad", 6).Pending, Correction(tenant, "good1", "calls", "good", 2).Pending)
	s.Drain(s.Validating, broken, s.Lettering)
	letters := s.LettersByEvent(tenant, events.StatusFailed)
	if c := s.Counts(p); c.Parked != 3 || c.Rejected != 1 || len(letters) != 4 {
		t.Fatalf("%+v, dead letters %v", c, letters)
	}
	RefusedWith(t, "dead_letter_has_corrections", s.Discard(tenant, letters["bad"]))
	RefusedWith(t, "dead_letter_has_corrections", s.Discard(tenant, letters["bad1"]))
	s.Append(Correction(tenant, "other1", "panics", "other", -1).Pending) // not decided yet
	RefusedWith(t, "dead_letter_has_corrections", s.Discard(tenant, letters["other"]))
	s.Drain(s.Validating, s.Lettering)
	s.Must(s.Discard(tenant, letters["other"])) // its retraction is rejected, because it was parked
	for _, name := range []string{"bad", "bad1"} {
		s.Must(s.RetryNow(tenant, letters[name]))
	}
	s.Drain(s.Executing)
	s.Settle()
	s.Must(s.RetryNow(tenant, s.LettersByEvent(tenant, events.StatusFailed)["bad2"]))
	s.Drain(s.Executing)
	s.Settle()
	s.CheckIdentity()
	for feature, want := range map[string]Aggregate{"calls": {Amount: "2", Count: 1}, "panics": {Amount: "6", Count: 1}} {
		if got := s.Figure(tenant, feature, "2026-05"); got.Amount != want.Amount || got.Count != want.Count {
			t.Errorf("%s: %+v, want %+v", feature, got, want)
		}
	}
	y := RebuildsOf(s.Pipeline)
	for _, projection := range []string{projections.ProjectionUsage, projections.ProjectionEntitlements, projections.ProjectionSeries} {
		r := y.Start(repair.StartRebuild{Projection: projection})
		y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(10))
		if projection == projections.ProjectionUsage {
			if err := y.SameRows(r, 1); err != nil {
				t.Error(err)
			}
		}
	}
}

// correctionFixture is a tenant with usage of calls (METERED) and tokens (QUOTA), and two ways to record it.
type correctionFixture struct {
	*Inline
	tenant    uuid.UUID
	aggregate *consume.Runner
}

func newCorrectionFixture(t *testing.T) *correctionFixture {
	l := NewInline(NewDatabase(t))
	f := &correctionFixture{Inline: l, tenant: TenantIn(4)}
	l.Subscribe(f.tenant, May, Grant("calls", domain.ResetMonthly), Account("tokens", domain.ResetMonthly))
	l.Append(Usage(f.tenant, "first", "calls", 1, May))
	f.aggregate, _ = l.Aggregator(nil)
	f.settle()
	return f
}

// submit records events in one transaction, validated inline or later, and returns the codes of their refusals; "" if they are recorded.
func (f *correctionFixture) submit(inline bool, list ...metering.Submitted) (codes []string) {
	f.Helper()
	log := f.Database.EventLog
	if inline {
		log = f.Inline.Inlined
	}
	outcomes, err := log.Submit(context.Background(), f.tenant, list)
	f.Must(err)
	for _, p := range outcomes {
		code := ""
		switch {
		case p.Refusal != nil:
			code = p.Refusal.Code
		case p.Status != metering.Appended:
			code = fmt.Sprint("status ", p.Status)
		}
		codes = append(codes, code)
	}
	return codes
}

func (f *correctionFixture) use(id, feature string, amount int64) metering.Submitted {
	p := Usage(f.tenant, id, feature, amount, May)
	p.Canonical = 1
	return metering.Submitted{Pending: p}
}

// settle brings the validator and the aggregator to the end.
func (f *correctionFixture) settle() {
	f.Helper()
	f.Ready(4)
	f.Process(f.aggregate, f.Topic(events.TopicUsageValidated, 4, f.Checkpoint(events.GroupAggregator, 4)))
}

// rejections returns the codes of the rejected events by their ids.
func (f *correctionFixture) rejections() map[string]string {
	codes := map[string]string{}
	for _, e := range f.Read(events.TopicUsageDeadLetter, 4, 0) {
		if e.Subject == events.UsageRejected {
			r := Decode[events.Rejected](f.Database, e)
			codes[r.EventID] = r.Code
		}
	}
	return codes
}

// figure returns amount and count of a feature in the month of the usage.
func (f *correctionFixture) figure(feature string) (amount, count int64) {
	f.Helper()
	a := f.Figure(f.tenant, feature, "2026-05")
	amount, _ = strconv.ParseInt(a.Amount, 10, 64)
	return amount, a.Count
}

func (f *correctionFixture) wantFigure(feature string, amount, count int64) {
	f.Helper()
	if a, n := f.figure(feature); a != amount || n != count {
		f.Errorf("%s: %d in %d events, want %d in %d", feature, a, n, amount, count)
	}
}

// used returns the used amount of the account of tokens.
func (f *correctionFixture) used() (used int64) {
	f.Helper()
	f.Must(f.Pool.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::bigint FROM quota_accounts WHERE tenant_id = $1`,
		f.tenant).Scan(&used))
	return used
}

// 10, corrected to 7, to 12, and retracted: the figure follows, in the period of the usage, whatever the order of recording and deciding.
func TestP2_CorrectionsReplaceTheAmountOfTheirTarget(t *testing.T) {
	for _, inline := range []bool{false, true} {
		t.Run(fmt.Sprint("inline ", inline), func(t *testing.T) {
			f := newCorrectionFixture(t)
			steps := []struct {
				list          []metering.Submitted
				amount, count int64
			}{
				{[]metering.Submitted{f.use("a", "tokens", 10), Correction(f.tenant, "a1", "tokens", "a", 7)}, 7, 1},
				{[]metering.Submitted{Correction(f.tenant, "a2", "tokens", "a", 12)}, 12, 1},
				{[]metering.Submitted{f.use("b", "tokens", 5), Correction(f.tenant, "b1", "tokens", "b", 0),
					Correction(f.tenant, "b2", "tokens", "b", 3)}, 15, 2},
				{[]metering.Submitted{Correction(f.tenant, "a3", "tokens", "a", -1)}, 3, 1},
			}
			for _, s := range steps {
				for i, code := range f.submit(inline, s.list...) {
					if code != "" {
						t.Fatalf("%s: %s", s.list[i].DedupeKey, code)
					}
				}
				f.settle()
				f.wantFigure("tokens", s.amount, s.count)
				if used := f.used(); used != s.amount {
					t.Errorf("the account has %d used, want %d", used, s.amount)
				}
			}
			if got := f.submit(inline, Correction(f.tenant, "a4", "tokens", "a", 1)); got[0] != "correction_target_retracted" {
				t.Errorf("a correction after the retraction: %q", got)
			}
			f.wantFigure("tokens", 3, 1)
		})
	}
}

// A target that cannot be corrected is refused under the lock, and no row is stored.
func TestP3_CorrectionsWithoutATargetAreNotRecorded(t *testing.T) {
	f := newCorrectionFixture(t)
	f.submit(true, f.use("a", "calls", 10), Correction(f.tenant, "a1", "calls", "a", 7))
	head := f.Checkpoint(events.GroupValidator, 4)
	for name, c := range map[string]struct {
		event metering.Submitted
		code  string
	}{
		"unknown":                 {Correction(f.tenant, "x", "calls", "nowhere", 1), "correction_target_unknown"},
		"of another tenant":       {Correction(f.tenant, "x", "calls", "theirs", 1), "correction_target_unknown"},
		"of another feature":      {Correction(f.tenant, "x", "tokens", "a", 1), "correction_ref_invalid"},
		"of a correction":         {Correction(f.tenant, "x", "calls", "a1", 1), "correction_ref_invalid"},
		"a retraction of another": {Correction(f.tenant, "x", "tokens", "a", -1), "correction_ref_invalid"},
	} {
		other := TenantIn(4)
		f.Append(Usage(other, "theirs", "calls", 1, May))
		head++
		if got := f.submit(true, c.event); got[0] != c.code {
			t.Errorf("%s: %q, want %s", name, got[0], c.code)
		}
	}
	before := f.Read(0, 4, 0)
	if got := f.submit(true, Correction(f.tenant, "b1", "calls", "b", 1), f.use("b", "calls", 2)); got[0] != "correction_target_unknown" ||
		got[1] != "" {
		t.Errorf("a correction before its target: %q", got)
	}
	if got := f.submit(true, Correction(f.tenant, "b2", "calls", "b", -1), Correction(f.tenant, "b3", "calls", "b", 4)); got[0] != "" ||
		got[1] != "correction_target_retracted" {
		t.Errorf("a correction behind a retraction: %q", got)
	}
	if got := f.submit(true, Correction(f.tenant, "b2", "calls", "b", -1)); got[0] != fmt.Sprint("status ", metering.Duplicate) {
		t.Errorf("the retraction again: %q", got)
	}
	recorded := 0
	for _, e := range f.Read(events.TopicUsageRaw, 4, before[len(before)-1].Position.Number) {
		if e.TenantID == f.tenant {
			recorded++
		}
	}
	if recorded != 2 {
		t.Errorf("%d events were recorded, want the usage and its retraction", recorded)
	}
}

// A correction is rejected while its target does not count, and its retry is decided by the target as it stands then.
func TestP2_ACorrectionWaitsForItsTarget(t *testing.T) {
	f := newCorrectionFixture(t)
	f.submit(false, f.use("a", "later", 10), Correction(f.tenant, "a1", "later", "a", 4))
	f.settle()
	if got := f.rejections(); got["a"] != "feature_not_found" || got["a1"] != "correction_target_not_counted" {
		t.Fatalf("rejections %v", got)
	}
	raw := f.Read(events.TopicUsageRaw, 4, 0)
	letters := map[string]uuid.UUID{}
	for _, e := range f.Read(events.TopicUsageDeadLetter, 4, 0) {
		letters[Decode[events.Rejected](f.Database, e).EventID] = e.EventID
	}
	f.Subscribe(f.tenant, May, Grant("later", domain.ResetMonthly))
	a, a1 := raw[len(raw)-2], raw[len(raw)-1]
	f.Append(retry(f.Database, f.tenant, letters["a1"], a1, 1)) // before its target
	f.settle()
	f.wantFigure("later", 0, 0)
	f.Append(retry(f.Database, f.tenant, letters["a"], a, 1), retry(f.Database, f.tenant, letters["a1"], a1, 2))
	f.settle()
	f.wantFigure("later", 4, 1)
	f.Append(retry(f.Database, f.tenant, letters["a1"], a1, 3), Correction(f.tenant, "a2", "later", "a", 6).Pending)
	f.settle()
	f.wantFigure("later", 6, 1)
}

// usageModel has the expected figures.
type usageModel struct {
	amount      map[string]int64 // of usage that counts
	retracted   map[string]bool
	corrections int
}

// rejectedAmount is that of usage of a feature that is not granted.
const rejectedAmount = 13

// decide applies one event as the validator does.
func (m *usageModel) decide(s *metering.Submitted, id string, amount int64) {
	if s.Target == nil {
		if amount != rejectedAmount {
			m.amount[id] = amount
		}
		return
	}
	ref := s.Target.Ref
	if _, counts := m.amount[ref]; !counts || m.retracted[ref] {
		return
	}
	m.corrections++
	if s.Target.Retraction {
		m.retracted[ref], m.amount[ref] = true, 0
	} else {
		m.amount[ref] = amount
	}
}

// drawnEvent is an event of a group.
type drawnEvent struct {
	metering.Submitted
	id     string
	amount int64
}

// draw draws a group of usage, corrections and retractions of the last usage, and returns all ids of usage so far. The length of an id
// decides on its feature.
func (f *correctionFixture) draw(rng *rand.Rand, step int, ids []string) ([]drawnEvent, []string) {
	var drawn []drawnEvent
	for n := range 1 + rng.IntN(5) {
		d := drawnEvent{id: fmt.Sprint("e", step, "-", n), amount: rng.Int64N(20)}
		switch {
		case len(ids) > 0 && rng.IntN(3) > 0:
			ref := ids[max(0, len(ids)-1-rng.IntN(6))]
			d.Submitted = Correction(f.tenant, d.id, featureOf(ref), ref, d.amount-rng.Int64N(2)*rng.Int64N(2)*30)
		case d.amount == rejectedAmount:
			d.Submitted, ids = f.use(d.id, "unknown", d.amount), append(ids, d.id)
		default:
			d.amount += 14 * max(0, 1-d.amount) // usage is 1 at least
			d.Submitted, ids = f.use(d.id, featureOf(d.id), d.amount), append(ids, d.id)
		}
		drawn = append(drawn, d)
	}
	return drawn, ids
}

func featureOf(id string) string { return []string{"calls", "tokens"}[len(id)%2] }

// Any mix of usage, corrections and retractions in any groups, decided inline or later, gives the figures of a simple model.
func TestP2_CorrectionsAgreeWithAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(tier.Seed(t), 0))
	f := newCorrectionFixture(t)
	m := &usageModel{amount: map[string]int64{}, retracted: map[string]bool{}}
	var queue, drawn []drawnEvent
	var ids []string
	catchUp := func() {
		for _, w := range queue {
			m.decide(&w.Submitted, w.id, w.amount)
		}
		queue = nil
	}
	for step := range 120 {
		drawn, ids = f.draw(rng, step, ids)
		var list []metering.Submitted
		for _, d := range drawn {
			list = append(list, d.Submitted)
		}
		for i, code := range f.submit(rng.IntN(2) == 0, list...) {
			if code == "" {
				queue = append(queue, drawn[i])
			}
		}
		if behind := f.Read(events.TopicUsageRaw, 4, f.Checkpoint(events.GroupValidator, 4)); len(behind) == 0 {
			catchUp()
		} else if rng.IntN(3) == 0 {
			f.settle()
			catchUp()
		}
	}
	f.settle()
	catchUp()
	sums, counts := map[string]int64{"calls": 1}, map[string]int64{"calls": 1} // the fixture's own
	for id, amount := range m.amount {
		feature := featureOf(id)
		sums[feature] += amount
		if !m.retracted[id] {
			counts[feature]++
		}
	}
	for _, feature := range []string{"calls", "tokens"} {
		f.wantFigure(feature, sums[feature], counts[feature])
	}
	if used := f.used(); used != sums["tokens"] {
		t.Errorf("the account has %d used, want %d", used, sums["tokens"])
	}
	var rows int
	f.Must(f.Pool.QueryRow(t.Context(), `SELECT count(*) FROM usage_corrections`).Scan(&rows))
	if rows != m.corrections || rows < 50 {
		t.Errorf("%d corrections are applied, want %d, and 50 at least", rows, m.corrections)
	}
}

// A retry of a correction that has a verdict already has no effect, also on the corrections behind it in a batch.
func TestP2_ARetriedCorrectionChangesNothingAgain(t *testing.T) {
	f := newCorrectionFixture(t)
	f.submit(false, f.use("a", "calls", 10), Correction(f.tenant, "a1", "calls", "a", 7), Correction(f.tenant, "a2", "calls", "a", 12))
	f.settle()
	f.wantFigure("calls", 13, 2)
	raw := f.Read(events.TopicUsageRaw, 4, 0)
	f.Append(retry(f.Database, f.tenant, NewID(), raw[len(raw)-2], 1), Correction(f.tenant, "a3", "calls", "a", 15).Pending)
	f.settle()
	f.wantFigure("calls", 16, 2)
}
