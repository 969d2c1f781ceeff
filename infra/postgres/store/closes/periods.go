// Package closes keeps the closes of periods: their changes, snapshots and adjustments, and the conditions that they wait for.
package closes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

var (
	_ billing.PeriodStore = (*Periods)(nil)
	_ billing.FreezeTx    = (*periodTx)(nil)
)

// PeriodFigures computes the figures of periods, as known at their cuts.
type PeriodFigures interface {
	// OfLog folds them from the log, by the fold that is live, and hashes the result of this fold over the golden log.
	OfLog(ctx context.Context, tx pgx.Tx, c domain.Closing, h *domain.PeriodHistory) (domain.Figures, error)
	// OfRows subtracts from the live rows the live fold's counts of late verdicts, of which some are known from OfLog. The rows are
	// locked.
	OfRows(ctx context.Context, tx pgx.Tx, c domain.Closing, known *domain.LateVerdicts) (domain.Figures, error)
}

// Periods changes the periods of tenants. It implements billing.PeriodStore.
type Periods struct {
	Store   *store.Store
	Figures PeriodFigures
}

// Tx changes periods.
type Tx struct{ *store.Tx }

// periodTx is a change of periods of one tenant. The tenant and its periods are read with the head's lock.
type periodTx struct {
	Tx
	figures PeriodFigures
	tenant  *domain.Tenant // nil if there is no such tenant
	of      uuid.UUID      // its id
	periods map[uuid.UUID]domain.PeriodHistory
	changed bool // the periods, by this transaction
}

// Tenant implements commands.Tenants.
func (t *periodTx) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	if id == t.of {
		return t.tenant, nil
	}
	return t.Tx.Tenant(id)
}

// Periods implements billing.PeriodTx.
func (t *periodTx) Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	if !t.changed && len(tenants) == 1 && tenants[0] == t.of {
		return t.periods, nil
	}
	return t.Tx.Periods(tenants)
}

// SavePeriodChange implements billing.PeriodTx.
func (t *periodTx) SavePeriodChange(tenant uuid.UUID, c domain.PeriodChange, at time.Time) error {
	t.changed = true
	return t.Tx.SavePeriodChange(tenant, c, at)
}

// ChangePeriods implements billing.PeriodStore. Cached histories of the tenant are outdated by it. One change runs at a time.
func (s *Periods) ChangePeriods(ctx context.Context, tenant uuid.UUID, decide func(billing.PeriodTx) error) error {
	leave, err := s.Store.PeriodSeat(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return s.changing(ctx, tenant, func(*eventlog.Tx) {}, func(tx *periodTx) error { return decide(tx) })
}

// changing runs a change of a tenant's periods, whose statements keep their plans: a thousand periods may close at once.
func (s *Periods) changing(ctx context.Context, tenant uuid.UUID, lock func(*eventlog.Tx), decide func(*periodTx) error) error {
	var change *periodTx
	hold := func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error {
		t.Queue("keeping plans", keepPlans)
		lock(t)
		change = &periodTx{figures: s.Figures, of: tenant}
		return s.Store.Log().LockHeads(ctx, t, []int16{events.PartitionOf(tenant)}, admitted,
			store.ReadTenant(tenant, &change.tenant), store.ReadPeriods(tenant, &change.periods))
	}
	return s.Store.ChangeUnder(ctx, tenant, hold, func(tx *store.Tx) error {
		change.Tx = Tx{tx}
		return decide(change)
	}, tenant)
}

// The aggregator locks its checkpoints before it folds, and a flip locks those of all partitions.
const lockFigures = `SELECT FROM consumer_checkpoints WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation FOR UPDATE`

// FreezePeriod implements billing.PeriodStore.
func (s *Periods) FreezePeriod(ctx context.Context, tenant uuid.UUID, decide func(billing.FreezeTx) error) error {
	lock := func(t *eventlog.Tx) {
		t.Queue("locking figures", lockFigures, events.GroupAggregator, events.PartitionOf(tenant))
	}
	return s.changing(ctx, tenant, lock, func(tx *periodTx) error { return decide(tx) })
}

const oneSnapshot = `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY`

// keepPlans begins the transactions that each close runs.
var keepPlans = postgres.KeepPlansSQL()

// InSnapshot runs a read in one snapshot of the database.
func InSnapshot(ctx context.Context, s *store.Store, read func(pgx.Tx) error) error {
	return inSnapshotAs(ctx, s, oneSnapshot, read)
}

// inSnapshotOfClose is InSnapshot for the reads of each close.
func (s *Periods) inSnapshotOfClose(ctx context.Context, read func(pgx.Tx) error) error {
	return inSnapshotAs(ctx, s.Store, oneSnapshot+"; "+keepPlans, read)
}

func inSnapshotAs(ctx context.Context, s *store.Store, begin string, read func(pgx.Tx) error) error {
	return store.Unavailable(postgres.InTx(ctx, s.Pool(), func(t pgx.Tx) error {
		if _, err := t.Exec(ctx, begin); err != nil {
			return err
		}
		return read(t)
	}))
}

// FiguresOfLog implements billing.PeriodStore. It reads one snapshot of the database, without a lock.
func (s *Periods) FiguresOfLog(ctx context.Context, c domain.Closing) (figures domain.Figures, err error) {
	err = s.inSnapshotOfClose(ctx, func(t pgx.Tx) error {
		periods, err := store.PeriodsOf(ctx, t, []uuid.UUID{c.TenantID})
		if err != nil {
			return err
		}
		history := periods[c.TenantID]
		figures, err = s.Figures.OfLog(ctx, t, c, &history)
		return err
	})
	return figures, err
}

// SavePeriodChange implements billing.PeriodTx.
func (t Tx) SavePeriodChange(tenant uuid.UUID, c domain.PeriodChange, at time.Time) error {
	return t.Exec("change of a period", `INSERT INTO period_changes (tenant_id, position, period_key, snapshot, change, changed_at)
		VALUES ($1, $2, $3, $4, $5, $6)`,
		tenant, c.Position, c.PeriodKey, c.Snapshot, c.Change, at)
}

const periodEventSQL = `SELECT l.event_id, coalesce(l.correlation_id, '00000000-0000-0000-0000-000000000000') FROM period_changes c
 JOIN event_log_rows l ON l.partition = $1 AND l.position = c.position WHERE c.tenant_id = $2 AND c.period_key = $3 AND c.snapshot = $4
 AND c.change = $5`

// EventOf returns the event of a change of a period. If its row is missing there is no trace: that must hold back no close and no push.
func EventOf(ctx context.Context, s *store.Store, of domain.Closing, change string) (e events.TracedEvent, err error) {
	err = s.Pool().QueryRow(ctx, periodEventSQL, events.PartitionOf(of.TenantID), of.TenantID, of.PeriodKey, of.Snapshot, change).
		Scan(&e.EventID, &e.Trace)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return e, store.Unavailable(fmt.Errorf("reading the event of a period (%s %s of tenant %s): %w", of.PeriodKey, change, of.TenantID,
			err))
	}
	return e, nil
}

// PeriodEvent implements billing.PeriodStore.
func (s *Periods) PeriodEvent(ctx context.Context, of domain.Closing, change string) (events.TracedEvent, error) {
	return EventOf(ctx, s.Store, of, change)
}

// FiguresOfRows implements billing.FreezeTx.
func (t *periodTx) FiguresOfRows(c domain.Closing, known *domain.LateVerdicts) (domain.Figures, error) {
	return t.figures.OfRows(t.Context(), t.DB(), c, known)
}

// FrozenDespite implements billing.FreezeTx.
func (t Tx) FrozenDespite(c domain.Closing) (despite []string, err error) {
	err = t.DB().QueryRow(t.Context(), `SELECT despite FROM period_snapshots WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3`,
		c.TenantID, c.PeriodKey, c.Snapshot).Scan(&despite)
	if err != nil {
		return nil, store.Unavailable(fmt.Errorf("reading a snapshot (%s of tenant %s): %w", c.PeriodKey, c.TenantID, err))
	}
	return despite, nil
}

const (
	addSnapshotSQL = `INSERT INTO period_snapshots (tenant_id, period_key, snapshot, cut, frozen_position, frozen_at, logic, logic_hash,
		figures_hash, lines, despite, charges_hash)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	addLinesSQL = `INSERT INTO period_lines (tenant_id, period_key, snapshot, feature, subscription_id, amount, event_count, last_event_at)
 SELECT $1, $2, $3, * FROM unnest($4::text[], $5::uuid[], $6::numeric[], $7::bigint[], $8::timestamptz[])`
)

// SaveSnapshot implements billing.FreezeTx.
func (t Tx) SaveSnapshot(s domain.Snapshot) error {
	n := len(s.Figures.Lines)
	features, subscriptions, amounts := make([]string, n), make([]uuid.UUID, n), make([]string, n)
	counts, lasts := make([]int64, n), make([]time.Time, n)
	for i, l := range s.Figures.Lines {
		features[i], subscriptions[i], amounts[i], counts[i], lasts[i] = l.Feature, l.SubscriptionID, l.Amount.String(), l.EventCount,
			l.LastEventAt
	}
	t.Queue("snapshot of a period", addSnapshotSQL, s.TenantID, s.PeriodKey, s.Snapshot, s.Cut, s.FrozenPosition, s.FrozenAt,
		s.Figures.Logic, s.Figures.LogicHash, s.FiguresHash, n, s.Despite, s.ChargesHash)
	t.queueCharges(s)
	return t.Exec("snapshot's lines", addLinesSQL, s.TenantID, s.PeriodKey, s.Snapshot, features, subscriptions, amounts, counts, lasts)
}

const addChargesSQL = `INSERT INTO period_charges (tenant_id, period_key, snapshot, feature, subscription_id, grant_number, status, starts,
	ends, amount, event_count,
  price, price_version, currency, micro_units)
SELECT $1, $2, $3, * FROM unnest($4::text[], $5::uuid[], $6::bigint[], $7::text[], $8::timestamptz[], $9::timestamptz[], $10::numeric[],
$11::bigint[],
  $12::text[], $13::bigint[], $14::text[], $15::numeric[])`

// queueCharges inserts the charges of a snapshot.
func (t Tx) queueCharges(s domain.Snapshot) {
	var features, statuses, amounts []string
	var subscriptions []uuid.UUID
	var grants, counts []int64
	var starts, ends []*time.Time
	var prices, currencies, charges []*string
	var versions []*int64
	for i := range s.Figures.Charges {
		l := s.Figures.Charges[i].Frozen()
		features, subscriptions, grants, statuses = append(features, l.Feature), append(subscriptions, l.SubscriptionID),
			append(grants, l.Grant), append(statuses, l.Status)
		starts, ends, amounts, counts = append(starts, l.From), append(ends, l.To), append(amounts, l.Amount), append(counts, l.EventCount)
		if l.Price == "" {
			prices, versions, currencies, charges = append(prices, nil), append(versions, nil), append(currencies, nil),
				append(charges, nil)
			continue
		}
		prices, versions, currencies, charges = append(prices, &l.Price), append(versions, &l.PriceVersion),
			append(currencies, &l.Currency), append(charges, &l.MicroUnits)
	}
	t.Queue("snapshot's charges", addChargesSQL, s.TenantID, s.PeriodKey, s.Snapshot, features, subscriptions, grants, statuses, starts,
		ends, amounts, counts,
		prices, versions, currencies, charges)
}

const (
	adjustmentsSQL = `SELECT id, tenant_id, period_key, snapshot, state, to_json(amount) AS amount FROM adjustments
		WHERE tenant_id = $1 AND id = ANY ($2) ORDER BY id`

	pendingSQL = `SELECT count(*), coalesce(sum(amount), 0)::text FROM adjustments
 WHERE tenant_id = $1 AND snapshot = $2 AND period_key = $3 AND state = 'PENDING' AND position <= $4 AND $5 IN ('', feature) AND $6 IN ('',
 kind)`

	approvedSQL = `SELECT count(*) FROM adjustments WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3 AND state = 'APPROVED'`
)

// Adjustments implements billing.PeriodTx.
func (t Tx) Adjustments(tenant uuid.UUID, ids []uuid.UUID) ([]domain.Adjustment, error) {
	return store.FindAll(t.Context(), t.DB(), "reading adjustments", pgx.RowToStructByName[domain.Adjustment], adjustmentsSQL, tenant, ids)
}

// PendingAdjustments implements billing.PeriodTx.
func (t Tx) PendingAdjustments(tenant uuid.UUID, snapshot int, scope events.AdjustmentScope) (count int64, amount string, err error) {
	err = t.DB().QueryRow(t.Context(), pendingSQL, tenant, snapshot, scope.PeriodKey, scope.UpTo.Number, scope.Feature, scope.Kind).
		Scan(&count, &amount)
	if err != nil {
		return 0, "", fmt.Errorf("counting adjustments: %w", err)
	}
	return count, amount, nil
}

// ApprovedAdjustments implements billing.PeriodTx.
func (t Tx) ApprovedAdjustments(tenant uuid.UUID, periodKey string, snapshot int) (count int64, err error) {
	if err := t.DB().QueryRow(t.Context(), approvedSQL, tenant, periodKey, snapshot).Scan(&count); err != nil {
		return 0, fmt.Errorf("counting adjustments: %w", err)
	}
	return count, nil
}

// TenantsOfAdjustments implements billing.PeriodStore.
func (s *Periods) TenantsOfAdjustments(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]uuid.UUID, error) {
	rows, err := s.Store.Pool().Query(ctx, `SELECT id, tenant_id FROM adjustments WHERE id = ANY ($1)`, ids)
	if err != nil {
		return nil, store.Unavailable(err)
	}
	found := make(map[uuid.UUID]uuid.UUID, len(ids))
	var id, tenant uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id, &tenant}, func() error {
		found[id] = tenant
		return nil
	})
	return found, store.Unavailable(err)
}

// ClosedTenants implements billing.PeriodStore.
func (s *Periods) ClosedTenants(ctx context.Context) ([]uuid.UUID, error) {
	list, err := store.FindAll(ctx, s.Store.Pool(), "reading tenants of snapshots", pgx.RowTo[uuid.UUID],
		`SELECT DISTINCT tenant_id FROM period_snapshots ORDER BY tenant_id`)
	return list, store.Unavailable(err)
}
