package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/tables"
)

// watched are the accounts that rows change, of tenants with thresholds, with their used amounts before the rows.
type watched struct {
	used       map[domain.AccountKey]*big.Int
	thresholds map[uuid.UUID][]domain.Threshold // of each tenant, in the order of their positions
	limit      func(domain.AccountKey) *int64   // in force at the lock of the head
}

// watchersSQL finds the tenants that have thresholds, behind the locks of the heads, in their round trip. LATERAL with LIMIT forces one look-up for each.
const watchersSQL = `SELECT k.tenant_id FROM unnest($1::uuid[]) AS k (tenant_id)
 CROSS JOIN LATERAL (SELECT t.id FROM thresholds t WHERE t.tenant_id = k.tenant_id AND t.removed IS NULL LIMIT 1) t`

// watchedSQL reads the accounts that a transaction is about to change, with the thresholds of their tenants and the last subscription.
const watchedSQL = `SELECT k.tenant_id, k.feature, k.period_key, coalesce(a.used, 0)::text, t.id, t.feature, t.percent, t.amount, s.snapshot::text
 FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (tenant_id, feature, period_key)
 CROSS JOIN LATERAL (SELECT t.id, t.feature, t.percent, t.amount, t.position FROM thresholds t
  WHERE t.tenant_id = k.tenant_id AND t.removed IS NULL AND t.feature IN ('', k.feature) LIMIT 100) t
 LEFT JOIN LATERAL (SELECT q.used FROM quota_accounts q
  WHERE q.tenant_id = k.tenant_id AND q.feature = k.feature AND q.period_key = k.period_key LIMIT 1) a ON true
 LEFT JOIN LATERAL (SELECT h.snapshot FROM subscription_history h WHERE h.tenant_id = k.tenant_id ORDER BY h.from_position DESC LIMIT 1) s ON true
 ORDER BY t.position`

// risen lists the accounts whose used amount some pending events raise, each once.
func risen(pending []*events.Pending) (keys []domain.AccountKey) {
	var listed map[domain.AccountKey]bool
	for _, p := range pending {
		if p.Account == nil || p.Account.Used <= 0 {
			continue
		}
		key := domain.AccountKey{TenantID: p.TenantID, Feature: p.Account.Feature, PeriodKey: p.Account.PeriodKey}
		if !listed[key] {
			if listed == nil {
				listed = map[domain.AccountKey]bool{}
			}
			listed[key], keys = true, append(keys, key)
		}
	}
	return keys
}

// watchers are the accounts that pending events raise, and those of their tenants that have thresholds.
type watchers struct {
	keys []domain.AccountKey
	some []uuid.UUID
}

// readingWatchers returns the read of the tenants with thresholds whose accounts some pending events raise; nil without such events.
func readingWatchers(pending []*events.Pending) (*LockedRead, *watchers) {
	w := &watchers{keys: risen(pending)}
	if len(w.keys) == 0 {
		return nil, w
	}
	var tenants []uuid.UUID
	for _, k := range w.keys {
		if !slices.Contains(tenants, k.TenantID) {
			tenants = append(tenants, k.TenantID)
		}
	}
	return &LockedRead{server.Statement{SQL: watchersSQL, Args: []any{tenants}}, func(rows pgx.Rows) (err error) {
		if w.some, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
			return fmt.Errorf("finding thresholds: %w", err)
		}
		return nil
	}}, w
}

// watched reads the accounts of the tenants with thresholds; nil without any.
func (w *watchers) watched(ctx context.Context, q postgres.Queryer) (*watched, error) {
	keys := slices.DeleteFunc(w.keys, func(k domain.AccountKey) bool { return !slices.Contains(w.some, k.TenantID) })
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := q.Query(ctx, watchedSQL, tables.KeyColumns(keys)...)
	if err != nil {
		return nil, fmt.Errorf("reading thresholds: %w", err)
	}
	of := &watched{used: map[domain.AccountKey]*big.Int{}, thresholds: map[uuid.UUID][]domain.Threshold{}}
	return of, of.scan(rows)
}

func (w *watched) scan(rows pgx.Rows) error {
	subscriptions := map[uuid.UUID]*domain.Subscription{}
	w.limit = func(k domain.AccountKey) *int64 { return subscriptions[k.TenantID].LimitOf(k.Feature, k.PeriodKey) }
	var key domain.AccountKey
	var used string
	var t domain.Threshold
	var snapshot *string
	_, err := pgx.ForEachRow(rows, []any{&key.TenantID, &key.Feature, &key.PeriodKey, &used, &t.ID, &t.Feature, &t.Percent, &t.Amount, &snapshot}, func() error {
		n, ok := new(big.Int).SetString(used, 10)
		if !ok {
			return fmt.Errorf("the account of %s in %s is no sum of integers: %s", key.Feature, key.PeriodKey, used)
		}
		w.used[key] = n
		if list := w.thresholds[key.TenantID]; !slices.ContainsFunc(list, func(o domain.Threshold) bool { return o.ID == t.ID }) {
			w.thresholds[key.TenantID] = append(list, t)
		}
		if _, known := subscriptions[key.TenantID]; known || snapshot == nil {
			return nil
		}
		s := new(domain.Subscription)
		if json.Unmarshal([]byte(*snapshot), s) != nil {
			s = nil // usage of the tenant has no verdict
		}
		subscriptions[key.TenantID] = s
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading thresholds: %w", err)
	}
	return nil
}

// raised is a threshold.crossed, with the row that crosses.
type raised struct {
	events.Pending
	origin int32
}

// crossings returns the events of the thresholds that rows cross, in the order of the rows. Each has the origin of its row: its cause.
func (w *watched) crossings(rows []server.Row, newID func() uuid.UUID) (list []raised, err error) {
	if w == nil || len(w.used) == 0 {
		return nil, nil
	}
	used, seen := maps.Clone(w.used), map[string]bool{}
	for i := range rows {
		r := &rows[i]
		if r.Account == nil || r.Account.Used == 0 {
			continue
		}
		key := domain.AccountKey{TenantID: r.TenantID, Feature: r.Account.Feature, PeriodKey: r.Account.PeriodKey}
		before, ok := used[key]
		if !ok {
			continue
		}
		after := new(big.Int).Add(before, big.NewInt(r.Account.Used))
		used[key] = after
		crossed := domain.Crossings(w.thresholds[r.TenantID], key.Feature, w.limit(key), before, after)
		for n := range crossed {
			c := &crossed[n]
			once := events.KeyThreshold(c.Threshold.ID, key.Feature, key.PeriodKey, c.Value)
			if seen[once] {
				continue
			}
			seen[once] = true
			payload, err := codec.EncodePayload(events.ThresholdCrossed, c.Event(key.Feature, key.PeriodKey))
			if err != nil {
				return nil, err
			}
			list = append(list, raised{events.Pending{EventID: newID(), Subject: events.ThresholdCrossed, TenantID: r.TenantID, DedupeKey: once, CorrelationID: r.CorrelationID,
				CausationID: r.EventID, Actor: r.Actor, Residency: r.Residency, OccurredAt: r.Recorded, Payload: payload}, r.Origin})
		}
	}
	return list, nil
}

// planAnew lets a session that keeps plans make the next one again: the plan of a look-up depends on the size of the log.
func planAnew(ctx context.Context, q postgres.Queryer) error {
	rows, err := q.Query(ctx, planAnewSQL)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("plan the statement again: %w", err)
	}
	return nil
}

// unknown leaves out the crossings that the log has: the amount has risen to the threshold again.
func unknown(ctx context.Context, q postgres.Queryer, list []raised) ([]raised, error) {
	if len(list) == 0 {
		return nil, nil
	}
	if err := planAnew(ctx, q); err != nil {
		return nil, err
	}
	pending := make([]*events.Pending, len(list))
	for i := range list {
		pending[i] = &list[i].Pending
	}
	known, err := dedupe.Probe(ctx, q, pending)
	return slices.DeleteFunc(list, func(r raised) bool { _, ok := known[dedupe.KeyOf(&r.Pending)]; return ok }), err
}

// raise places the crossings of rows behind them.
func (w *watched) raise(ctx context.Context, q postgres.Queryer, places *placer, rows []server.Row, newID func() uuid.UUID) ([]server.Row, error) {
	list, err := w.crossings(rows, newID)
	if err == nil {
		list, err = unknown(ctx, q, list)
	}
	if err != nil {
		return rows, err
	}
	for i := range list {
		rows = append(rows, places.place(&list[i].Pending, list[i].origin))
	}
	return rows, nil
}

// raise places the crossings of the group's rows, also of follow-ups that were folded inline. A group whose tenants have no thresholds has no
// statement more: the histories that its requests are decided by hold the thresholds.
func (g *group) raise(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, decided int) error {
	w, err := g.watched(ctx, conn, hs, quotas, decided)
	if err != nil || w == nil {
		return err
	}
	g.rows, err = w.raise(ctx, conn, &placer{heads: hs, now: g.log.now()}, g.rows, g.log.cfg.NewID)
	return err
}

// watched returns the accounts that the group's rows raise, of tenants with thresholds; nil without any. The ledger has the amounts after the first
// rows, those that were decided.
func (g *group) watched(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, decided int) (*watched, error) {
	pending := make([]*events.Pending, 0, len(g.rows))
	for i := range g.rows {
		if g.rows[i].Account != nil {
			pending = append(pending, g.rows[i].Pending)
		}
	}
	keys := risen(pending)
	if len(keys) == 0 || g.log.cfg.Histories == nil {
		return nil, nil
	}
	histories, err := g.historiesOf(ctx, conn, hs, quotas, keys)
	if err != nil {
		return nil, err
	}
	keys = slices.DeleteFunc(keys, func(k domain.AccountKey) bool { return len(histories[k.TenantID].Thresholds) == 0 })
	if len(keys) == 0 {
		return nil, nil
	}
	w := &watched{used: map[domain.AccountKey]*big.Int{}, thresholds: map[uuid.UUID][]domain.Threshold{},
		limit: func(k domain.AccountKey) *int64 {
			return histories[k.TenantID].LimitOf(math.MaxInt64, k.Feature, k.PeriodKey)
		}}
	ledger := domain.NewLedger(time.Time{})
	if quotas != nil {
		ledger = quotas.ledger
	}
	var unread []domain.AccountKey
	for _, k := range keys {
		w.thresholds[k.TenantID] = histories[k.TenantID].Thresholds
		if used := ledger.Used(k); used != nil {
			w.used[k] = used
		} else {
			unread = append(unread, k)
		}
	}
	w.subtract(g.rows[:decided])
	return w, w.read(ctx, conn, unread)
}

// historiesOf returns the histories of the tenants of accounts as of the locked heads. They are cached, unless the catalogue has changed.
func (g *group) historiesOf(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, keys []domain.AccountKey) (map[uuid.UUID]domain.TenantHistory, error) {
	var missing []uuid.UUID
	for _, k := range keys {
		if quotas != nil {
			if _, ok := quotas.histories[k.TenantID]; ok {
				continue
			}
		}
		if !slices.Contains(missing, k.TenantID) {
			missing = append(missing, k.TenantID)
		}
	}
	if len(missing) == 0 {
		return quotas.histories, nil
	}
	histories, err := g.log.cfg.Histories.Of(ctx, conn.Query, missing, hs.stretches())
	if err == nil && quotas != nil {
		for t, h := range quotas.histories {
			histories[t] = h
		}
	}
	return histories, err
}

// subtract turns the amounts after rows into those before.
func (w *watched) subtract(rows []server.Row) {
	for i := range rows {
		if c := rows[i].Account; c != nil {
			if used := w.used[domain.AccountKey{TenantID: rows[i].TenantID, Feature: c.Feature, PeriodKey: c.PeriodKey}]; used != nil {
				used.Sub(used, big.NewInt(c.Used))
			}
		}
	}
}

// read reads the amounts that the ledger does not have: those of verdicts.
func (w *watched) read(ctx context.Context, conn server.Session, keys []domain.AccountKey) error {
	if len(keys) == 0 {
		return nil
	}
	read := tables.ReadAccounts(keys)
	rows, err := conn.Query(ctx, read.SQL, read.Args...)
	if err != nil {
		return fmt.Errorf("reading accounts: %w", err)
	}
	ledger := domain.NewLedger(time.Time{})
	if err := tables.ScanAccounts(rows, keys, ledger); err != nil {
		return err
	}
	for _, k := range keys {
		w.used[k] = ledger.Used(k)
	}
	return nil
}
