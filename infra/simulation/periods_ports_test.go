package simulation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/usage"
)

// pipeStore runs the commands' changes on the tables of a periodPipe.
type pipeStore struct{ p *periodPipe }

// pipeChange is the transaction of a change.
type pipeChange struct{ p *periodPipe }

var (
	_ commands.PeriodStore  = pipeStore{}
	_ commands.FreezeTx     = pipeChange{}
	_ commands.DeadLetterTx = pipeChange{}
)

func (s pipeStore) ChangePeriods(_ context.Context, _ uuid.UUID, decide func(commands.PeriodTx) error) error {
	return decide(pipeChange(s))
}

// FreezePeriod lets others work between the figures of the log and the locks.
func (s pipeStore) FreezePeriod(_ context.Context, _ uuid.UUID, decide func(commands.FreezeTx) error) error {
	for s.p.rng.IntN(2) == 0 {
		[]func(){s.p.ingest, s.p.validate, s.p.aggregate, s.p.flip}[s.p.rng.IntN(4)]()
	}
	return decide(pipeChange(s))
}

func (s pipeStore) ChangeDeadLetters(_ context.Context, _ uuid.UUID, decide func(commands.DeadLetterTx) error) error {
	return decide(pipeChange(s))
}

func (s pipeStore) Missing(_ context.Context, c domain.Closing) ([]string, error) {
	return pipeChange(s).Missing(c, s.p.periods.Cut(c.PeriodKey, c.Snapshot))
}

// FiguresOfLog are those of the model, with the verdicts that are not yet folded.
func (s pipeStore) FiguresOfLog(_ context.Context, c domain.Closing) (domain.Figures, error) {
	p, cut := s.p, s.p.periods.Cut(c.PeriodKey, c.Snapshot)
	sums := p.model.frozen(c.PeriodKey, cut, p.version)
	for _, v := range p.model.verdicts {
		if _, parked := p.parked[v.position]; !v.folded && !parked && v.PeriodKey == c.PeriodKey && v.cause <= cut {
			key, delta, err := pipeVersions[p.version].Fold(&p.log[v.position-1])
			if err != nil {
				return domain.Figures{}, err
			}
			sums[key] = sums[key].add(delta)
		}
	}
	return p.figures(sums), nil
}

func (s pipeStore) TenantsOfAdjustments(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]uuid.UUID, error) {
	found := map[uuid.UUID]uuid.UUID{}
	for _, id := range ids {
		found[id] = pipeTenant
	}
	return found, nil
}

func (s pipeStore) DueCloses(context.Context, domain.Closing, int) ([]domain.Closing, error) {
	return nil, nil
}

func (s pipeStore) ClosedTenants(context.Context) ([]uuid.UUID, error) {
	return []uuid.UUID{pipeTenant}, nil
}

// figures returns sums as figures of the live generation.
func (p *periodPipe) figures(sums map[usage.Key]pipeSum) domain.Figures {
	f := domain.Figures{Generation: p.flips, Logic: pipeVersions[p.version].Name}
	for key, s := range sums {
		f.Lines = append(f.Lines, domain.FigureLine{Feature: key.Feature, SubscriptionID: key.SubscriptionID, Amount: big.NewInt(s.amount), EventCount: s.count})
	}
	slices.SortFunc(f.Lines, func(a, b domain.FigureLine) int {
		return cmp.Or(strings.Compare(a.Feature, b.Feature), bytes.Compare(a.SubscriptionID[:], b.SubscriptionID[:]))
	})
	return f
}

// Missing: the verdicts on all events up to the cut are folded, no letter with a cause up to the cut is open, no rebuild is.
func (t pipeChange) Missing(_ domain.Closing, cut int64) (missing []string, err error) {
	p, m := t.p, t.p.model
	behind := p.validated < cut
	for i := p.aggregated; i < int64(len(p.log)); i++ {
		behind = behind || p.log[i].Subject == events.UsageValidated && readRaw(&p.log[i]) <= cut
	}
	var failed, retrying bool
	for _, id := range p.letters {
		if p.keys[events.KeyClosed(id)] > 0 {
			continue
		}
		l := t.letter(id)
		cause := l.RawPosition
		switch v := m.verdict(cause); {
		case v != nil:
			cause = v.cause
		case l.Rejected && l.Status == events.StatusRetrying:
			cause = p.keys[events.KeyRetry(id, l.Attempts)]
		case l.Rejected && !l.Parked:
			continue // it counts by its next retry
		case l.Rejected:
			cause = l.Source
		}
		if l.Stage != events.StageValidation && cause <= cut {
			failed, retrying = failed || l.Status == events.StatusFailed, retrying || l.Status == events.StatusRetrying
		}
	}
	for _, condition := range []struct {
		missing bool
		name    string
	}{{behind, domain.MissingAggregation}, {failed, domain.MissingLetters}, {retrying, domain.MissingRetries}, {p.rebuilding, domain.MissingRebuilds}} {
		if condition.missing {
			missing = append(missing, condition.name)
		}
	}
	return missing, nil
}

// readRaw returns the position of the recorded event that an event is about; that of the event without one.
func readRaw(e *events.Envelope) int64 {
	var about struct {
		RawPosition int64
		Validated   struct{ RawPosition int64 }
	}
	if err := json.Unmarshal(e.Payload, &about); err != nil {
		panic(err)
	}
	return cmp.Or(about.RawPosition, about.Validated.RawPosition, e.Position.Number)
}

// FiguresOfRows are the rows, less the late verdicts.
func (t pipeChange) FiguresOfRows(c domain.Closing, _ *domain.LateVerdicts) (domain.Figures, error) {
	p, sums := t.p, map[usage.Key]pipeSum{}
	for key, s := range p.rows {
		if key.PeriodKey == c.PeriodKey {
			sums[key] = s
		}
	}
	for i := range p.adjustments {
		a := &p.adjustments[i]
		if a.PeriodKey != c.PeriodKey || a.Snapshot != c.Snapshot || a.Kind == events.RebuiltFigure || !p.counts(a) {
			continue
		}
		v := p.model.verdict(a.Recorded)
		delta := v.deltas[p.version]
		sums[v.key] = sums[v.key].add(usage.Delta{Amount: -delta.Amount, Count: -delta.Count})
	}
	return p.figures(sums), nil
}

// Unreconciled compares the rows of each closed period with its figures and its adjustments.
func (t pipeChange) Unreconciled(uuid.UUID) (list []domain.UnreconciledLine, err error) {
	for key, s := range t.p.unreconciled() {
		last := t.p.periods.Last(key.PeriodKey)
		list = append(list, domain.UnreconciledLine{PeriodKey: key.PeriodKey, Snapshot: last.Snapshot,
			FigureLine: domain.FigureLine{Feature: key.Feature, SubscriptionID: key.SubscriptionID, Amount: big.NewInt(s.amount), EventCount: s.count}})
	}
	return list, nil
}

// unreconciled returns the lines that differ: row less figure less adjustments.
func (p *periodPipe) unreconciled() map[usage.Key]pipeSum {
	left := map[usage.Key]pipeSum{}
	for key, s := range p.rows {
		if p.periods.Last(key.PeriodKey).State() == domain.StateClosed {
			left[key] = s
		}
	}
	for i := range p.snapshots {
		s := &p.snapshots[i]
		if last := p.periods.Last(s.PeriodKey); last.State() != domain.StateClosed || last.Snapshot != s.Snapshot {
			continue
		}
		for _, l := range s.Figures.Lines {
			key := usage.Key{TenantID: pipeTenant, Feature: l.Feature, PeriodKey: s.PeriodKey, SubscriptionID: l.SubscriptionID}
			left[key] = left[key].add(usage.Delta{Amount: -l.Amount.Int64(), Count: -l.EventCount})
		}
		for j := range p.adjustments {
			if a := &p.adjustments[j]; a.PeriodKey == s.PeriodKey && a.Snapshot == s.Snapshot && a.state != events.AdjustmentVoid && p.counts(a) {
				key := usage.Key{TenantID: pipeTenant, Feature: a.Feature, PeriodKey: a.PeriodKey, SubscriptionID: a.SubscriptionID}
				left[key] = left[key].add(usage.Delta{Amount: -a.Amount.Int64(), Count: -a.EventCount})
			}
		}
	}
	for key, s := range left {
		if s == (pipeSum{}) {
			delete(left, key)
		}
	}
	return left
}

func (t pipeChange) Answer(string) (*commands.Answer, error)            { return nil, nil }
func (t pipeChange) Version(commands.Ref) (string, error)               { return "", nil }
func (t pipeChange) SaveAnswer(string, commands.Answer) error           { return nil }
func (t pipeChange) Tenant(id uuid.UUID) (*domain.Tenant, error)        { return &domain.Tenant{ID: id}, nil }
func (t pipeChange) Offboarding(uuid.UUID) (*domain.Offboarding, error) { return nil, nil }
func (t pipeChange) Append(list ...events.Pending) ([]events.Position, error) {
	return t.p.append(list...), nil
}

func (t pipeChange) Periods([]uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	return map[uuid.UUID]domain.PeriodHistory{pipeTenant: t.p.periods}, nil
}

func (t pipeChange) SavePeriodChange(_ uuid.UUID, c domain.PeriodChange, _ time.Time) error {
	t.p.did(c.Change)
	t.p.periods.Changes = append(t.p.periods.Changes, c)
	return nil
}

func (t pipeChange) StartSaga(s domain.SagaStart) (*domain.Saga, bool, error) {
	for _, known := range t.p.sagas {
		if known.Key == s.Key {
			return known, false, nil
		}
	}
	saga := &domain.Saga{ID: s.ID, Kind: s.Kind, TenantID: s.TenantID, Key: s.Key, Step: s.FirstStep, Despite: s.Despite}
	t.p.sagas = append(t.p.sagas, saga)
	return saga, true, nil
}

func (s pipeStore) PeriodEvent(context.Context, domain.Closing, string) (events.TracedEvent, error) {
	return events.TracedEvent{}, nil
}

func (t pipeChange) SaveSnapshot(s domain.Snapshot) error {
	if t.p.version > 0 {
		t.p.reconciled = -1 // late usage from before the freeze
	}
	for _, condition := range s.Despite {
		t.p.did("closed despite " + condition)
	}
	t.p.snapshots, t.p.frozen = append(t.p.snapshots, s), append(t.p.frozen, describeFigures(&s.Figures))
	return nil
}

func (t pipeChange) FrozenDespite(c domain.Closing) ([]string, error) {
	for _, s := range t.p.snapshots {
		if s.PeriodKey == c.PeriodKey && s.Snapshot == c.Snapshot {
			return s.Despite, nil
		}
	}
	return nil, fmt.Errorf("%+v has no snapshot", c)
}

func (t pipeChange) Adjustments(_ uuid.UUID, ids []uuid.UUID) (list []domain.Adjustment, err error) {
	for _, a := range t.p.adjustments {
		if slices.Contains(ids, a.id) {
			list = append(list, domain.Adjustment{ID: a.id, TenantID: pipeTenant, State: a.state, Amount: a.Amount})
		}
	}
	return list, nil
}

func (t pipeChange) Approved(_ uuid.UUID, recorded int64) (list []domain.Closing, err error) {
	for _, a := range t.p.adjustments {
		if a.Recorded == recorded && a.state == events.AdjustmentApproved {
			list = append(list, domain.Closing{TenantID: pipeTenant, PeriodKey: a.PeriodKey, Snapshot: a.Snapshot})
		}
	}
	return list, nil
}

func (t pipeChange) PendingAdjustments(_ uuid.UUID, snapshot int, scope events.AdjustmentScope) (count int64, amount string, err error) {
	var sum big.Int
	for _, a := range t.p.adjustments {
		if a.state == events.AdjustmentPending && a.PeriodKey == scope.PeriodKey && a.Snapshot == snapshot && a.position <= cmp.Or(scope.UpTo.Number, math.MaxInt64) {
			count, _ = count+1, sum.Add(&sum, a.Amount)
		}
	}
	return count, sum.String(), nil
}

func (t pipeChange) ApprovedAdjustments(uuid.UUID, string, int) (int64, error) { return 0, nil }

// letter returns a dead letter, whose state follows from the log.
func (t pipeChange) letter(id uuid.UUID) *domain.DeadLetter {
	l := *t.p.failed[id]
	var later []domain.LaterEvent
	for i := range t.p.log {
		e := &t.p.log[i]
		if e.DedupeKey[1] != '/' || !strings.Contains("rvx", e.DedupeKey[:1]) {
			continue
		}
		after := domain.LaterEvent{Key: e.DedupeKey, Position: int64(i + 1), Cause: e.CausationID}
		if e.Subject == events.DeadLetterClosed {
			after.Closed = events.StatusDiscarded
			if strings.Contains(string(e.Payload), events.StatusResolved) {
				after.Closed = events.StatusResolved
			}
		}
		later = append(later, after)
	}
	l.Evolve(later, math.MaxInt64)
	if v := t.p.model.verdict(l.RawPosition); v != nil {
		l.Corrected = v.CorrectedUsage != nil
	}
	name := t.p.model.recorded[l.RawPosition].EventID
	for _, u := range t.p.model.recorded {
		l.Corrected = l.Corrected || u.CorrectionRef == name
	}
	return &l
}

func (t pipeChange) DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*domain.DeadLetter, error) {
	found := map[uuid.UUID]*domain.DeadLetter{}
	for _, id := range ids {
		found[id] = t.letter(id)
	}
	return found, nil
}

func (t pipeChange) Events(numbers []int64) (map[int64]events.Envelope, error) {
	found := map[int64]events.Envelope{}
	for _, n := range numbers {
		found[n] = t.p.log[n-1]
	}
	return found, nil
}
