package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections/usage"
)

const (
	pipeSteps = 36
	pipeSeeds = 10_000
)

// TestP8_InterleavedClosesAgreeWithAModel runs the decisions of the service in 10,000 orders: usage, corrections, retractions, verdicts that lag, parked
// events, retries, discards, closes, freezes, reopenings, decisions, policies, flips to a fold that counts in another way, and crashes. After each step, row = F + Σ
// adjustments, F is as it was, and each event is in F or in exactly one adjustment of the snapshot.
func TestP8_InterleavedClosesAgreeWithAModel(t *testing.T) {
	first, n := seedsOf(t)
	if n != 1 && os.Getenv("METERPLEX_TEST_SEEDS") == "" {
		n = pipeSeeds
	}
	began, seen := time.Now(), map[string]int{}
	for seed := first; seed < first+n; seed++ {
		p := newPeriodPipe(seed, seen)
		if p.run(); p.wrong != nil {
			t.Fatalf("seed %d: %v\n%s\nagain: METERPLEX_SIM_SEED=%d go test ./infra/simulation -run %s", seed, p.wrong, strings.Join(p.trace, "\n"), seed, t.Name())
		}
	}
	t.Logf("seeds %d to %d in %s: %v", first, first+n-1, time.Since(began).Round(time.Millisecond), seen)
	for _, what := range []string{"LATE_USAGE PENDING", "LATE_COMMIT PENDING", "RETRY PENDING", "CORRECTION PENDING", "RETRACTION PENDING", "REBUILD PENDING", "LATE_USAGE VOID", "RETRY VOID",
		"refused as late", "closed despite dead_letters", "closed despite rebuilds", "decided VOID", "decided APPROVED", "decided WAIVED", "closed again", "discarded", "reconciliation of late usage", "retried while closing",
		"crash of the validator", "lost result of a saga"} {
		if n >= pipeSeeds && seen[what] < 20 {
			t.Errorf("%d × %s in %d seeds", seen[what], what, n)
		}
	}
}

func (p *periodPipe) run() {
	steps := []struct {
		weight int
		do     func()
	}{{8, p.ingest}, {6, p.validate}, {6, p.aggregate}, {5, p.saga}, {4, p.retry}, {3, p.close}, {1, p.discard}, {2, p.reopen}, {1, p.decide}, {1, p.changePolicy}, {1, p.flip}, {2, p.reconcileLate},
		{1, func() { p.grant("calls", "extra") }}}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for range pipeSteps {
		at := p.rng.IntN(total)
		for _, s := range steps {
			if at -= s.weight; at < 0 {
				s.do()
				break
			}
		}
		if p.check(); p.wrong != nil {
			return
		}
	}
	p.end()
	p.settle()
	if p.reopen(); p.rng.IntN(2) == 0 { // some letters are open at the end of the next close, and are retried after it
		p.end()
		p.closeDespite()
		p.end()
	}
}

// end lets all pipes and sagas finish, and then the open letters.
func (p *periodPipe) end() {
	for n := 0; n < 8 && p.wrong == nil; n++ {
		p.validate()
		p.aggregate()
		p.saga()
		if n%2 == 1 {
			p.retry()
		}
		p.check()
	}
}

// closeDespite closes May despite dead letters.
func (p *periodPipe) closeDespite() {
	p.note("close 2026-05 again")
	_, err := p.closes.Close(context.Background(), commands.Request{}, commands.ClosePeriod{TenantID: pipeTenant, PeriodKey: "2026-05", Reason: "r", Despite: domain.Waivable()})
	p.refused(err)
	for range 4 {
		p.validate()
		p.aggregate()
		p.saga()
		p.check()
	}
}

// ingest records an event. Half of the usage is checked as ingest does; the other half by a history from before the close.
func (p *periodPipe) ingest() {
	id := fmt.Sprint("e", len(p.log)+1)
	at := pipeMay.AddDate(0, 0, p.rng.IntN(30))
	if p.rng.IntN(8) == 0 {
		at = at.AddDate(0, -1, 0)
	}
	e := events.Pending{EventID: p.newID(), TenantID: pipeTenant, Subject: events.UsageRecorded, DedupeKey: events.KeyUsage(id), OccurredAt: at}
	text, feature := at.Format(time.RFC3339), "calls"
	if p.rng.IntN(8) == 0 {
		feature = "extra" // without a grant at first
	}
	kind := p.rng.IntN(8)
	late := p.periods.RefuseLate(domain.PeriodKey(domain.ResetMonthly, at)) != nil
	switch {
	case kind < 2 && len(p.model.ids) > 0:
		ref := p.target()
		e.Subject = events.UsageCorrected
		e.Payload = fmt.Appendf(nil, `{"amount":%d,"correctionRef":"%s","eventId":"%s","feature":"calls","timestamp":"%s","type":"correction"}`, p.rng.IntN(50), ref, id, text)
		if kind == 1 && p.rng.IntN(2) == 0 {
			e.Subject = events.UsageRetracted
			e.Payload = fmt.Appendf(nil, `{"correctionRef":"%s","eventId":"%s","feature":"calls","timestamp":"%s","type":"retraction"}`, ref, id, text)
		}
	case kind < 4:
		by := events.ByCommit
		if kind == 3 && !late {
			by = events.ByEnforce
		}
		subscription, _, refusal := domain.Entitled(p.granted, int64(len(p.log)), "calls", at)
		if refusal != nil {
			p.fail("no grant: %v", refusal)
			return
		}
		e.Subject = events.UsageAdmitted
		var err error
		if e.Payload, err = codec.AdmittedJSON(&events.Admitted{EventID: id, Feature: "calls", Amount: int64(1 + p.rng.IntN(50)), Timestamp: at, Type: events.TypeUsage,
			Admitted: events.Admission{By: by, SubscriptionID: subscription.ID, FeatureType: domain.FeatureQuota, PeriodKey: domain.PeriodKey(domain.ResetMonthly, at)}}); err != nil {
			p.fail("%w", err)
		}
	case late && p.rng.IntN(2) == 0:
		p.note("refused %s", text)
		return
	default:
		e.Payload = fmt.Appendf(nil, `{"amount":%d,"eventId":"%s","feature":"%s","timestamp":"%s","type":"usage"}`, 1+p.rng.IntN(50), id, feature, text)
	}
	p.note("%s", e.Payload)
	p.append(e)
}

// target returns the eventId of recorded usage, mostly of a late one.
func (p *periodPipe) target() string {
	var ids []string
	for i := range p.log {
		if u := p.model.recorded[int64(i+1)]; u != nil && u.Type == events.TypeUsage && u.Feature == "calls" {
			ids = append(ids, u.EventID)
		}
	}
	if len(ids) == 0 {
		return "none"
	}
	return ids[p.rng.IntN(len(ids))]
}

// anyLetter returns a dead letter; Nil without one.
func (p *periodPipe) anyLetter() uuid.UUID {
	if len(p.letters) == 0 {
		return uuid.Nil
	}
	return p.letters[p.rng.IntN(len(p.letters))]
}

func (p *periodPipe) retry() {
	id := p.anyLetter()
	if id == uuid.Nil {
		return
	}
	l := pipeChange{p}.letter(id)
	if l.Status != events.StatusFailed && p.rng.IntN(4) > 0 {
		return
	}
	body, err := json.Marshal(events.Retry{DeadLetterID: id, Attempt: l.Attempts + 1})
	if err != nil {
		p.fail("%w", err)
	}
	request := events.Envelope{EventID: p.newID(), TenantID: pipeTenant, Payload: body}
	p.note("retry of %d, which is %s", l.RawPosition, l.Status)
	for range 1 + p.rng.IntN(2) { // the router may execute it twice
		faults, err := p.retries.ExecuteRetries(pipeChange{p}, []events.Envelope{request})
		if p.refused(errors.Join(append(faults, err)...)) {
			return
		}
	}
	if l.Status == events.StatusFailed && p.model.recorded[l.RawPosition].Type == events.TypeUsage && p.periods.Last("2026-05").State() == domain.StateClosing {
		p.did("retried while closing")
	}
}

// refused reports whether a command was refused; another error fails the test.
func (p *periodPipe) refused(err error) bool {
	if refusal := (*domain.Error)(nil); errors.As(err, &refusal) {
		return true
	}
	if err != nil {
		p.fail("%w", err)
	}
	return false
}

func (p *periodPipe) discard() {
	if id := p.anyLetter(); id != uuid.Nil {
		p.note("discard of %d", pipeChange{p}.letter(id).RawPosition)
		if _, err := p.retries.Discard(context.Background(), commands.Request{}, id, pipeTenant, "r"); !p.refused(err) {
			p.did("discarded")
		}
	}
}

func (p *periodPipe) close() {
	in := commands.ClosePeriod{TenantID: pipeTenant, PeriodKey: p.period(), Reason: "r"}
	if p.rng.IntN(2) == 0 {
		in.Despite = domain.Waivable()
	}
	p.note("close %s", in.PeriodKey)
	for range 1 + p.rng.IntN(2) {
		if c, err := p.closes.Close(context.Background(), commands.Request{}, in); !p.refused(err) && !c.Known && c.Snapshot > 1 {
			p.did("closed again")
		}
	}
}

// period returns the key of a period, mostly of May.
func (p *periodPipe) period() string {
	if p.rng.IntN(6) == 0 {
		return "2026-04"
	}
	return "2026-05"
}

func (p *periodPipe) reopen() {
	key := p.period()
	p.note("reopen %s", key)
	_, err := p.closes.Reopen(context.Background(), commands.Request{}, pipeTenant, key, "r")
	p.refused(err)
}

// decide decides one adjustment, or all of a period.
func (p *periodPipe) decide() {
	if len(p.adjustments) == 0 {
		return
	}
	a := &p.adjustments[p.rng.IntN(len(p.adjustments))]
	in := commands.DecideAdjustments{IDs: []uuid.UUID{a.id}, TenantID: pipeTenant, Reason: "r", Decision: commands.DecisionApprove}
	if p.rng.IntN(2) == 0 {
		in.Decision = commands.DecisionWaive
	}
	if p.rng.IntN(2) == 0 {
		in.IDs, in.Scope = nil, &events.AdjustmentScope{PeriodKey: a.PeriodKey, UpTo: events.Position{Partition: events.PartitionOf(pipeTenant), Number: a.position}}
	}
	p.note("%s %+v", in.Decision, in.Scope)
	_, err := p.closes.Decide(context.Background(), commands.Request{}, in)
	p.refused(err)
}

func (p *periodPipe) changePolicy() {
	policy := []string{events.LateUsageReject, events.LateUsageAdjust, events.LateUsageAdjust}[p.rng.IntN(3)]
	p.note("policy %s", policy)
	id := p.newID()
	at := p.append(events.Pending{EventID: id, Subject: events.TenantChanged, DedupeKey: events.KeyEvent(id), Payload: fmt.Appendf(nil, `{"lateUsage":"%s"}`, policy)})
	p.periods.Policies = append(p.periods.Policies, domain.LatePolicy{FromPosition: at[0].Number, LateUsage: policy})
}

// flip begins a rebuild, or ends it: the rows are those of the other version of the fold, and closed periods are to be reconciled.
func (p *periodPipe) flip() {
	if p.rebuilding = !p.rebuilding; p.rebuilding {
		p.note("rebuild")
		return
	}
	p.flips, p.version = p.flips+1, 1-p.version
	p.note("flip to %s", pipeVersions[p.version].Name)
	p.rows = map[usage.Key]pipeSum{}
	for _, v := range p.model.verdicts {
		if v.folded {
			p.rows[v.key] = p.rows[v.key].add(v.deltas[p.version])
		}
	}
	p.flipped = p.newID()
	p.sagas = append(p.sagas, &domain.Saga{Kind: commands.SagaReconcile, TenantID: pipeTenant, Key: strconv.Itoa(p.flips) + "/" + p.flipped.String(), Step: "reconcile"})
}

// saga runs a step of an open saga. Its result may be lost.
func (p *periodPipe) saga() {
	open := slices.DeleteFunc(slices.Clone(p.sagas), func(s *domain.Saga) bool { return !s.Open() })
	if len(open) == 0 {
		return
	}
	s := open[p.rng.IntN(len(open))]
	kind := p.closes.CloseKind()
	if s.Kind == commands.SagaReconcile {
		kind = p.closes.ReconcileKind()
	}
	p.note("%s of %s", s.Step, s.Key)
	result, err := kind.Run(context.Background(), s)
	if err != nil {
		p.fail("the step %s: %w", s.Step, err)
	}
	if result.Drift {
		p.fail("drift: %s", result.Reason)
	}
	// A repeated run proposes no line again that differs anew: the next reconciliation does.
	if flip, _, _ := strings.Cut(s.Key, "/"); s.Kind == commands.SagaReconcile && flip == strconv.Itoa(p.flips) && !p.ran[s.Key] {
		p.reconciled, p.ran[s.Key] = p.flips, true
	}
	if p.rng.IntN(6) == 0 {
		p.did("lost result of a saga")
		return
	}
	s.Apply(result, pipeMay)
}

// check compares the tables with the model.
func (p *periodPipe) check() {
	rows := map[usage.Key]pipeSum{}
	for _, v := range p.model.verdicts {
		if v.folded {
			rows[v.key] = rows[v.key].add(v.deltas[p.version])
		}
	}
	for key, s := range rows {
		if p.rows[key] != s {
			p.fail("the rows are %s instead of %s", describeSums(p.rows), describeSums(rows))
		}
	}
	if left := p.unreconciled(); p.reconciled == p.flips && len(left) > 0 {
		p.fail("row ≠ F + Σ adjustments: %s", describeSums(left))
	}
	for i := range p.snapshots {
		s := &p.snapshots[i]
		if now := describeFigures(&s.Figures); now != p.frozen[i] {
			p.fail("the figures of %s are %s, they were frozen as %s", s.PeriodKey, now, p.frozen[i])
		}
		p.checkSnapshot(s)
	}
	for _, a := range p.adjustments {
		if snapshot, frozen := p.model.closed(a.PeriodKey, int64(len(p.log)+1)); a.state == events.AdjustmentPending && (snapshot != a.Snapshot || a.Kind == events.RebuiltFigure && !frozen) {
			p.fail("the adjustment %+v is pending", a)
		}
	}
}

// checkSnapshot checks that the figures are those as known at the cut, and that each event of the period is in them or in one adjustment.
func (p *periodPipe) checkSnapshot(s *domain.Snapshot) {
	if now, _ := p.model.closed(s.PeriodKey, int64(len(p.log)+1)); now != s.Snapshot {
		return
	}
	version := slices.Index(pipeVersions.Names(), s.Figures.Logic)
	known := p.figures(p.model.frozen(s.PeriodKey, s.Cut, version))
	if difference := known.Differs(&s.Figures); difference != "" {
		p.fail("F of snapshot %d of %s: %s", s.Snapshot, s.PeriodKey, difference)
	}
	for _, v := range p.model.verdicts {
		if v.PeriodKey != s.PeriodKey {
			continue
		}
		rows, want := 0, 0
		if snapshot, _ := p.model.closed(v.PeriodKey, v.cause); snapshot == s.Snapshot {
			want = 1
		}
		for _, a := range p.adjustments {
			if a.PeriodKey == s.PeriodKey && a.Snapshot == s.Snapshot && a.Recorded == v.RawPosition && a.Kind != events.RebuiltFigure {
				rows++
				if a.Amount.Int64() != v.Amount || a.EventCount != v.Count || a.SubscriptionID != v.ValidatedSubscriptionID || a.Feature != v.Feature {
					p.fail("%s has the adjustment %+v", v.EventID, a)
				}
			}
		}
		if rows != want || want == 1 && v.cause <= s.Cut {
			p.fail("%s, whose cause is %d, has %d adjustments of snapshot %d with the cut %d", v.EventID, v.cause, rows, s.Snapshot, s.Cut)
		}
	}
}

func describeFigures(f *domain.Figures) string {
	var lines []string
	for _, l := range f.Lines {
		lines = append(lines, fmt.Sprintf("%s of %x: %s in %d", l.Feature, l.SubscriptionID[:1], l.Amount, l.EventCount))
	}
	return strings.Join(lines, "; ")
}
