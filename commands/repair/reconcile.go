// Package repair has the commands that repair state: dead letters, replays of the log, rebuilds of read models, and accounts that differ
// from the log.
package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// Accounts compares the accounts behind limits with the log, and repairs them by events.
type Accounts struct {
	Store AccountStore
	Now   commands.Clock
	NewID func() uuid.UUID
}

// AccountStore reads and changes accounts.
type AccountStore interface {
	// FoldedAccounts sums the accounts of a tenant from its events up to a position, which it returns.
	FoldedAccounts(ctx context.Context, tenant uuid.UUID) (sums map[domain.AccountKey]*domain.Account, upTo FoldedTo, err error)
	// HeldReservations folds the reservations of a tenant from its events up to a position, which it returns: those that are held, by
	// their ids.
	HeldReservations(ctx context.Context, tenant uuid.UUID) (held map[string]*events.ReservationState, upTo FoldedTo, err error)
	// ChangeAccounts is commands.Store.Change for accounts.
	ChangeAccounts(ctx context.Context, tenant uuid.UUID, decide func(AccountTx) error) error
}

// FoldedTo is the end of a fold that reads a partition without the lock of its head: the position, and the epoch of the log then. In
// another epoch other events may have the positions before it: a failover loses the last ones.
type FoldedTo struct {
	events.Position
	Epoch int32
}

// AccountTx is the transaction of a repair: the head is locked.
type AccountTx interface {
	commands.Tx
	commands.LogEpochs
	// AddFoldedAccounts adds the events after a position to sums, and returns the position of the last event.
	AddFoldedAccounts(tenant uuid.UUID, after events.Position, sums map[domain.AccountKey]*domain.Account) (upTo events.Position, err error)
	// AddHeldReservations applies the events after a position to held.
	AddHeldReservations(tenant uuid.UUID, after events.Position, held map[string]*events.ReservationState) error
	// ReservationRows returns the reservations of a tenant in the table that are held or have one of the ids, by their ids.
	ReservationRows(tenant uuid.UUID, ids []string) (map[string]*events.ReservationState, error)
	// QuotaAccounts returns the accounts of a tenant.
	QuotaAccounts(tenant uuid.UUID) (map[domain.AccountKey]*domain.Account, error)
}

// Drift is an account that differs from the log: was in the table, is in the log.
type Drift struct {
	Feature   string              `json:"feature"`
	PeriodKey string              `json:"periodKey"`
	Used      events.CorrectedSum `json:"used"`
	Held      events.CorrectedSum `json:"held"`
}

// Reconciliation is the outcome of a comparison.
type Reconciliation struct {
	TenantID uuid.UUID `json:"tenantId"`
	Drift    []Drift   `json:"drift"`
	// Reservations are those that differ; no repair changes them.
	Reservations []ReservationDrift `json:"reservations"`
	Repaired     bool               `json:"repaired"`
	UpTo         events.Position    `json:"headPosition"`
}

var errOutdatedFold = errors.New("the log is in another epoch than when it was folded")

// maxFolds bounds how often a comparison folds the log: a second time after a failover during the first.
const maxFolds = 3

// Reconcile compares the accounts and the held reservations of a tenant with its log, all under the lock of the head. With repair it
// sets the accounts that differ to the log, each by an event with the reason. A repetition under an Idempotency-Key
// gets the first answer.
func (a *Accounts) Reconcile(ctx context.Context, req commands.Request, tenant uuid.UUID, repair bool, reason string) (Reconciliation,
	error) {
	if fault := reasonFault(reason); repair && fault != nil {
		return Reconciliation{}, fault
	}
	for range maxFolds {
		result, outdated, err := a.reconcile(ctx, req, tenant, repair, reason)
		if !outdated {
			return result, err
		}
	}
	return Reconciliation{}, fmt.Errorf("%w: the database server was replaced during each of %d comparisons; run it again",
		commands.ErrUnavailable, maxFolds)
}

// reconcile compares once. The fold of the log is outdated if the log is in another epoch once the head is locked; the store reports that
// error as any other, as ErrUnavailable.
func (a *Accounts) reconcile(ctx context.Context, req commands.Request, tenant uuid.UUID, repair bool,
	reason string) (result Reconciliation, outdated bool, err error) {
	before, at, err := a.Store.FoldedAccounts(ctx, tenant)
	if err != nil {
		return result, false, err
	}
	open, openAt, err := a.Store.HeldReservations(ctx, tenant)
	if err != nil {
		return result, false, err
	}
	in := func(decide func(AccountTx) error) error { return a.Store.ChangeAccounts(ctx, tenant, decide) }
	result, err = commands.Change(in, req, func(tx AccountTx) (Reconciliation, error) {
		result := Reconciliation{TenantID: tenant}
		epoch, err := tx.Epoch(tenant)
		if err != nil {
			return result, err
		}
		if outdated = epoch != at.Epoch || epoch != openAt.Epoch; outdated {
			return result, errOutdatedFold
		}
		sums := map[domain.AccountKey]*domain.Account{}
		for key, sum := range before {
			sums[key] = copyOf(sum)
		}
		if result.UpTo, err = tx.AddFoldedAccounts(tenant, at.Position, sums); err != nil {
			return result, err
		}
		rows, err := tx.QuotaAccounts(tenant)
		if err != nil {
			return result, err
		}
		of, err := tx.Tenant(tenant)
		if err != nil {
			return result, err
		}
		result.Drift = drift(rows, sums)
		held := maps.Clone(open)
		if err := tx.AddHeldReservations(tenant, openAt.Position, held); err != nil {
			return result, err
		}
		if result.Reservations, err = reservationDrift(tx, tenant, held); err != nil {
			return result, err
		}
		if !repair || len(result.Drift) == 0 || of == nil {
			return result, nil
		}
		result.Repaired = true
		_, err = tx.Append(a.repairs(req, of, rows, sums, result.Drift, reason)...)
		return result, err
	})
	return result, outdated, err
}

func copyOf(a *domain.Account) *domain.Account {
	c := new(domain.Account)
	c.Used.Set(&a.Used)
	c.Held.Set(&a.Held)
	return c
}

// drift lists the accounts that differ, by feature and period.
func drift(rows, sums map[domain.AccountKey]*domain.Account) []Drift {
	list := []Drift{}
	add := func(key domain.AccountKey, was, is *domain.Account) {
		if was.Used.Cmp(&is.Used) != 0 || was.Held.Cmp(&is.Held) != 0 {
			list = append(list, Drift{key.Feature, key.PeriodKey, corrected(&was.Used, &is.Used), corrected(&was.Held, &is.Held)})
		}
	}
	for key, was := range rows {
		is := sums[key]
		if is == nil {
			is = new(domain.Account)
		}
		add(key, was, is)
	}
	for key, is := range sums {
		if rows[key] == nil {
			add(key, new(domain.Account), is)
		}
	}
	slices.SortFunc(list, func(a, b Drift) int { return strings.Compare(a.Feature+"/"+a.PeriodKey, b.Feature+"/"+b.PeriodKey) })
	return list
}

func corrected(was, is *big.Int) events.CorrectedSum {
	return events.CorrectedSum{Was: json.Number(was.String()), Is: json.Number(is.String())}
}

// repairs makes the events that set accounts to the log. A difference above 64 bits takes several.
func (a *Accounts) repairs(req commands.Request, of *domain.Tenant, rows, sums map[domain.AccountKey]*domain.Account, list []Drift,
	reason string) (repairs []events.Pending) {
	now := a.Now().UTC().Truncate(time.Microsecond)
	for _, d := range list {
		key := domain.AccountKey{TenantID: of.ID, Feature: d.Feature, PeriodKey: d.PeriodKey}
		was, is := rows[key], sums[key]
		if was == nil {
			was = new(domain.Account)
		}
		if is == nil {
			is = new(domain.Account)
		}
		was = copyOf(was)
		for was.Used.Cmp(&is.Used) != 0 || was.Held.Cmp(&is.Held) != 0 {
			before := copyOf(was)
			change := &events.AccountChange{Feature: d.Feature, PeriodKey: d.PeriodKey, Used: moveToward(&was.Used, &is.Used),
				Held: moveToward(&was.Held, &is.Held)}
			payload, err := codec.EncodePayload(events.AccountReconciled, &events.ReconciledAccount{
				Feature: d.Feature, PeriodKey: d.PeriodKey, Used: corrected(&before.Used, &was.Used),
				Held: corrected(&before.Held, &was.Held), Reason: reason})
			if err != nil {
				panic("repair: sums are valid JSON: " + err.Error())
			}
			id := a.NewID()
			repairs = append(repairs, events.Pending{EventID: id, Subject: events.AccountReconciled, TenantID: of.ID,
				DedupeKey:     events.KeyEvent(id),
				CorrelationID: req.By.CorrelationID, Actor: req.By.ActsAs(), OccurredAt: now, Payload: payload, Residency: of.DataResidency,
				Account: change})
		}
	}
	return repairs
}

// moveToward moves a sum towards another, at most by a 64-bit number, which it returns.
func moveToward(was, is *big.Int) int64 {
	step := new(big.Int).Sub(is, was)
	const most = int64(1) << 62
	switch {
	case step.CmpAbs(big.NewInt(most)) <= 0:
	case step.Sign() > 0:
		step.SetInt64(most)
	default:
		step.SetInt64(-most)
	}
	was.Add(was, step)
	return step.Int64()
}
