// Package offboardings keeps the ends of tenants: offboardings, and erasures of personal data.
package offboardings

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/closes"
	"github.com/meterplex/meterplex/projections"
)

var (
	_ offboarding.Store = (*Offboardings)(nil)
	_ offboarding.Tx    = offboardingTx{}
)

// Offboardings changes offboardings. It implements offboarding.Store.
type Offboardings struct{ Store *store.Store }

// offboardingTx is a step of an offboarding.
type offboardingTx struct {
	*store.Tx
	periods
}

type periods = closes.Tx

const offboardingSQL = `SELECT ` + store.OffboardingColumns + ` FROM offboardings WHERE id = $1`

// OffboardingByID implements offboarding.Tx.
func (t offboardingTx) OffboardingByID(id uuid.UUID) (*domain.Offboarding, error) {
	return store.Find(t.Context(), t.DB(), store.RowToOffboarding, offboardingSQL, id)
}

// ChangeOffboarding implements offboarding.Store. Cached keys, subscriptions and histories of the tenant are outdated by it.
func (s *Offboardings) ChangeOffboarding(ctx context.Context, tenant uuid.UUID, decide func(offboarding.Tx) error) error {
	return s.Store.ChangeTenant(ctx, tenant, func(tx *store.Tx) error { return decide(offboardingTx{tx, periods{Tx: tx}}) }, tenant)
}

const saveOffboardingSQL = `INSERT INTO offboardings (` + store.OffboardingColumns + `)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
 ON CONFLICT (id) DO UPDATE SET state = excluded.state, step = excluded.step, cancel_reason = excluded.cancel_reason,
 cancel_actor = excluded.cancel_actor, suspended_at = excluded.suspended_at,
  drained_to = excluded.drained_to, closed = excluded.closed, exports = excluded.exports, manifest = excluded.manifest,
  ended_at = excluded.ended_at`

// SaveOffboarding implements offboarding.Tx.
func (t offboardingTx) SaveOffboarding(o domain.Offboarding) error {
	closed := []string{}
	for _, c := range o.Closed {
		closed = append(closed, c.PeriodKey+"/"+strconv.Itoa(c.Snapshot))
	}
	var manifest *string
	if o.Manifest != nil {
		text := string(o.Manifest)
		manifest = &text
	}
	return t.Exec("offboarding", saveOffboardingSQL, o.ID, o.TenantID, o.SagaID, o.State, o.Step, o.Reason, o.Actor, o.CancelReason,
		o.CancelActor, o.RequestedAt, o.SuspendedAt,
		o.DrainedTo, closed, o.Exports, manifest, o.EndedAt)
}

func (t offboardingTx) row(sql string, args []any, into ...any) error {
	if err := t.DB().QueryRow(t.Context(), sql, args...).Scan(into...); err != nil {
		return fmt.Errorf("reading for an offboarding: %w", err)
	}
	return nil
}

// LastNumber implements offboarding.Tx.
func (t offboardingTx) LastNumber(tenant uuid.UUID) (last int64, err error) {
	return last, t.row(`SELECT position FROM log_heads WHERE partition = $1`, []any{events.PartitionOf(tenant)}, &last)
}

// ofAnySnapshot lets missingIn look at the late verdicts of all closed periods, too.
const ofAnySnapshot = -1

// MissingUsage implements offboarding.Tx. Rebuilds of single periods are awaited by their closes.
func (t offboardingTx) MissingUsage(tenant uuid.UUID, upTo int64) ([]string, error) {
	missing, err := closes.MissingIn(t.Context(), t.DB(), domain.Closing{TenantID: tenant, Snapshot: ofAnySnapshot}, upTo)
	return slices.DeleteFunc(missing, func(condition string) bool { return condition == domain.MissingRebuilds }), err
}

// HeldCount implements offboarding.Tx.
func (t offboardingTx) HeldCount(tenant uuid.UUID) (count int64, err error) {
	return count, t.row(`SELECT count(*) FROM reservations WHERE tenant_id = $1 AND state = 'HELD'`, []any{tenant}, &count)
}

const heldOfTenantSQL = `SELECT r.tenant_id, coalesce((SELECT t.data_residency FROM tenants t WHERE t.id = r.tenant_id), ''),
	r.reservation_id, r.feature
 FROM reservations r WHERE r.state = 'HELD' AND r.tenant_id = $1 ORDER BY r.feature, r.period_key, r.expires_at, r.reservation_id LIMIT $2`

// HeldReservations implements offboarding.Store.
func (s *Offboardings) HeldReservations(ctx context.Context, tenant uuid.UUID, limit int) ([]metering.DueReservation, error) {
	list, err := store.FindAll(ctx, s.Store.Pool(), "reading reservations", pgx.RowToStructByPos[metering.DueReservation], heldOfTenantSQL,
		tenant, limit)
	return list, store.Unavailable(err)
}

func (t offboardingTx) texts(sql string, args ...any) ([]string, error) {
	return store.FindAll(t.Context(), t.DB(), "reading for an offboarding", pgx.RowTo[string], sql, args...)
}

// UsedPeriods implements offboarding.Tx.
func (t offboardingTx) UsedPeriods(tenant uuid.UUID) ([]string, error) {
	return t.texts(`SELECT DISTINCT u.period_key FROM usage_aggregates u WHERE u.tenant_id = $1 AND u.generation = live_generation($2,
		u.tenant_id, u.period_key) ORDER BY 1`,
		tenant, projections.ProjectionUsage)
}

// waitingPushesSQL returns pushes that are not delivered, and periods whose saga has not ended: it may not have stored their pushes.
const waitingPushesSQL = `SELECT name FROM (
  SELECT 'push ' || key || ' ' || state AS name FROM pushes WHERE tenant_id = $1 AND state <> 'DELIVERED'
  UNION ALL SELECT 'push of ' || key FROM sagas WHERE kind = $2 AND tenant_id = $1 AND ended_at IS NULL) w ORDER BY name LIMIT 20`

// WaitingPushes implements offboarding.Tx.
func (t offboardingTx) WaitingPushes(tenant uuid.UUID) ([]string, error) {
	return t.texts(waitingPushesSQL, tenant, billing.SagaBillingPush)
}

// Snapshots implements offboarding.Tx.
func (t offboardingTx) Snapshots(tenant uuid.UUID) ([]domain.Closing, error) {
	return snapshotsOf(t.Context(), t.DB(), tenant)
}

func snapshotsOf(ctx context.Context, tx postgres.Queryer, tenant uuid.UUID) ([]domain.Closing, error) {
	return store.FindAll(ctx, tx, "reading snapshots", pgx.RowToStructByName[domain.Closing],
		`SELECT tenant_id, period_key, snapshot FROM period_snapshots WHERE tenant_id = $1 ORDER BY period_key, snapshot`, tenant)
}

const exportedSnapshotsSQL = `SELECT s.period_key, s.snapshot, s.cut, s.logic, s.figures_hash, l.feature, l.subscription_id,
 to_json(l.amount), l.event_count
 FROM period_snapshots s LEFT JOIN period_lines l USING (tenant_id, period_key, snapshot) WHERE s.tenant_id = $1
 ORDER BY s.period_key, s.snapshot, l.feature, l.subscription_id`

// exportedLogSQL returns the tenant's events. A line of the export is the position, the id, the subject and the payload.
const exportedLogSQL = `SELECT l.position, l.event_id, l.subject, l.payload::text FROM event_log_rows l WHERE l.partition = $2
	AND l.tenant_id = $1 ORDER BY l.position`

// Manifest implements offboarding.Store.
func (s *Offboardings) Manifest(ctx context.Context, offboarding, tenant uuid.UUID) (m *domain.OffboardingManifest, epoch int32,
	err error) {
	err = closes.InSnapshot(ctx, s.Store, func(tx pgx.Tx) error {
		m = nil
		if listed, err := listedBefore(ctx, tx, offboarding, tenant); err != nil || listed {
			return err
		}
		head, err := store.ReadHead(ctx, tx, events.PartitionOf(tenant))
		if err != nil {
			return err
		}
		made := domain.OffboardingManifest{TenantID: tenant}
		if made.Snapshots, err = exportedSnapshots(ctx, tx, tenant); err != nil {
			return err
		}
		if made.Log, err = exportedLog(ctx, tx, tenant); err != nil {
			return err
		}
		m, epoch = &made, head.Epoch
		return nil
	})
	return m, epoch, err
}

// listedBefore reports whether the manifest of an offboarding lists all snapshots of the tenant.
func listedBefore(ctx context.Context, tx pgx.Tx, offboarding, tenant uuid.UUID) (bool, error) {
	o, err := store.Find(ctx, tx, store.RowToOffboarding, offboardingSQL, offboarding)
	if err != nil || o == nil {
		return false, err
	}
	snapshots, err := snapshotsOf(ctx, tx, tenant)
	if err != nil {
		return false, err
	}
	return o.Lists(snapshots)
}

func exportedSnapshots(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) ([]domain.ExportedSnapshot, error) {
	rows, err := tx.Query(ctx, exportedSnapshotsSQL, tenant)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list, of, hashes := []domain.ExportedSnapshot{}, []*domain.Figures{}, []string{}
	for rows.Next() {
		var e domain.ExportedSnapshot
		var cut int64
		var logic, hash string
		var feature *string
		var subscription *uuid.UUID
		var amount *big.Int
		var count *int64
		if err := rows.Scan(&e.PeriodKey, &e.Snapshot, &cut, &logic, &hash, &feature, &subscription, &amount, &count); err != nil {
			return nil, err
		}
		if n := len(list); n == 0 || list[n-1].PeriodKey != e.PeriodKey || list[n-1].Snapshot != e.Snapshot {
			e.Cut = events.Position{Partition: events.PartitionOf(tenant), Number: cut}
			list, of, hashes = append(list, e), append(of, &domain.Figures{Logic: logic}), append(hashes, hash)
		}
		if feature == nil {
			continue // without lines
		}
		figures := of[len(of)-1]
		figures.Lines = append(figures.Lines, domain.FigureLine{Feature: *feature, SubscriptionID: *subscription, Amount: amount,
			EventCount: *count})
	}
	for i := range list {
		e := &list[i]
		document := of[i].Document(tenant, e.PeriodKey, e.Snapshot, e.Cut)
		sum := sha256.Sum256(document)
		if e.Lines, e.Bytes, e.SHA256 = len(of[i].Lines), int64(len(document)), hex.EncodeToString(sum[:]); e.SHA256 != hashes[i] {
			return nil, fmt.Errorf("the lines of the snapshot %d of %s do not have its hash", e.Snapshot, e.PeriodKey)
		}
	}
	return list, rows.Err()
}

func exportedLog(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) (e domain.ExportedLog, err error) {
	partition, sum, line := events.PartitionOf(tenant), sha256.New(), []byte{}
	rows, err := tx.Query(ctx, exportedLogSQL, tenant, partition)
	if err != nil {
		return e, err
	}
	defer rows.Close()
	for rows.Next() {
		at := events.Position{Partition: partition}
		var id uuid.UUID
		var subject events.Subject
		var payload string
		if err := rows.Scan(&at.Number, &id, &subject, &payload); err != nil {
			return e, err
		}
		line = append(append(append(line[:0], at.String()...), ' '), id.String()...)
		line = strconv.AppendInt(append(line, ' '), int64(subject), 10)
		line = append(append(append(line, ' '), payload...), '\n')
		_, _ = sum.Write(line) // never fails
		if e.Last = &at; e.First == nil {
			e.First = &at
		}
		e.Events, e.Bytes = e.Events+1, e.Bytes+int64(len(line))
	}
	e.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return e, rows.Err()
}
