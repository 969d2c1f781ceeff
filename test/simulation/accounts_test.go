package simulation

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// The accounts and the reservations of the simulated database, and their fold from the log.

type simAccount struct{ used, held int64 }

// addsAccounts and writesReservations begin the statements that add to the accounts, and that write reservations.
const (
	addsAccounts       = "INSERT INTO quota_accounts"
	writesReservations = "INSERT INTO reservations"
)

// readsAccounts knows the reads of accounts, of reservations by their keys, and of due reservations.
func readsAccounts(text string) bool {
	return strings.HasPrefix(text, "SELECT k.tenant_id, k.feature, k.period_key, a.used") ||
		strings.HasPrefix(text, "SELECT k.tenant_id, r.reservation_id") || strings.HasPrefix(text, readsThresholds) ||
		strings.HasPrefix(text, findsThresholds) ||
		strings.HasPrefix(text, "SELECT r.tenant_id, r.reservation_id")
}

// limitQuery executes the statements about accounts and reservations.
func (tx *simTx) limitQuery(text string, args []any) *simRows {
	switch {
	case strings.HasPrefix(text, addsAccounts):
		return tx.addAccounts(args)
	case strings.HasPrefix(text, writesReservations):
		return tx.writeReservations(args)
	}
	var out *simRows
	err := tx.do("read accounts", kindStep, nil, func() error {
		switch {
		case strings.HasPrefix(text, "SELECT r."):
			out = tx.p.s.db.dueReservations(text, args)
		case strings.HasPrefix(text, readsThresholds), strings.HasPrefix(text, findsThresholds):
			out = tx.p.s.db.watched(text, args)
		case strings.HasPrefix(text, "SELECT k.tenant_id, r."):
			out = tx.p.s.db.readReservations(args)
		default:
			out = tx.p.s.db.readAccounts(args)
		}
		return nil
	})
	return orFailed(out, err)
}

// addAccounts adds to the accounts of tenants whose heads the transaction has locked.
func (tx *simTx) addAccounts(args []any) *simRows {
	tenants, features, periods, used, held := args[0].([]uuid.UUID), args[1].([]string), args[2].([]string), args[3].([]pgtype.Numeric),
		args[4].([]pgtype.Numeric)
	for i := range tenants {
		tx.needHead(tenants[i], "the account")
		k := domain.AccountKey{TenantID: tenants[i], Feature: features[i], PeriodKey: periods[i]}
		was := tx.root.w.accounts[k]
		tx.root.w.accounts[k] = simAccount{was.used + used[i].Int.Int64(), was.held + held[i].Int.Int64()}
	}
	return &simRows{}
}

func (tx *simTx) needHead(tenant uuid.UUID, what string) {
	if !tx.p.s.db.free(tx, locksOf("heads", []int16{events.PartitionOf(tenant)})) {
		tx.p.s.fail("%s of %s is changed without its head", what, tenant)
	}
}

// writeReservations keeps the states of reservations after their last events.
func (tx *simTx) writeReservations(args []any) *simRows {
	text := func(arg, i int) string { return args[arg].([]string)[i] }
	number := func(arg, i int) int64 { return args[arg].([]int64)[i] }
	for i, tenant := range args[0].([]uuid.UUID) {
		tx.needHead(tenant, "a reservation")
		tx.root.w.reserved[domain.ReservationKey{TenantID: tenant, ID: text(1, i)}] = events.ReservationState{
			ID: text(1, i), Feature: text(2, i), PeriodKey: text(3, i), SubscriptionID: args[4].([]uuid.UUID)[i], FeatureType: text(5, i),
			Amount: number(6, i),
			Limit:  args[7].([]*int64)[i], State: text(8, i), ExpiresAt: args[9].([]time.Time)[i], HeldAt: number(10, i),
			EndedAt: number(11, i),
			EventID: text(13, i), Committed: number(14, i)}
	}
	return &simRows{}
}

// addAccounts is the effect of COMMIT on accounts and reservations.
func (db *simDB) addAccounts(w *writes) {
	for k, n := range w.accounts {
		db.accounts[k] = simAccount{db.accounts[k].used + n.used, db.accounts[k].held + n.held}
	}
	maps.Copy(db.reserved, w.reserved)
}

func (db *simDB) readAccounts(args []any) *simRows {
	out := simAnswer()
	for i, tenant := range args[0].([]uuid.UUID) {
		k := domain.AccountKey{TenantID: tenant, Feature: args[1].([]string)[i], PeriodKey: args[2].([]string)[i]}
		if a, ok := db.accounts[k]; ok {
			out.list = append(out.list, []any{k.TenantID, k.Feature, k.PeriodKey, fmt.Sprint(a.used), fmt.Sprint(a.held)})
		}
	}
	return out
}

// reservationRow is a row with the account that holds it.
func (db *simDB) reservationRow(tenant uuid.UUID, r *events.ReservationState) []any {
	a := db.accounts[domain.AccountKey{TenantID: tenant, Feature: r.Feature, PeriodKey: r.PeriodKey}]
	return []any{tenant, r.ID, r.Feature, r.PeriodKey, r.SubscriptionID, r.FeatureType, r.Amount, r.Limit, r.State, r.ExpiresAt, r.HeldAt,
		r.EndedAt, r.EventID, r.Committed,
		fmt.Sprint(a.used), fmt.Sprint(a.held)}
}

func (db *simDB) readReservations(args []any) *simRows {
	out := simAnswer()
	for i, tenant := range args[0].([]uuid.UUID) {
		if r, ok := db.reserved[domain.ReservationKey{TenantID: tenant, ID: args[2].([]string)[i]}]; ok &&
			r.Feature == args[1].([]string)[i] {
			out.list = append(out.list, db.reservationRow(tenant, &r))
		}
	}
	return out
}

// dueReservations makes the comparisons that the statement's text has.
func (db *simDB) dueReservations(text string, args []any) *simRows {
	out := simAnswer()
	db.s.count("due reservations read by a request")
	for _, r := range db.due(args[3].(time.Time), strings.Contains(text, "r.state = 'HELD'"),
		strings.Contains(text, "r.expires_at <= $4")) {
		after := r.ExpiresAt.After(args[4].(time.Time)) || r.ExpiresAt.Equal(args[4].(time.Time)) && r.ID > args[5].(string)
		if r.tenant == args[0].(uuid.UUID) && r.Feature == args[1].(string) && r.PeriodKey == args[2].(string) && after &&
			len(out.list) < args[6].(int) {
			out.list = append(out.list, db.reservationRow(r.tenant, &r.ReservationState))
		}
	}
	return out
}

// occurred returns the time of an event.
func (r *simRow) occurred() time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(r.values[colOccurred])) + postgresEpoch).UTC()
}

type simReservation struct {
	tenant uuid.UUID
	events.ReservationState
}

// due lists reservations in the order in which they end.
func (db *simDB) due(now time.Time, held, over bool) (list []simReservation) {
	for k, r := range db.reserved {
		if (!held || r.State == events.StateHeld) && (!over || !r.ExpiresAt.After(now)) {
			list = append(list, simReservation{k.TenantID, r})
		}
	}
	slices.SortFunc(list, func(a, b simReservation) int {
		if c := a.ExpiresAt.Compare(b.ExpiresAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID+a.tenant.String(), b.ID+b.tenant.String())
	})
	return list
}

// Thresholds of each tenant.

// thresholdsOf returns the thresholds of a tenant, which do not change.
func thresholdsOf(tenant uuid.UUID) (list []domain.Threshold) {
	for i, t := range []domain.Threshold{{Percent: new(int64(50))}, {Feature: new(featureHeld), Percent: new(int64(85))},
		{Amount: new(int64(12))}, {Feature: new(featureEnforced), Amount: new(int64(3))}} {
		t.ID, t.TenantID = uuid.NewSHA1(tenant, []byte{byte(i)}), tenant
		list = append(list, t)
	}
	return list
}

// findsThresholds and readsThresholds begin the read of tenants with thresholds, and that of accounts with the thresholds of their tenants.
const (
	findsThresholds = "SELECT k.tenant_id FROM unnest($1::uuid[])"
	readsThresholds = "SELECT k.tenant_id, k.feature, k.period_key, coalesce(a.used, 0)::text, t.id"
)

// watched makes the comparisons that the statement's text has.
func (db *simDB) watched(text string, args []any) *simRows {
	out := simAnswer()
	if strings.HasPrefix(text, findsThresholds) {
		for _, tenant := range args[0].([]uuid.UUID) {
			out.list = append(out.list, []any{tenant})
		}
		return out
	}
	for n := range thresholdsOf(uuid.Nil) {
		for i, tenant := range args[0].([]uuid.UUID) {
			k := domain.AccountKey{TenantID: tenant, Feature: args[1].([]string)[i], PeriodKey: args[2].([]string)[i]}
			t := thresholdsOf(tenant)[n]
			if t.Feature != nil && *t.Feature != k.Feature && strings.Contains(text, "coalesce(t.feature, k.feature) = k.feature") {
				continue
			}
			h := db.history(tenant)
			out.list = append(out.list, []any{tenant, k.Feature, k.PeriodKey, fmt.Sprint(db.accounts[k].used), t.ID, t.Feature, t.Percent,
				t.Amount, textOf(h[len(h)-1].Subscription)})
		}
	}
	return out
}

// thresholdRows are the rows of thresholds in the read of histories.
func thresholdRows(tenant uuid.UUID) (list [][]any) {
	for _, t := range thresholdsOf(tenant) {
		list = append(list, []any{tenant, int64(0), "threshold", (*time.Time)(nil), (*string)(nil), t.Feature, t.Percent, &t.ID,
			t.Amount})
	}
	return list
}
