package eventlog

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/crossings"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// readingWatchers returns the read of the tenants with thresholds whose accounts some pending events raise; nil without such events.
func readingWatchers(pending []*events.Pending) (*LockedRead, *crossings.Watchers) {
	w := crossings.NewWatchers(pending)
	if w == nil {
		return nil, nil
	}
	return &LockedRead{w.Statement(), w.Scan}, w
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
func unknown(ctx context.Context, q postgres.Queryer, list []crossings.Crossing) ([]crossings.Crossing, error) {
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
	return slices.DeleteFunc(list, func(r crossings.Crossing) bool { _, ok := known[dedupe.KeyOf(&r.Pending)]; return ok }), err
}

// appendCrossings appends the crossings of rows.
func appendCrossings(ctx context.Context, q postgres.Queryer, w *crossings.Watched, sequence *sequencer, rows []server.Row,
	newID func() uuid.UUID) ([]server.Row, error) {
	list, err := w.Crossings(rows, newID)
	if err == nil {
		list, err = unknown(ctx, q, list)
	}
	if err != nil {
		return rows, err
	}
	for i := range list {
		rows = append(rows, sequence.next(&list[i].Pending, list[i].Origin))
	}
	return rows, nil
}

// appendCrossings appends the crossings of the group's rows, also of follow-ups that were folded inline. A group whose tenants have no
// thresholds has no statement more: the histories that its requests are decided by hold the thresholds.
func (g *group) appendCrossings(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, decided int) error {
	w, err := g.watched(ctx, conn, hs, quotas, decided)
	if err != nil || w == nil {
		return err
	}
	g.rows, err = appendCrossings(ctx, conn, w, &sequencer{heads: hs, now: g.log.now()}, g.rows, g.log.cfg.NewID)
	return err
}

// watched returns the accounts that the group's rows raise, of tenants with thresholds; nil without any. The ledger has the amounts after
// the first rows, those that were decided.
func (g *group) watched(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, decided int) (*crossings.Watched,
	error) {
	pending := make([]*events.Pending, 0, len(g.rows))
	for i := range g.rows {
		if g.rows[i].Account != nil {
			pending = append(pending, g.rows[i].Pending)
		}
	}
	keys := crossings.Risen(pending)
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
	w := &crossings.Watched{Used: map[domain.AccountKey]*big.Int{}, Thresholds: map[uuid.UUID][]domain.Threshold{},
		Limit: func(k domain.AccountKey) *int64 {
			return histories[k.TenantID].LimitOf(math.MaxInt64, k.Feature, k.PeriodKey)
		}}
	ledger := domain.NewLedger(time.Time{})
	if quotas != nil {
		ledger = quotas.ledger
	}
	var unread []domain.AccountKey
	for _, k := range keys {
		w.Thresholds[k.TenantID] = histories[k.TenantID].Thresholds
		if used := ledger.Used(k); used != nil {
			w.Used[k] = used
		} else {
			unread = append(unread, k)
		}
	}
	w.Subtract(g.rows[:decided])
	return w, w.Read(ctx, conn, unread)
}

// historiesOf returns the histories of the tenants of accounts as of the locked heads. They are cached, unless the catalogue has changed.
func (g *group) historiesOf(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests,
	keys []domain.AccountKey) (map[uuid.UUID]domain.TenantHistory, error) {
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
