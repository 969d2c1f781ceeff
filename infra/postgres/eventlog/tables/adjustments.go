package tables

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// addAdjustmentsSQL writes the differences of closed periods that verdicts and proposals are. The heads of their tenants' partitions are
// locked: no other session reopens a period meanwhile. One of a period that was reopened after the cause of the verdict is void, since the
// next snapshot counts the verdict. A recorded event adjusts a snapshot once, however often it is retried.
const addAdjustmentsSQL = `INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount,
	event_count, position, recorded,
  source_event_id, rebuild_id, state, decided)
 SELECT u.id, u.tenant, u.period, u.snapshot, u.feature, u.subscription, u.kind, u.amount, u.count, u.position, coalesce(nullif(u.recorded,
 0), u.position),
  nullif(u.source, ''), nullif(u.rebuild, '00000000-0000-0000-0000-000000000000'),
  CASE WHEN r.Position IS NULL THEN 'PENDING' ELSE 'VOID' END, r.Position
 FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[], $5::text[], $6::uuid[], $7::text[], $8::numeric[], $9::bigint[], $10::bigint[],
 $11::bigint[],
  $12::text[], $13::uuid[]) AS u (id, tenant, period, snapshot, feature, subscription, kind, amount, count, position, recorded, source,
  rebuild)
 LEFT JOIN LATERAL (SELECT c.position FROM period_changes c
  WHERE c.tenant_id = u.tenant AND c.period_key = u.period AND c.snapshot = u.snapshot AND c.change = 'reopened' LIMIT 1) r ON true
 ON CONFLICT (tenant_id, period_key, snapshot, recorded) DO NOTHING`

// setAdjustmentsSQL sets the state of the pending adjustments that an event decides: those of ids, of a recorded event, or of a scope. A
// discard of a recorded event also voids the decided ones, unless their snapshot was reopened: those stay as they were invoiced.
const setAdjustmentsSQL = `UPDATE adjustments a SET state = u.state, reason = nullif(u.reason, ''), decided = u.position
 FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::uuid[], $6::bigint[], $7::text[], $8::int[], $9::text[], $10::text[],
 $11::bigint[])
  AS u (tenant, position, state, reason, id, recorded, period, snapshot, feature, kind, up_to)
 WHERE a.tenant_id = u.tenant AND (a.state = 'PENDING' OR u.recorded > 0 AND a.state <> 'VOID' AND NOT EXISTS (SELECT FROM period_changes c
  WHERE c.tenant_id = a.tenant_id AND c.period_key = a.period_key AND c.snapshot = a.snapshot AND c.change = 'reopened'))
  AND CASE WHEN u.id <> '00000000-0000-0000-0000-000000000000' THEN a.id = u.id
    WHEN u.recorded > 0 THEN a.recorded = u.recorded
    ELSE a.period_key = u.period AND a.snapshot = u.snapshot AND a.position <= u.up_to
      AND u.feature IN ('', a.feature) AND u.kind IN ('', a.kind) END`

// adjustmentsAdded returns the statement that writes the adjustments of rows; not ok without any.
func adjustmentsAdded(rows []server.Row) (server.Statement, bool) {
	var (
		ids, tenants, subscriptions, rebuilds []uuid.UUID
		periods, features, kinds, sources     []string
		snapshots                             []int32
		amounts                               []pgtype.Numeric
		counts, positions, recorded           []int64
	)
	for i := range rows {
		a := rows[i].Adjustment
		if a == nil {
			continue
		}
		ids, tenants, subscriptions = append(ids, rows[i].EventID), append(tenants, rows[i].TenantID),
			append(subscriptions, a.SubscriptionID)
		rebuild := uuid.Nil
		if a.RebuildID != nil {
			rebuild = *a.RebuildID
		}
		rebuilds, snapshots = append(rebuilds, rebuild), append(snapshots, int32(a.Snapshot))
		periods, features, kinds, sources = append(periods, a.PeriodKey), append(features, a.Feature), append(kinds, a.Kind),
			append(sources, a.SourceEventID)
		amounts = append(amounts, pgtype.Numeric{Int: a.Amount, Valid: true})
		counts, positions, recorded = append(counts, a.EventCount), append(positions, rows[i].Position.Number), append(recorded, a.Recorded)
	}
	return server.Statement{SQL: addAdjustmentsSQL, Args: []any{ids, tenants, periods, snapshots, features, subscriptions, kinds, amounts,
		counts, positions, recorded, sources, rebuilds}}, len(ids) > 0
}

// decidedAdjustments are the parameters of setAdjustmentsSQL.
type decidedAdjustments struct {
	tenants, ids                              []uuid.UUID
	positions, recorded, upTo                 []int64
	states, reasons, periods, features, kinds []string
	snapshots                                 []int32
}

// add adds adjustments that a row decides: one of an id, those of a recorded event, or those of a scope.
func (d *decidedAdjustments) add(r *server.Row, id uuid.UUID, recorded int64, scope events.AdjustmentScope, snapshot int) {
	c := r.Decided
	d.tenants, d.ids, d.positions, d.recorded = append(d.tenants, r.TenantID), append(d.ids, id), append(d.positions, r.Position.Number),
		append(d.recorded, recorded)
	d.states, d.reasons, d.snapshots = append(d.states, c.State), append(d.reasons, c.Reason), append(d.snapshots, int32(snapshot))
	d.periods, d.features, d.kinds = append(d.periods, scope.PeriodKey), append(d.features, scope.Feature), append(d.kinds, scope.Kind)
	d.upTo = append(d.upTo, scope.UpTo.Number)
}

// adjustmentsDecided returns the statement that decides adjustments by rows; not ok without any.
func adjustmentsDecided(rows []server.Row) (server.Statement, bool) {
	var d decidedAdjustments
	for i := range rows {
		r := &rows[i]
		switch c := r.Decided; {
		case c == nil:
		case c.Scope != nil:
			d.add(r, uuid.Nil, 0, *c.Scope, c.Snapshot)
		case c.Recorded > 0:
			d.add(r, uuid.Nil, c.Recorded, events.AdjustmentScope{}, 0)
		default:
			for _, id := range c.IDs {
				d.add(r, id, 0, events.AdjustmentScope{}, 0)
			}
		}
	}
	return server.Statement{SQL: setAdjustmentsSQL, Args: []any{d.tenants, d.positions, d.states, d.reasons, d.ids, d.recorded, d.periods,
		d.snapshots, d.features, d.kinds, d.upTo}}, len(d.ids) > 0
}
