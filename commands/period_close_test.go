package commands

import (
	"errors"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// figuresOf returns figures of calls by a generation, one line for each amount.
func figuresOf(generation int, amounts ...int64) domain.Figures {
	f := domain.Figures{Generation: generation, Logic: "usage_aggregates/v1", LogicHash: "hash of usage_aggregates/v1", Late: &domain.LateVerdicts{UpTo: 7}}
	for i, amount := range amounts {
		f.Lines = append(f.Lines, domain.FigureLine{Feature: "calls", SubscriptionID: uuid.UUID{byte(i >> 8), byte(i)}, Amount: big.NewInt(amount), EventCount: 1, LastEventAt: noon})
	}
	return f
}

// closeSaga returns the saga of the first close of May at a step.
func closeSaga(step string, despite ...string) *domain.Saga {
	return &domain.Saga{Kind: SagaPeriodClose, TenantID: activeTenant, Key: "2026-05/1", Step: step, Despite: despite}
}

func TestP8_ACloseWaitsForAllConditions(t *testing.T) {
	all := []string{domain.MissingAggregation, domain.MissingLetters, domain.MissingRetries, domain.MissingRebuilds}
	for name, c := range map[string]struct{ missing, despite, left []string }{
		"nothing":              {nil, nil, nil},
		"all":                  {all, nil, all},
		"despite both":         {all, domain.Waivable(), []string{domain.MissingAggregation, domain.MissingRetries}},
		"despite dead letters": {[]string{domain.MissingLetters}, []string{domain.MissingLetters}, nil},
		"retries despite them": {[]string{domain.MissingRetries}, domain.Waivable(), []string{domain.MissingRetries}},
	} {
		p, tx := newPeriods(requested)
		tx.missing, tx.locked, tx.log, tx.rows = c.missing, c.missing, figuresOf(3, 5), figuresOf(3, 5)
		for _, step := range []string{stepWait, stepFreeze} {
			got, err := p.CloseKind().Run(t.Context(), closeSaga(step, c.despite...))
			if err != nil {
				t.Fatal(err)
			}
			if c.left != nil && (got.Step == stepFreeze || got.End != "" || got.Wait == 0 || !slices.Equal(got.Missing, c.left)) {
				t.Errorf("%s: the step %s returns %+v", name, step, got)
			}
			want := domain.SagaDone()
			if len(c.missing) > 0 {
				want = domain.SagaDoneWithout(c.missing...)
			}
			if c.left == nil && (got.Step != want.Step || got.End != want.End || got.Outcome != want.Outcome || !slices.Equal(got.Missing, want.Missing)) {
				t.Errorf("%s: the step %s returns %+v", name, step, got)
			}
		}
		if frozen := len(tx.snapshots) == 1; frozen != (c.left == nil) {
			t.Errorf("%s: %d snapshots", name, len(tx.snapshots))
		}
	}
}

// Figures that agree are stored with their events, once. The snapshot names the conditions that were missing, not those that were waived.
func TestP8_AFreezeStoresTheFiguresOnce(t *testing.T) {
	p, tx := newPeriods(requested)
	amounts := make([]int64, events.MaxFrozenLines+1)
	amounts[events.MaxFrozenLines] = 1 << 60
	tx.log, tx.rows, tx.locked = figuresOf(3, amounts...), figuresOf(3, amounts...), []string{domain.MissingLetters}
	saga := closeSaga(stepFreeze, domain.Waivable()...)
	tx.again = true
	for range 2 { // the result of the first run may be lost
		got, err := p.CloseKind().Run(t.Context(), saga)
		if err != nil || got.End != domain.SagaCompleted || got.Outcome != domain.SagaIsPartial || !slices.Equal(got.Missing, []string{domain.MissingLetters}) {
			t.Fatalf("%+v %v", got, err)
		}
	}
	tx.succeeded(t, nil, 3)
	cut := ofAlice(900)
	hash := tx.log.FiguresHash(activeTenant, "2026-05", 1, cut)
	for i, key := range []string{"frozen/1", "frozen/2", "closed"} {
		want := caused{subject: events.PeriodFrozen, tenant: activeTenant, residency: "eu-central-1", key: events.KeyPeriod("2026-05", 1, key),
			cause: requestOfClose.EventID, correlation: requestOfClose.Trace, actor: events.Actor{Type: "service", ID: "meterplex-sagas"}}
		if key == "closed" {
			want.subject = events.PeriodClosed
		}
		want.checkOf(t, &tx.appended[i])
	}
	for i, lines := range []int{events.MaxFrozenLines, 1} {
		if got := payload[events.Frozen](t, &tx.appended[i]); len(got.Lines) != lines || got.Part != i+1 || got.Parts != 2 || got.PeriodKey != "2026-05" || got.Snapshot != 1 {
			t.Errorf("part %d of %d with %d lines", got.Part, got.Parts, len(got.Lines))
		}
	}
	if got := payload[events.ClosedPeriod](t, &tx.appended[2]); got.Cut != cut || got.Logic != "usage_aggregates/v1" || got.LogicHash != "hash of usage_aggregates/v1" ||
		got.FiguresHash != hash || got.Lines != len(amounts) || !slices.Equal(got.Despite, []string{domain.MissingLetters}) {
		t.Errorf("recorded %+v", got)
	}
	s := tx.snapshots["2026-05/1"]
	if len(tx.known) == 0 || slices.ContainsFunc(tx.known, func(k *domain.LateVerdicts) bool { return k != tx.log.Late }) {
		t.Errorf("the figures by the rows are computed with the late verdicts %v", tx.known)
	}
	if s.Cut != 900 || s.Figures.LogicHash != "hash of usage_aggregates/v1" || s.FrozenPosition != 3 || !s.FrozenAt.Equal(stored) || s.FiguresHash != hash || len(s.Figures.Lines) != len(amounts) || !slices.Equal(s.Despite, []string{domain.MissingLetters}) {
		t.Errorf("saved a snapshot with the cut %d at %d, despite %v", s.Cut, s.FrozenPosition, s.Despite)
	}
	if h := tx.changes[activeTenant]; h.Last("2026-05").State() != domain.StateClosed || h.Last("2026-05").Position != 3 {
		t.Errorf("saved %+v", h.Changes)
	}
}

// A freeze of a snapshot that is not closing ends without effect.
func TestP8_OnlyAClosingPeriodIsFrozen(t *testing.T) {
	for name, changes := range map[string][]string{"closed": {requested, closed}, "reopened": {requested, closed, reopened}, "a later close": {requested, closed, reopened, requested}} {
		p, tx := newPeriods(changes...)
		tx.log, tx.rows, tx.locked = figuresOf(3, 5), figuresOf(3, 6), []string{domain.MissingAggregation}
		if got, err := p.CloseKind().Run(t.Context(), closeSaga(stepFreeze)); err != nil || got.End != domain.SagaCompleted || len(tx.appended)+len(tx.snapshots) > 0 {
			t.Errorf("%s: %+v %v, and %d events", name, got, err, len(tx.appended))
		}
	}
}

// After a flip each line that differs gets a proposal, whose amount is the difference.
func TestP8_AFlipProposesAdjustments(t *testing.T) {
	p, tx := newPeriods(requested, closed)
	rebuild := uuid.UUID{77}
	line := domain.UnreconciledLine{PeriodKey: "2026-05", Snapshot: 1, FigureLine: domain.FigureLine{Feature: "calls", SubscriptionID: uuid.UUID{1}, Amount: big.NewInt(-7), EventCount: -2}}
	other := line
	other.Feature, other.Amount = "tokens", new(big.Int).Lsh(big.NewInt(1), 80)
	tx.differences = []domain.UnreconciledLine{line, other}
	tx.tenants = []uuid.UUID{activeTenant, suspendedTenant}
	for _, scope := range []uuid.UUID{activeTenant, uuid.Nil} {
		tx.appended, tx.held = nil, nil
		saga := &domain.Saga{Kind: SagaReconcile, TenantID: scope, Key: "4/" + rebuild.String(), Step: stepReconcile}
		if got, err := p.ReconcileKind().Run(t.Context(), saga); err != nil || got.End != domain.SagaCompleted {
			t.Fatalf("%+v %v", got, err)
		}
		tenants := map[uuid.UUID][]uuid.UUID{activeTenant: {activeTenant}, uuid.Nil: tx.tenants}[scope]
		if len(tx.appended) != 2*len(tenants) || !slices.Equal(tx.held, tenants) {
			t.Fatalf("%d events under the heads of %s", len(tx.appended), tx.held)
		}
		for i, want := range []domain.UnreconciledLine{line, other} {
			e := tx.appended[i]
			caused{subject: events.AdjustmentProposed, tenant: activeTenant, residency: "eu-central-1", key: events.KeyProposal("4", "2026-05", want.Feature, want.SubscriptionID),
				actor: events.Actor{Type: "service", ID: "meterplex-sagas"}}.checkOf(t, &e)
			said := payload[events.ProposedAdjustment](t, &e)
			if said.AdjustmentID != e.EventID || said.Amount != want.Amount.String() || said.EventCount != -2 || said.Kind != events.RebuiltFigure || said.Flip != 4 || *said.RebuildID != rebuild {
				t.Errorf("proposed %+v", said)
			}
			a := e.Adjustment
			if a == nil || a.PeriodKey != "2026-05" || a.Snapshot != 1 || a.Feature != want.Feature || a.SubscriptionID != want.SubscriptionID || a.Kind != events.RebuiltFigure ||
				a.Amount.Cmp(want.Amount) != 0 || a.EventCount != -2 || a.Recorded != 0 || *a.RebuildID != rebuild {
				t.Errorf("the adjustment is %+v", a)
			}
		}
	}
	tx.appended = nil
	late := &domain.Saga{TenantID: activeTenant, Key: "4/" + uuid.Nil.String() + "/17/2/1", Step: stepReconcile} // behind the flip, of a generation of no rebuild
	if _, err := p.ReconcileKind().Run(t.Context(), late); err != nil || len(tx.appended) != 2 {
		t.Fatalf("%v, %d events", err, len(tx.appended))
	}
	said := payload[events.ProposedAdjustment](t, &tx.appended[0])
	if key := events.KeyProposal("4/17/2/1", "2026-05", "calls", uuid.UUID{1}); tx.appended[0].DedupeKey != key || said.Flip != 4 || said.RebuildID != nil || tx.appended[0].Adjustment.RebuildID != nil {
		t.Errorf("%s: proposed %+v", tx.appended[0].DedupeKey, said)
	}
	tx.appended, tx.differences = nil, nil
	if _, err := p.ReconcileKind().Run(t.Context(), &domain.Saga{TenantID: activeTenant, Key: "4/" + rebuild.String()}); err != nil || len(tx.appended) > 0 {
		t.Errorf("without a difference: %v, %d events", err, len(tx.appended))
	}
}

// Sagas with invalid keys fail, are retried, and have no effect.
func TestSagasOfPeriodsReadTheirKeys(t *testing.T) {
	p, tx := newPeriods(requested)
	for _, key := range []string{"", "2026-05", "2026-05/x", "4/x", "x/" + uuid.UUID{1}.String()} {
		for _, kind := range []SagaKind{p.CloseKind(), p.ReconcileKind()} {
			if got, err := kind.Run(t.Context(), &domain.Saga{TenantID: activeTenant, Key: key, Step: kind.Steps[0]}); err == nil {
				t.Errorf("%s with the key %q: %+v", kind.Name, key, got)
			}
		}
	}
	tx.succeeded(t, nil, 0)
}

// A period is closed by its policy once, also if two instances look; a failure of one delays no other.
func TestP8_DuePeriodsAreClosedOnce(t *testing.T) {
	p, tx := newPeriods()
	p.Now = func() time.Time { return time.Date(2026, 4, 30, 23, 59, 0, 0, time.UTC) } // an instance that is late: the database knows that April is over
	for i := range scheduleBatch {
		tx.due = append(tx.due, domain.Closing{TenantID: uuid.UUID{15: byte(i)}, PeriodKey: "2026-04"}) // no such tenants, before all others
	}
	for _, key := range []string{"2026-03", "2026-04"} {
		tx.due = append(tx.due, domain.Closing{TenantID: activeTenant, PeriodKey: key})
	}
	tx.policy(24)
	for range 2 {
		err := (&Schedule{Periods: p, Logger: p.Logger}).look(t.Context())
		if refusal := (*domain.Error)(nil); !errors.As(err, &refusal) || refusal.Code != "tenant_not_found" {
			t.Errorf("the look returned %v", err)
		}
	}
	tx.succeeded(t, nil, 2)
	if a, b := tx.appended[0].CorrelationID, tx.appended[1].CorrelationID; a == uuid.Nil || b == uuid.Nil || a == b {
		t.Errorf("the closes are in the traces %s and %s", a, b)
	}
	for i, key := range []string{"2026-03", "2026-04"} {
		got := payload[events.CloseRequested](t, &tx.appended[i])
		if got.PeriodKey != key || !got.Scheduled || got.Early || got.Reason == "" || len(got.Despite) > 0 || tx.appended[i].Actor.ID != "meterplex-sagas" {
			t.Errorf("recorded %+v by %+v", got, tx.appended[i].Actor)
		}
	}
}

// The schedule checks again under the lock that a period is due: it closes none whose policy was removed, or that was closed and reopened by hand, in the meantime.
func TestP8_APeriodThatIsNoLongerDueIsNotClosed(t *testing.T) {
	for name, c := range map[string]struct {
		changes []string
		policy  bool
		seen    int
		closes  int
	}{
		"due":                           {nil, true, 0, 1},
		"reopened before its time":      {[]string{requested, closed, reopened}, true, 1, 1},
		"without a policy":              {nil, false, 0, 0},
		"reopened, without a policy":    {[]string{requested, closed, reopened}, false, 1, 0},
		"closed and reopened meanwhile": {[]string{requested, closed, reopened}, true, 0, 0},
		"closed meanwhile":              {[]string{requested, closed}, true, 0, 0},
	} {
		p, tx := newPeriods(c.changes...)
		if c.policy {
			tx.policy(24)
		}
		tx.found = []domain.Closing{{TenantID: activeTenant, PeriodKey: "2026-05", Snapshot: c.seen}}
		if err := (&Schedule{Periods: p, Logger: p.Logger}).look(t.Context()); err != nil || len(tx.appended) != c.closes {
			t.Errorf("%s: %d closes, %v", name, len(tx.appended), err)
		}
	}
}
