// Package billing closes periods, decides on their adjustments, and pushes the amounts due to a billing provider.
package billing

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Periods closes and reopens the periods of tenants, and decides on their adjustments. The figures of a closed period never change (P8).
type Periods struct {
	Store  PeriodStore
	Now    commands.Clock
	NewID  func() uuid.UUID
	Wake   func() // wakes the runner of sagas of this instance; may be nil
	Logger *slog.Logger
}

// PeriodStore runs changes of periods and adjustments, and reads for them.
type PeriodStore interface {
	// ChangePeriods runs decide as commands.Store.Change does.
	ChangePeriods(ctx context.Context, tenant uuid.UUID, decide func(PeriodTx) error) error
	// FreezePeriod runs decide as ChangePeriods does, and locks the tenant's figures as well: no verdict is folded and no generation is
	// flipped before the transaction ends.
	FreezePeriod(ctx context.Context, tenant uuid.UUID, decide func(FreezeTx) error) error
	// Missing returns the conditions that the close of a period waits for.
	Missing(ctx context.Context, c domain.Closing) ([]string, error)
	// FiguresOfLog folds a period's figures as known at the cut from the log, and hashes the result of the fold over the golden log.
	FiguresOfLog(ctx context.Context, c domain.Closing) (domain.Figures, error)
	// PeriodEvent returns the event of a change of a period.
	PeriodEvent(ctx context.Context, of domain.Closing, change string) (events.TracedEvent, error)
	// TenantsOfAdjustments returns the tenants of adjustments by their ids; unknown ids are missing.
	TenantsOfAdjustments(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]uuid.UUID, error)
	// DueCloses returns periods that the policies of their tenants close by now, by the clock of the database: those after another one, by
	// tenant and period.
	DueCloses(ctx context.Context, after domain.Closing, limit int) ([]domain.Closing, error)
	// ClosedTenants returns the tenants with closed periods.
	ClosedTenants(ctx context.Context) ([]uuid.UUID, error)
	// LateUsage returns late usage of closed periods that the live fold may count in another way than the log, and that no reconciliation
	// has seen. newest is the last adjustment of all; if it is seen, the list is empty, unless seen is Nil.
	LateUsage(ctx context.Context, seen uuid.UUID) (list []LateUsage, newest uuid.UUID, err error)
	// Differs reports whether a line of a tenant's closed periods differs from the frozen figure and the adjustments.
	Differs(ctx context.Context, tenant uuid.UUID) (bool, error)
}

// PeriodTx is the transaction of a change of periods.
type PeriodTx interface {
	commands.Tx
	commands.Offboardings
	commands.SagaStarter
	// Periods returns the changes of the periods of tenants of the partition.
	Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error)
	SavePeriodChange(tenant uuid.UUID, c domain.PeriodChange, at time.Time) error
	// Adjustments returns adjustments of a tenant by their ids.
	Adjustments(tenant uuid.UUID, ids []uuid.UUID) ([]domain.Adjustment, error)
	// PendingAdjustments counts the pending adjustments of a scope in a snapshot, and returns their sum.
	PendingAdjustments(tenant uuid.UUID, snapshot int, scope events.AdjustmentScope) (count int64, amount string, err error)
	// ApprovedAdjustments counts the approved adjustments of a snapshot.
	ApprovedAdjustments(tenant uuid.UUID, periodKey string, snapshot int) (int64, error)
}

// ClosePeriod is a request to close a period.
type ClosePeriod struct {
	TenantID  uuid.UUID
	PeriodKey string
	Reason    string
	Early     bool
	Despite   []string
	Scheduled bool // by the tenant's policy, whose end is over by the clock of the database
	Seen      int  // of a scheduled close: the last snapshot when the period was found due; 0: it had no close
}

// RequestedClose is the answer to a request to close a period.
type RequestedClose struct {
	ID          uuid.UUID       `json:"id" doc:"Of the background process: GET /sagas/{id}."`
	TenantID    uuid.UUID       `json:"tenantId"`
	PeriodKey   string          `json:"periodKey"`
	State       string          `json:"state" enum:"CLOSING,CLOSED"`
	Snapshot    int             `json:"snapshot" doc:"1 for the first close, one more after each reopening."`
	CutPosition events.Position `json:"cutPosition" doc:"Usage of the period recorded after it is late."`
	DeadlineAt  *time.Time      `json:"deadlineAt" doc:"If the close still waits then, it is partial."`
	Known       bool            `json:"-"` // the period was closing or closed before
}

// storedClose is the answer that is stored for the repetitions of a request.
type storedClose struct {
	RequestedClose
	Known bool `json:"known,omitempty"`
}

func (c *Periods) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

func (c *Periods) changeOf(ctx context.Context, tenant uuid.UUID) commands.Transaction[PeriodTx] {
	return func(decide func(PeriodTx) error) error { return c.Store.ChangePeriods(ctx, tenant, decide) }
}

// Close requests the close of a period: the position of the request is the cut. Of a period that is closing or closed it returns the
// present snapshot.
func (c *Periods) Close(ctx context.Context, req commands.Request, in ClosePeriod) (RequestedClose, error) {
	if refusal := domain.CheckReason(in.Reason); refusal != nil {
		return RequestedClose{}, refusal
	}
	for i, condition := range in.Despite {
		if !slices.Contains(domain.Waivable(), condition) {
			return RequestedClose{}, domain.Refuse("despite_invalid", "/despite/"+strconv.Itoa(i), "a close can be despite %q",
				domain.Waivable())
		}
	}
	in.Despite = slices.Compact(slices.Sorted(slices.Values(in.Despite)))
	if in.Despite == nil {
		in.Despite = []string{}
	}
	answer, err := commands.Change(c.changeOf(ctx, in.TenantID), req, func(tx PeriodTx) (storedClose, error) {
		closed, err := c.requestClose(tx, &req, in)
		return storedClose{closed, closed.Known}, err
	})
	closed := answer.RequestedClose
	closed.Known = answer.Known
	if err == nil && c.Wake != nil {
		c.Wake()
	}
	return closed, err
}

func (c *Periods) requestClose(tx PeriodTx, req *commands.Request, in ClosePeriod) (RequestedClose, error) {
	tenant, err := commands.LoadTenant(tx, in.TenantID)
	if err != nil {
		return RequestedClose{}, err
	}
	periods, err := tx.Periods([]uuid.UUID{in.TenantID})
	if err != nil {
		return RequestedClose{}, err
	}
	history := periods[in.TenantID]
	if in.Scheduled && (tenant.CloseAfterHours == nil || history.LastSnapshot(in.PeriodKey) != in.Seen) {
		return RequestedClose{}, errNotDue
	}
	now := c.now()
	snapshot, known, refusal := history.Closable(in.PeriodKey, in.Early || in.Scheduled, now)
	if refusal != nil {
		return RequestedClose{}, refusal
	}
	answer := RequestedClose{TenantID: in.TenantID, PeriodKey: in.PeriodKey, State: domain.StateClosing, Snapshot: snapshot,
		Known: known != nil}
	if known != nil {
		answer.Snapshot, answer.State = known.Snapshot, known.State()
		answer.CutPosition = events.Position{Partition: events.PartitionOf(in.TenantID), Number: history.Cut(in.PeriodKey, known.Snapshot)}
	} else if answer.CutPosition, err = c.firstCut(tx, req, in, snapshot, now); err != nil {
		return RequestedClose{}, err
	}
	saga, err := c.startClose(tx, in, answer.Snapshot)
	if err != nil {
		return RequestedClose{}, err
	}
	answer.ID, answer.DeadlineAt = saga.ID, saga.DeadlineAt
	return answer, nil
}

// startClose starts the saga of a close.
func (c *Periods) startClose(tx PeriodTx, in ClosePeriod, snapshot int) (*domain.Saga, error) {
	saga, _, err := tx.StartSaga(domain.SagaStart{ID: c.NewID(), Kind: domain.SagaPeriodClose, TenantID: in.TenantID,
		Key:       closeKey(in.PeriodKey, snapshot),
		FirstStep: stepWait, Deadline: domain.CloseDeadline, Despite: in.Despite})
	return saga, err
}

// BeginClose closes an open period of a tenant that ends.
func (c *Periods) BeginClose(tx PeriodTx, req *commands.Request, in ClosePeriod, snapshot int, now time.Time) error {
	if _, err := c.cut(tx, req, in, snapshot, now); err != nil {
		return err
	}
	_, err := c.startClose(tx, in, snapshot)
	return err
}

// firstCut refuses an archived tenant: the end of its offboarding closed all its periods with usage.
func (c *Periods) firstCut(tx PeriodTx, req *commands.Request, in ClosePeriod, snapshot int, now time.Time) (events.Position, error) {
	o, err := tx.Offboarding(in.TenantID)
	if err != nil {
		return events.Position{}, err
	}
	if o != nil && o.State == domain.OffboardingArchived {
		return events.Position{}, o.Blocks()
	}
	return c.cut(tx, req, in, snapshot, now)
}

// cut appends the request to close a period, whose position is the cut.
func (c *Periods) cut(tx PeriodTx, req *commands.Request, in ClosePeriod, snapshot int, now time.Time) (events.Position, error) {
	p, err := req.Event(c.NewID(), now, in.TenantID, events.PeriodCloseRequested, events.CloseRequested{
		PeriodKey: in.PeriodKey, Snapshot: snapshot, Early: in.Early, Despite: in.Despite, Reason: in.Reason, Scheduled: in.Scheduled})
	if err != nil {
		return events.Position{}, err
	}
	p.DedupeKey = events.KeyPeriod(in.PeriodKey, snapshot, "close")
	at, err := commands.AppendOne(tx, p)
	if err != nil {
		return events.Position{}, err
	}
	return at, tx.SavePeriodChange(in.TenantID, domain.PeriodChange{Position: at.Number, PeriodKey: in.PeriodKey, Snapshot: snapshot,
		Change: domain.PeriodCloseRequested}, now)
}

// ReopenedPeriod is the answer to a request to reopen a period.
type ReopenedPeriod struct {
	TenantID  uuid.UUID       `json:"tenantId"`
	PeriodKey string          `json:"periodKey"`
	State     string          `json:"state" enum:"OPEN"`
	Snapshot  int             `json:"snapshot" doc:"Of the last close; it is kept."`
	Voided    int64           `json:"voided" doc:"Adjustments that were pending: they are void."`
	Approved  int64           `json:"approved"`
	Position  events.Position `json:"position"`
}

// Reopen opens a closed period. Its snapshot is kept, and its pending adjustments are void: the next snapshot counts what they adjust.
func (c *Periods) Reopen(ctx context.Context, req commands.Request, tenant uuid.UUID, periodKey, reason string) (ReopenedPeriod, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return ReopenedPeriod{}, refusal
	}
	return commands.Change(c.changeOf(ctx, tenant), req, func(tx PeriodTx) (ReopenedPeriod, error) {
		if _, err := commands.Changeable(tx, tenant); err != nil {
			return ReopenedPeriod{}, err
		}
		if refusal := domain.CheckPeriodKey(periodKey); refusal != nil && periodKey != domain.PeriodLifetime {
			return ReopenedPeriod{}, refusal
		}
		periods, err := tx.Periods([]uuid.UUID{tenant})
		if err != nil {
			return ReopenedPeriod{}, err
		}
		history := periods[tenant]
		snapshot, refusal := history.Reopenable(periodKey)
		if refusal != nil {
			return ReopenedPeriod{}, refusal
		}
		return c.ReopenSnapshot(tx, &req, tenant, periodKey, snapshot, reason)
	})
}

// ReopenSnapshot appends the reopening of a snapshot, which voids its pending adjustments.
func (c *Periods) ReopenSnapshot(tx PeriodTx, req *commands.Request, tenant uuid.UUID, periodKey string, snapshot int,
	reason string) (ReopenedPeriod, error) {
	all := events.AdjustmentScope{PeriodKey: periodKey, UpTo: events.Position{Number: math.MaxInt64}}
	answer := ReopenedPeriod{TenantID: tenant, PeriodKey: periodKey, State: domain.StateOpen, Snapshot: snapshot}
	var err error
	if answer.Voided, _, err = tx.PendingAdjustments(tenant, snapshot, all); err != nil {
		return answer, err
	}
	if answer.Approved, err = tx.ApprovedAdjustments(tenant, periodKey, snapshot); err != nil {
		return answer, err
	}
	now := c.now()
	p, err := req.Event(c.NewID(), now, tenant, events.PeriodReopened, events.ReopenedPeriod{PeriodKey: periodKey, Snapshot: snapshot,
		Reason: reason, Voided: answer.Voided})
	if err != nil {
		return answer, err
	}
	p.DedupeKey = events.KeyPeriod(periodKey, snapshot, "reopen")
	p.Decided = &events.AdjustmentChange{State: events.AdjustmentVoid, Reason: "the period was reopened", Scope: &all, Snapshot: snapshot}
	if answer.Position, err = commands.AppendOne(tx, p); err != nil {
		return answer, err
	}
	return answer, tx.SavePeriodChange(tenant, domain.PeriodChange{Position: answer.Position.Number, PeriodKey: periodKey,
		Snapshot: snapshot, Change: domain.PeriodReopened}, now)
}
