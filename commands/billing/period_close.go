package billing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Steps of a close. Between them the period is CLOSING: its events up to the cut count, later ones are late.
const (
	stepWait   = "wait"   // until all events up to the cut count
	stepFreeze = "freeze" // compute the figures twice, and store them
)

// closeWait is the time between two looks at the conditions of a close.
const closeWait = time.Second

// driftWait is the time after which figures that differ are compared again.
const driftWait = time.Minute

// FreezeTx is the transaction that freezes the figures of a period.
type FreezeTx interface {
	PeriodTx
	// Missing is PeriodStore.Missing under the locks, with the number of the request to close.
	Missing(c domain.Closing, cut int64) ([]string, error)
	// FiguresOfRows returns a period's figures as known at the cut: the live rows, less the live fold's counts of late verdicts. Those
	// that are known from FiguresOfLog are not read again; nil: all are read.
	FiguresOfRows(c domain.Closing, known *domain.LateVerdicts) (domain.Figures, error)
	// Unreconciled returns the lines of a tenant's closed periods that differ from the frozen figure and the adjustments that are not void.
	// Amount and count are the differences.
	Unreconciled(tenant uuid.UUID) ([]domain.UnreconciledLine, error)
	SaveSnapshot(s domain.Snapshot) error
	// FrozenDespite returns the conditions that were missing when a snapshot was frozen.
	FrozenDespite(c domain.Closing) ([]string, error)
}

func closeKey(periodKey string, snapshot int) string { return periodKey + "/" + strconv.Itoa(snapshot) }

// CloseKind returns the kind of the sagas that close periods.
func (c *Periods) CloseKind() commands.SagaKind {
	return commands.SagaKind{Name: domain.SagaPeriodClose, Steps: []string{stepWait, stepFreeze}, Despite: domain.Waivable(),
		Run: c.runClose}
}

// closingOf returns the close that a saga runs.
func closingOf(s *domain.Saga) (domain.Closing, error) {
	periodKey, number, _ := strings.Cut(s.Key, "/")
	snapshot, err := strconv.Atoi(number)
	if err != nil {
		return domain.Closing{}, fmt.Errorf("the key %q of a close names no snapshot", s.Key)
	}
	return domain.Closing{TenantID: s.TenantID, PeriodKey: periodKey, Snapshot: snapshot}, nil
}

// runClose runs a step of a close. The figures are frozen in the first run that finds all conditions met.
func (c *Periods) runClose(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
	of, err := closingOf(s)
	if err != nil {
		return domain.SagaResult{}, err
	}
	if s.Step == stepWait {
		missing, err := c.Store.Missing(ctx, of)
		if err != nil {
			return domain.SagaResult{}, err
		}
		if missing = s.Unwaived(missing); len(missing) > 0 {
			return domain.SagaWait(closeWait, missing...), nil
		}
	}
	result, err := c.runFreeze(ctx, of, s)
	if err == nil && result.Drift {
		result, err = c.runFreeze(ctx, of, s)
	}
	if err == nil && result.Drift {
		c.Logger.Error("a period is not frozen: its figures differ from the log", "tenant", of.TenantID, "period", of.PeriodKey,
			"difference", result.Reason)
	}
	return result, err
}

// runFreeze computes the figures in both ways, and freezes them if they agree. If a close does not wait for dead letters, and one is
// retried meanwhile, the rows may have a verdict that the log had not, so that a first difference is no drift.
func (c *Periods) runFreeze(ctx context.Context, of domain.Closing, s *domain.Saga) (result domain.SagaResult, err error) {
	figures, err := c.Store.FiguresOfLog(ctx, of)
	if err != nil {
		return domain.SagaResult{}, err
	}
	requested, err := c.Store.PeriodEvent(ctx, of, domain.PeriodCloseRequested)
	if err != nil {
		return domain.SagaResult{}, err
	}
	err = c.Store.FreezePeriod(ctx, s.TenantID, func(tx FreezeTx) (err error) {
		result, err = c.freeze(tx, of, s, commands.FollowUp(requested), &figures)
		return err
	})
	return result, err
}

// freeze compares the figures of the log with those of the rows, and stores them. The figures of the log were computed without a lock: a
// generation that was flipped since may count in another way, so that they are computed again.
func (c *Periods) freeze(tx FreezeTx, of domain.Closing, s *domain.Saga, req commands.Request, figures *domain.Figures) (domain.SagaResult,
	error) {
	periods, err := tx.Periods([]uuid.UUID{of.TenantID})
	if err != nil {
		return domain.SagaResult{}, err
	}
	history := periods[of.TenantID]
	if last := history.Last(of.PeriodKey); last == nil || last.Snapshot != of.Snapshot || last.Change != domain.PeriodCloseRequested {
		despite, err := tx.FrozenDespite(of) // an earlier run froze the figures, and its result was lost
		return domain.SagaDoneWithout(despite...), err
	}
	cut := history.Cut(of.PeriodKey, of.Snapshot)
	missing, err := tx.Missing(of, cut)
	if err != nil {
		return domain.SagaResult{}, err
	}
	if open := s.Unwaived(missing); len(open) > 0 {
		return domain.SagaResult{Step: stepWait, Wait: closeWait, Missing: open}, nil
	}
	rows, err := tx.FiguresOfRows(of, figures.Late)
	if err != nil {
		return domain.SagaResult{}, err
	}
	if rows.Generation != figures.Generation {
		return domain.SagaNext(stepFreeze), nil
	}
	if difference := figures.Differs(&rows); difference != "" {
		return domain.SagaDrifts(driftWait, difference), nil
	}
	despite := slices.DeleteFunc(slices.Clone(s.Despite), func(condition string) bool { return !slices.Contains(missing, condition) })
	return domain.SagaDoneWithout(despite...), c.store(tx, of, cut, req, figures, despite)
}

// store appends the figures and the close, and saves the snapshot.
func (c *Periods) store(tx FreezeTx, of domain.Closing, cut int64, req commands.Request, figures *domain.Figures, despite []string) error {
	now := c.now()
	at := events.Position{Partition: events.PartitionOf(of.TenantID), Number: cut}
	if despite == nil {
		despite = []string{}
	}
	chargesHash, err := domain.ChargesHash(figures.Charges, of, at)
	if err != nil {
		return err
	}
	closed := events.ClosedPeriod{PeriodKey: of.PeriodKey, Snapshot: of.Snapshot, Cut: at, Logic: figures.Logic,
		LogicHash:   figures.LogicHash,
		FiguresHash: figures.FiguresHash(of.TenantID, of.PeriodKey, of.Snapshot, at), Lines: len(figures.Lines), Despite: despite,
		ChargesHash: chargesHash, Charges: len(figures.Charges)}
	var list []events.Pending
	for _, part := range figures.Parts(of.PeriodKey, of.Snapshot) {
		p, err := req.Event(c.NewID(), now, of.TenantID, events.PeriodFrozen, part)
		if err != nil {
			return err
		}
		p.DedupeKey = events.KeyPeriod(of.PeriodKey, of.Snapshot, "frozen/"+strconv.Itoa(part.Part))
		list = append(list, p)
	}
	p, err := req.Event(c.NewID(), now, of.TenantID, events.PeriodClosed, closed)
	if err != nil {
		return err
	}
	p.DedupeKey = events.KeyPeriod(of.PeriodKey, of.Snapshot, "closed")
	positions, err := commands.AppendAll(tx, append(list, p)...)
	if err != nil {
		return err
	}
	last := positions[len(positions)-1]
	if err := tx.SavePeriodChange(of.TenantID, domain.PeriodChange{Position: last.Number, PeriodKey: of.PeriodKey, Snapshot: of.Snapshot,
		Change: domain.PeriodClosed}, now); err != nil {
		return err
	}
	err = tx.SaveSnapshot(domain.Snapshot{Closing: of, Cut: cut, FrozenPosition: last.Number, FrozenAt: now,
		FiguresHash: closed.FiguresHash, ChargesHash: chargesHash,
		Figures: *figures, Despite: despite})
	if err != nil {
		return err
	}
	return startPush(tx, c.NewID, of, pushOfClose, 0)
}
