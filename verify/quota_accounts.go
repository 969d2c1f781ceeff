package verify

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// accounts replays the accounts of a partition in the order of the log: each grant is checked in its turn.
type accounts struct {
	sums         map[figure]*account
	discards     map[int64]discard          // by the position of the event that discards
	grants       map[grantKey][]entitlement // of the snapshots so far
	present      map[uuid.UUID]snapshot     // by tenant: the subscription that accepts usage
	reservations map[reservationKey]*reservation
	since        int64 // microseconds of Unix: reservations that ended before are no longer kept
}

// account is the sums of an account.
type account struct{ used, held big.Int }

// discard is a verdict in a dead letter that an event discards.
type discard struct {
	of     figure
	amount string
}

func newAccounts(now time.Time) accounts {
	return accounts{sums: map[figure]*account{}, discards: map[int64]discard{}, grants: map[grantKey][]entitlement{},
		present:      map[uuid.UUID]snapshot{},
		reservations: map[reservationKey]*reservation{}, since: now.Add(-endsKept).UnixMicro()}
}

// discardsSQL reads the verdicts of QUOTA features in discarded dead letters. Admitted usage stays used.
const discardsSQL = `SELECT c.position, v.tenant_id, v.payload ->> 'feature', v.payload ->> 'periodKey', v.payload ->> 'amount'
	FROM event_log_rows c
 JOIN event_log_rows f ON f.partition = c.partition AND f.tenant_id = c.tenant_id AND f.dedupe_key = 'e/' || (c.payload ->> 'deadLetterId')
 JOIN log_origins o ON o.id = f.origin
 JOIN event_log_rows v ON v.partition = f.partition AND v.position = (f.payload ->> 'sourcePosition')::bigint
 WHERE c.partition = $1 AND c.subject = 15 AND c.payload ->> 'status' = 'DISCARDED'
  AND (f.subject = 10 OR f.subject = 11 AND o.actor_id = 'meterplex-usage-aggregator')
  AND v.subject = 2 AND v.payload ->> 'featureType' = 'QUOTA' AND v.payload ->> 'admitted' IS NULL`

func readDiscards(ctx context.Context, tx pgx.Tx, p int16, now time.Time) (accounts, error) {
	a := newAccounts(now)
	var position int64
	var d discard
	err := each(ctx, tx, discardsSQL, []any{p}, []any{&position, &d.of.tenant, &d.of.feature, &d.of.period, &d.amount}, func() error {
		a.discards[position] = d
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("read discarded results: %w", err)
	}
	return a, nil
}

func (x *pass) addAccount(r *row, s *content, err error) {
	switch {
	case r.subject >= reservationHeld && r.subject <= reservationExpired:
		x.addReservation(r)
		return
	case err != nil:
		return // verdicts and grants that cannot be read are faults of other checks
	}
	switch r.subject {
	case subscriptionCreated, subscriptionChanged:
		x.accounts.addSnapshot(r.tenant, s)
	case validated:
		if s.FeatureType == "QUOTA" && string(s.Admitted) != "true" {
			x.accounts.addUsed(figure{tenant: r.tenant, feature: s.Feature, period: s.PeriodKey}, s.Amount.String(), 1)
		}
	case letterClosed:
		if d, ok := x.accounts.discards[r.position]; ok {
			x.accounts.addUsed(d.of, d.amount, -1)
		}
	case admitted:
		x.addGrant(r, s)
	}
}

// sum returns the sums of an account.
func (a *accounts) sum(of figure) *account {
	if a.sums[of] == nil {
		a.sums[of] = new(account)
	}
	return a.sums[of]
}

// addUsed adds to the used amount of an account, which it returns.
func (a *accounts) addUsed(of figure, amount string, sign int64) *account {
	sum := a.sum(of)
	if n, ok := new(big.Int).SetString(amount, 10); ok && len(amount) <= maxDigits {
		sum.used.Add(&sum.used, n.Mul(n, big.NewInt(sign)))
	}
	return sum
}

// addHeld adds to the held amount of an account, which it returns.
func (a *accounts) addHeld(of figure, amount int64) *account {
	sum := a.sum(of)
	sum.held.Add(&sum.held, big.NewInt(amount))
	return sum
}

const accountsSQL = `SELECT tenant_id, feature, period_key, used::text, held::text FROM quota_accounts
 WHERE CASE WHEN tenant_id = '00000000-0000-0000-0000-000000000000' THEN 0 ELSE get_byte(sha256(convert_to(tenant_id::text, 'UTF8')),
 0) % 32 END = $1`

// compareAccounts compares the table with the log up to the head.
func (x *pass) compareAccounts(ctx context.Context, tx pgx.Tx) error {
	var f figure
	var used, held string
	seen := map[figure]bool{}
	err := each(ctx, tx, accountsSQL, []any{x.p}, []any{&f.tenant, &f.feature, &f.period, &used, &held}, func() error {
		x.quotaAccounts.n++
		seen[f] = true
		sum := x.accounts.sums[f]
		if sum == nil {
			sum = new(account) // a row that a repair set to 0 stays
		}
		x.quotaAccounts.expect(sum.used.String() == used && sum.held.String() == held,
			"the account of %s has %s used and %s held, the log has %s and %s", f, used, held, &sum.used, &sum.held)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read quota_accounts: %w", err)
	}
	for f, sum := range x.accounts.sums {
		x.quotaAccounts.expect(seen[f], "the account of %s is missing, the log has %s used and %s held", f, &sum.used, &sum.held)
	}
	return nil
}
