package eventlog

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/tables"
)

// alongIndexesSQL is sent before statements that read reservations: a kept plan uses the primary key, however small the table
// was when it was made.
const alongIndexesSQL = `SET LOCAL enable_seqscan = off`

// readingReservations returns the read of the reservations that the quota requests name, with their accounts, behind alongIndexesSQL.
func (a *quotaRequests) readingReservations() []*LockedRead {
	var tenants []uuid.UUID
	var features, ids []string
	type namedReservation struct {
		domain.ReservationKey
		feature string // a request may name that of another reservation
	}
	listed := map[namedReservation]bool{}
	for i := range a.group.members {
		s := a.group.members[i].submitted
		if s.Quota == nil || s.Quota.ReservationID == "" || s.Quota.Kind == domain.Hold {
			continue
		}
		if key := (namedReservation{domain.ReservationKey{TenantID: s.TenantID, ID: s.Quota.ReservationID},
			s.Quota.Feature}); !listed[key] {
			listed[key] = true
			tenants, features, ids = append(tenants, key.TenantID), append(features, s.Quota.Feature), append(ids, key.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return []*LockedRead{alongIndexes(), {tables.ReadReservations(tenants, features, ids), func(rows pgx.Rows) error {
		return tables.ScanReservations(rows, a.ledger)
	}}}
}

// alongIndexes sends alongIndexesSQL among the reads.
func alongIndexes() *LockedRead {
	return &LockedRead{server.Statement{SQL: alongIndexesSQL}, func(rows pgx.Rows) error {
		rows.Close()
		return rows.Err()
	}}
}

// duePage is how far the reservations of an account whose time is over have been read.
type duePage struct {
	until time.Time
	id    string
	all   bool
}

// dueAtOnce is the size of a page.
const dueAtOnce = 200

// decideWithRoom decides d.requests. Before one is refused for the amount that reservations hold, those whose time is over are ended, the
// first ones to end first, until there is room or the list is empty. A group ends maxGroupRows of them at most, since heads are locked
// meanwhile: a request for which more may make room has to be repeated.
func (d *deciding) decideWithRoom(ctx context.Context, conn server.Session, h domain.History) (decisions []domain.Decision, granted bool,
	err error) {
	for more := true; more && err == nil; {
		var refusal *domain.Error
		if decisions, _, refusal = d.quotas.ledger.Decide(h, d.requests); refusal == nil {
			return decisions, true, nil
		}
		more, err = d.makeRoom(ctx, conn, h, decisions)
	}
	return decisions, false, err
}

// makeRoom ends due reservations of the first refused request that they may have been refused for; false without any.
func (d *deciding) makeRoom(ctx context.Context, conn server.Session, h domain.History, decisions []domain.Decision) (bool, error) {
	for n, k := range d.requested {
		refusal := decisions[n].Refusal
		if refusal == nil || refusal.Quota == nil || refusal.Quota.Held.Sign() <= 0 {
			continue
		}
		r := &d.requests[n]
		if d.expired >= maxGroupRows {
			if new(big.Int).Add(refusal.Quota.Used, big.NewInt(r.Amount)).Cmp(refusal.Quota.Limit) <= 0 {
				decisions[n].Refusal = nil
				*d.group.members[k].outcome = metering.Outcome{Status: metering.Undecided}
				d.refuse(k)
			}
			continue
		}
		due, err := d.quotas.nextDue(ctx, conn, domain.AccountKey{TenantID: r.TenantID, Feature: r.Feature,
			PeriodKey: refusal.Quota.PeriodKey})
		if err != nil {
			return false, err
		}
		if len(due) > 0 {
			return true, d.expire(h, k, due)
		}
	}
	return false, nil
}

// nextDue reads the next page of an account.
func (a *quotaRequests) nextDue(ctx context.Context, conn server.Session, key domain.AccountKey) (due []*events.ReservationState,
	err error) {
	page := a.due[key]
	if page == nil {
		if _, err := conn.Exec(ctx, alongIndexesSQL); err != nil {
			return nil, fmt.Errorf("planning along indexes: %w", err)
		}
		page = &duePage{}
		a.due[key] = page
	}
	if page.all {
		return nil, nil
	}
	due, err = tables.DueReservations(ctx, conn, key, a.ledger.At(), page.until, page.id, dueAtOnce)
	if err != nil {
		return nil, err
	}
	if page.all = len(due) < dueAtOnce; !page.all {
		page.until, page.id = due[dueAtOnce-1].ExpiresAt, due[dueAtOnce-1].ID
	}
	return due, nil
}

// expire ends reservations whose time is over, unless another member of the group has changed them.
func (d *deciding) expire(h domain.History, k int, due []*events.ReservationState) error {
	m := &d.group.members[k]
	for _, s := range due {
		d.quotas.ledger.LoadReservation(m.submitted.TenantID, s)
		if !d.quotas.ledger.IsDue(m.submitted.TenantID, s.ID) {
			continue
		}
		granted, _, refusal := d.quotas.ledger.Decide(h, []domain.LedgerRequest{
			{Kind: domain.Expire, TenantID: m.submitted.TenantID, Feature: s.Feature, ReservationID: s.ID}})
		if refusal != nil {
			return refusal
		}
		expired, err := metering.ExpiredOf(&m.submitted.Pending, &granted[0])
		if err != nil {
			return err
		}
		expired.EventID = d.group.log.cfg.NewID()
		d.group.rows = append(d.group.rows, d.sequence.next(&expired, d.origin[k]))
		d.expired++
	}
	return nil
}
