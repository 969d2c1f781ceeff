// Package crossings finds the thresholds that the rows of an append cross.
package crossings

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/tables"
)

// Watched are the accounts that rows change, of tenants with thresholds, with their used amounts before the rows.
type Watched struct {
	Used       map[domain.AccountKey]*big.Int
	Thresholds map[uuid.UUID][]domain.Threshold // of each tenant, in the order of their positions
	Limit      func(domain.AccountKey) *int64   // in force at the lock of the head
}

// watchersSQL finds the tenants that have thresholds, under the locks of the heads, in their round trip. LATERAL with LIMIT forces one
// look-up for each.
const watchersSQL = `SELECT k.tenant_id FROM unnest($1::uuid[]) AS k (tenant_id)
 CROSS JOIN LATERAL (SELECT t.id FROM thresholds t WHERE t.tenant_id = k.tenant_id AND t.removed IS NULL LIMIT 1) t`

// watchedSQL reads the accounts that a transaction is about to change, with the thresholds of their tenants and the last subscription.
const watchedSQL = `SELECT k.tenant_id, k.feature, k.period_key, coalesce(a.used, 0)::text, t.id, t.feature, t.percent, t.amount,
	s.snapshot::text
 FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (tenant_id, feature, period_key)
 CROSS JOIN LATERAL (SELECT t.id, t.feature, t.percent, t.amount, t.position FROM thresholds t
  WHERE t.tenant_id = k.tenant_id AND t.removed IS NULL AND coalesce(t.feature, k.feature) = k.feature LIMIT 100) t
 LEFT JOIN LATERAL (SELECT q.used FROM quota_accounts q
  WHERE q.tenant_id = k.tenant_id AND q.feature = k.feature AND q.period_key = k.period_key LIMIT 1) a ON true
 LEFT JOIN LATERAL (SELECT h.snapshot FROM subscription_history h WHERE h.tenant_id = k.tenant_id ORDER BY h.from_position DESC
 LIMIT 1) s ON true
 ORDER BY t.position`

// Risen lists the accounts whose used amount some pending events raise, each once.
func Risen(pending []*events.Pending) (keys []domain.AccountKey) {
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

// Watchers are the accounts that pending events raise, and those of their tenants that have thresholds.
type Watchers struct {
	keys []domain.AccountKey
	some []uuid.UUID
}

// NewWatchers returns the accounts that pending events raise; nil without such events.
func NewWatchers(pending []*events.Pending) *Watchers {
	keys := Risen(pending)
	if len(keys) == 0 {
		return nil
	}
	return &Watchers{keys: keys}
}

// Statement returns the statement whose rows Scan reads.
func (w *Watchers) Statement() server.Statement {
	var tenants []uuid.UUID
	for _, k := range w.keys {
		if !slices.Contains(tenants, k.TenantID) {
			tenants = append(tenants, k.TenantID)
		}
	}
	return server.Statement{SQL: watchersSQL, Args: []any{tenants}}
}

// Scan notes the tenants that have thresholds.
func (w *Watchers) Scan(rows pgx.Rows) (err error) {
	if w.some, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return fmt.Errorf("finding thresholds: %w", err)
	}
	return nil
}

// Watched reads the accounts of the tenants with thresholds; nil without any.
func (w *Watchers) Watched(ctx context.Context, q postgres.Queryer) (*Watched, error) {
	if w == nil {
		return nil, nil
	}
	keys := slices.DeleteFunc(w.keys, func(k domain.AccountKey) bool { return !slices.Contains(w.some, k.TenantID) })
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := q.Query(ctx, watchedSQL, tables.KeyColumns(keys)...)
	if err != nil {
		return nil, fmt.Errorf("reading thresholds: %w", err)
	}
	of := &Watched{Used: map[domain.AccountKey]*big.Int{}, Thresholds: map[uuid.UUID][]domain.Threshold{}}
	return of, of.scan(rows)
}

func (w *Watched) scan(rows pgx.Rows) error {
	subscriptions := map[uuid.UUID]*domain.Subscription{}
	w.Limit = func(k domain.AccountKey) *int64 { return subscriptions[k.TenantID].LimitOf(k.Feature, k.PeriodKey) }
	var key domain.AccountKey
	var used string
	var t domain.Threshold
	var snapshot *string
	_, err := pgx.ForEachRow(rows, []any{&key.TenantID, &key.Feature, &key.PeriodKey, &used, &t.ID, &t.Feature, &t.Percent, &t.Amount,
		&snapshot}, func() error {
		n, ok := new(big.Int).SetString(used, 10)
		if !ok {
			return fmt.Errorf("the account of %s in %s is no sum of integers: %s", key.Feature, key.PeriodKey, used)
		}
		w.Used[key] = n
		if list := w.Thresholds[key.TenantID]; !slices.ContainsFunc(list, func(o domain.Threshold) bool { return o.ID == t.ID }) {
			w.Thresholds[key.TenantID] = append(list, t)
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

// Crossing is a threshold.crossed, with the number of its origin: that of the row that crosses.
type Crossing struct {
	events.Pending
	Origin int32
}

// Crossings returns the events of the thresholds that rows cross, in the order of the rows. Each has the origin of its row: its cause.
func (w *Watched) Crossings(rows []server.Row, newID func() uuid.UUID) (list []Crossing, err error) {
	if w == nil || len(w.Used) == 0 {
		return nil, nil
	}
	used, seen := maps.Clone(w.Used), map[string]bool{}
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
		crossed := domain.Crossings(w.Thresholds[r.TenantID], key.Feature, w.Limit(key), before, after)
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
			list = append(list, Crossing{events.Pending{EventID: newID(), Subject: events.ThresholdCrossed, TenantID: r.TenantID,
				DedupeKey: once, CorrelationID: r.CorrelationID,
				CausationID: r.EventID, Actor: r.Actor, Residency: r.Residency, OccurredAt: r.Recorded, Payload: payload}, r.Origin})
		}
	}
	return list, nil
}

// Subtract turns the amounts after rows into those before.
func (w *Watched) Subtract(rows []server.Row) {
	for i := range rows {
		if c := rows[i].Account; c != nil {
			if used := w.Used[domain.AccountKey{TenantID: rows[i].TenantID, Feature: c.Feature, PeriodKey: c.PeriodKey}]; used != nil {
				used.Sub(used, big.NewInt(c.Used))
			}
		}
	}
}

// Read reads the amounts that the ledger does not have: those of verdicts.
func (w *Watched) Read(ctx context.Context, conn server.Session, keys []domain.AccountKey) error {
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
		w.Used[k] = ledger.Used(k)
	}
	return nil
}
