package projections_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/consume"
)

// correction is a correction of usage to an amount; below 0 it is a retraction.
func correction(tenant uuid.UUID, id, feature, ref string, amount int64) commands.Submitted {
	at := may.Add(40 * 24 * time.Hour) // in another period than the usage
	p := usageEvent(tenant, id, feature, 0, at)
	payload := any(events.Correction{EventID: id, Feature: feature, Amount: &amount, Timestamp: at, CorrectionRef: ref, Type: events.TypeCorrection})
	p.Subject = events.UsageCorrected
	if amount < 0 {
		p.Subject = events.UsageRetracted
		payload = events.Retraction{EventID: id, Feature: feature, Timestamp: at, CorrectionRef: ref, Type: events.TypeRetraction}
	}
	var err error
	if p.Payload, err = json.Marshal(payload); err != nil {
		panic(err)
	}
	p.Canonical = 1
	return commands.Submitted{Pending: p, Target: &commands.CorrectionTarget{Ref: ref, Feature: feature, Retraction: amount < 0}}
}

// correctionFixture is a tenant with usage of calls (METERED) and tokens (QUOTA), and two ways to record it.
type correctionFixture struct {
	*inlineLog
	tenant    uuid.UUID
	aggregate *consume.Runner
}

func newCorrectionFixture(t *testing.T) *correctionFixture {
	l := newInlineLog(newLogFixture(t), consume.NewHandover())
	f := &correctionFixture{inlineLog: l, tenant: tenantIn(4)}
	l.subscribe(f.tenant, may, grant("calls", domain.ResetMonthly), account("tokens", domain.ResetMonthly))
	l.append(usageEvent(f.tenant, "first", "calls", 1, may))
	f.aggregate, _ = l.aggregator(nil)
	f.settle()
	return f
}

// submit records events in one transaction, validated inline or later, and returns the codes of their refusals; "" if they are recorded.
func (f *correctionFixture) submit(inline bool, list ...commands.Submitted) (codes []string) {
	f.Helper()
	log := f.logFixture.log
	if inline {
		log = f.inlineLog.log
	}
	places, err := log.Submit(context.Background(), f.tenant, list)
	f.must(err)
	for _, p := range places {
		code := ""
		switch {
		case p.Refusal != nil:
			code = p.Refusal.Code
		case p.Status != commands.Appended:
			code = fmt.Sprint("status ", p.Status)
		}
		codes = append(codes, code)
	}
	return codes
}

func (f *correctionFixture) use(id, feature string, amount int64) commands.Submitted {
	p := usageEvent(f.tenant, id, feature, amount, may)
	p.Canonical = 1
	return commands.Submitted{Pending: p}
}

// settle brings the validator and the aggregator to the end.
func (f *correctionFixture) settle() {
	f.Helper()
	f.ready(4)
	f.process(f.aggregate, f.topic(events.TopicUsageValidated, 4, f.checkpoint(events.GroupAggregator, 4)))
}

// rejections returns the codes of the rejected events by their ids.
func (f *correctionFixture) rejections() map[string]string {
	codes := map[string]string{}
	for _, e := range f.read(events.TopicUsageDeadLetter, 4, 0) {
		if e.Subject == events.UsageRejected {
			r := decode[events.Rejected](f.logFixture, e)
			codes[r.EventID] = r.Code
		}
	}
	return codes
}

// figure returns amount and count of a feature in the month of the usage.
func (f *correctionFixture) figure(feature string) (amount, count int64) {
	f.Helper()
	a := f.aggregates()[aggregateKey{f.tenant, feature, "2026-05"}]
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
	f.must(f.pool.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::bigint FROM quota_accounts WHERE tenant_id = $1`, f.tenant).Scan(&used))
	return used
}

// 10, corrected to 7, to 12, and retracted: the figure follows, in the period of the usage, whatever the order of recording and judging.
func TestP2_CorrectionsReplaceTheAmountOfTheirTarget(t *testing.T) {
	for _, inline := range []bool{false, true} {
		t.Run(fmt.Sprint("inline ", inline), func(t *testing.T) {
			f := newCorrectionFixture(t)
			steps := []struct {
				list          []commands.Submitted
				amount, count int64
			}{
				{[]commands.Submitted{f.use("a", "tokens", 10), correction(f.tenant, "a1", "tokens", "a", 7)}, 7, 1},
				{[]commands.Submitted{correction(f.tenant, "a2", "tokens", "a", 12)}, 12, 1},
				{[]commands.Submitted{f.use("b", "tokens", 5), correction(f.tenant, "b1", "tokens", "b", 0), correction(f.tenant, "b2", "tokens", "b", 3)}, 15, 2},
				{[]commands.Submitted{correction(f.tenant, "a3", "tokens", "a", -1)}, 3, 1},
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
			if got := f.submit(inline, correction(f.tenant, "a4", "tokens", "a", 1)); got[0] != "correction_target_retracted" {
				t.Errorf("a correction after the retraction: %q", got)
			}
			f.wantFigure("tokens", 3, 1)
		})
	}
}

// A target that cannot be corrected is refused under the lock, and no row is stored.
func TestP3_CorrectionsWithoutATargetAreNotRecorded(t *testing.T) {
	f := newCorrectionFixture(t)
	f.submit(true, f.use("a", "calls", 10), correction(f.tenant, "a1", "calls", "a", 7))
	head := f.checkpoint(events.GroupValidator, 4)
	for name, c := range map[string]struct {
		event commands.Submitted
		code  string
	}{
		"unknown":                 {correction(f.tenant, "x", "calls", "nowhere", 1), "correction_target_unknown"},
		"of another tenant":       {correction(f.tenant, "x", "calls", "theirs", 1), "correction_target_unknown"},
		"of another feature":      {correction(f.tenant, "x", "tokens", "a", 1), "correction_ref_invalid"},
		"of a correction":         {correction(f.tenant, "x", "calls", "a1", 1), "correction_ref_invalid"},
		"a retraction of another": {correction(f.tenant, "x", "tokens", "a", -1), "correction_ref_invalid"},
	} {
		other := tenantIn(4)
		f.append(usageEvent(other, "theirs", "calls", 1, may))
		head++
		if got := f.submit(true, c.event); got[0] != c.code {
			t.Errorf("%s: %q, want %s", name, got[0], c.code)
		}
	}
	before := f.read(0, 4, 0)
	if got := f.submit(true, correction(f.tenant, "b1", "calls", "b", 1), f.use("b", "calls", 2)); got[0] != "correction_target_unknown" || got[1] != "" {
		t.Errorf("a correction before its target: %q", got)
	}
	if got := f.submit(true, correction(f.tenant, "b2", "calls", "b", -1), correction(f.tenant, "b3", "calls", "b", 4)); got[0] != "" || got[1] != "correction_target_retracted" {
		t.Errorf("a correction behind a retraction: %q", got)
	}
	if got := f.submit(true, correction(f.tenant, "b2", "calls", "b", -1)); got[0] != fmt.Sprint("status ", commands.Duplicate) {
		t.Errorf("the retraction again: %q", got)
	}
	recorded := 0
	for _, e := range f.read(events.TopicUsageRaw, 4, before[len(before)-1].Position.Number) {
		if e.TenantID == f.tenant {
			recorded++
		}
	}
	if recorded != 2 {
		t.Errorf("%d events were recorded, want the usage and its retraction", recorded)
	}
}

// A correction is rejected while its target does not count, and its retry is judged by the target as it stands then.
func TestP2_ACorrectionWaitsForItsTarget(t *testing.T) {
	f := newCorrectionFixture(t)
	f.submit(false, f.use("a", "later", 10), correction(f.tenant, "a1", "later", "a", 4))
	f.settle()
	if got := f.rejections(); got["a"] != "feature_not_found" || got["a1"] != "correction_target_not_counted" {
		t.Fatalf("rejections %v", got)
	}
	raw := f.read(events.TopicUsageRaw, 4, 0)
	letters := map[string]uuid.UUID{}
	for _, e := range f.read(events.TopicUsageDeadLetter, 4, 0) {
		letters[decode[events.Rejected](f.logFixture, e).EventID] = e.EventID
	}
	f.subscribe(f.tenant, may, grant("later", domain.ResetMonthly))
	a, a1 := raw[len(raw)-2], raw[len(raw)-1]
	f.append(retry(f.logFixture, f.tenant, letters["a1"], a1, 1)) // before its target
	f.settle()
	f.wantFigure("later", 0, 0)
	f.append(retry(f.logFixture, f.tenant, letters["a"], a, 1), retry(f.logFixture, f.tenant, letters["a1"], a1, 2))
	f.settle()
	f.wantFigure("later", 4, 1)
	f.append(retry(f.logFixture, f.tenant, letters["a1"], a1, 3), correction(f.tenant, "a2", "later", "a", 6).Pending)
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

// judge applies one event as the validator does.
func (m *usageModel) judge(s *commands.Submitted, id string, amount int64) {
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
	commands.Submitted
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
			d.Submitted = correction(f.tenant, d.id, featureOf(ref), ref, d.amount-rng.Int64N(2)*rng.Int64N(2)*30)
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

// Any mix of usage, corrections and retractions in any groups, judged inline or later, gives the figures of a simple model.
func TestP2_CorrectionsAgreeWithAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(tier.Seed(t), 0))
	f := newCorrectionFixture(t)
	m := &usageModel{amount: map[string]int64{}, retracted: map[string]bool{}}
	var queue, drawn []drawnEvent
	var ids []string
	catchUp := func() {
		for _, w := range queue {
			m.judge(&w.Submitted, w.id, w.amount)
		}
		queue = nil
	}
	for step := range 120 {
		drawn, ids = f.draw(rng, step, ids)
		var list []commands.Submitted
		for _, d := range drawn {
			list = append(list, d.Submitted)
		}
		for i, code := range f.submit(rng.IntN(2) == 0, list...) {
			if code == "" {
				queue = append(queue, drawn[i])
			}
		}
		if behind := f.read(events.TopicUsageRaw, 4, f.checkpoint(events.GroupValidator, 4)); len(behind) == 0 {
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
	f.must(f.pool.QueryRow(t.Context(), `SELECT count(*) FROM usage_corrections`).Scan(&rows))
	if rows != m.corrections || rows < 50 {
		t.Errorf("%d corrections are applied, want %d, and 50 at least", rows, m.corrections)
	}
}

// A retry of a correction that has a verdict already has no effect, also on the corrections behind it in a batch.
func TestP2_ARetriedCorrectionChangesNothingAgain(t *testing.T) {
	f := newCorrectionFixture(t)
	f.submit(false, f.use("a", "calls", 10), correction(f.tenant, "a1", "calls", "a", 7), correction(f.tenant, "a2", "calls", "a", 12))
	f.settle()
	f.wantFigure("calls", 13, 2)
	raw := f.read(events.TopicUsageRaw, 4, 0)
	f.append(retry(f.logFixture, f.tenant, newID(), raw[len(raw)-2], 1), correction(f.tenant, "a3", "calls", "a", 15).Pending)
	f.settle()
	f.wantFigure("calls", 16, 2)
}
