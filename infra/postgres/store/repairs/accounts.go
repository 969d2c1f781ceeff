package repairs

import (
	"context"
	"fmt"
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// foldAccountsSQL sums the changes of accounts by events of tenants after one position up to another: admitted usage, other verdicts less
// those in discarded dead letters, and reservations. account.reconciled is left out: it sets an account to this sum.
var foldAccountsSQL = events.SQL(`SELECT c.tenant_id, c.feature, c.period, to_json(sum(c.used)), to_json(sum(c.held)) FROM (
 SELECT l.tenant_id, l.payload ->> 'feature' AS feature,
  CASE WHEN l.subject = {usage.event.admitted} THEN l.payload -> 'admitted' ->> 'periodKey' ELSE l.payload ->> 'periodKey' END AS period,
  CASE WHEN l.subject IN ({usage.event.admitted}, {usage.event.validated}) THEN (l.payload ->> 'amount')::numeric ELSE 0 END AS used,
  CASE WHEN l.subject = {usage.event.admitted} THEN -coalesce((l.payload -> 'admitted' ->> 'heldAmount')::numeric, 0)
   WHEN l.subject = {entitlements.reservation.held} THEN (l.payload ->> 'amount')::numeric
   WHEN l.subject IN ({entitlements.reservation.released},
   {entitlements.reservation.expired}) THEN -(l.payload ->> 'amount')::numeric ELSE 0 END AS held
 FROM event_log_rows l
 WHERE l.partition = $1 AND l.tenant_id = ANY ($2::uuid[]) AND l.position > $3 AND l.position <= $4
  AND l.subject IN ({usage.event.admitted}, {usage.event.validated}, {entitlements.reservation.held}, {entitlements.reservation.released},
  {entitlements.reservation.expired})
  AND CASE WHEN l.subject = {usage.event.admitted} THEN l.payload -> 'admitted' ->> 'featureType'
  ELSE l.payload ->> 'featureType' END = 'QUOTA'
  AND (l.subject <> {usage.event.validated} OR l.payload ->> 'admitted' IS NULL)
 UNION ALL
 SELECT v.tenant_id, v.payload ->> 'feature', v.payload ->> 'periodKey', -(v.payload ->> 'amount')::numeric, 0
 FROM event_log_rows c
 JOIN event_log_rows f ON f.partition = c.partition AND f.tenant_id = c.tenant_id AND f.dedupe_key = 'e/' || (c.payload ->> 'deadLetterId')
 JOIN log_origins o ON o.id = f.origin
 JOIN event_log_rows v ON v.partition = f.partition AND v.position = (f.payload ->> 'sourcePosition')::bigint
 WHERE c.partition = $1 AND c.tenant_id = ANY ($2::uuid[]) AND c.position > $3 AND c.position <= $4
  AND c.subject = {dead_letters.dead_letter.closed} AND c.payload ->> 'status' = 'DISCARDED'
  AND (f.subject = {usage.event.publish_failed} OR f.subject = {usage.event.aggregation_failed} AND o.actor_id = '` +
	events.GroupAggregator + `')
  AND v.subject = {usage.event.validated} AND v.payload ->> 'featureType' = 'QUOTA' AND v.payload ->> 'admitted' IS NULL) c
 GROUP BY c.tenant_id, c.feature, c.period`)

// foldSpan is how many positions of a partition one statement of a fold reads.
const foldSpan = 200_000

// Accounts folds accounts from the log, and changes them. It implements repair.AccountStore.
type Accounts struct{ Store *store.Store }

// accountTx is a change of accounts.
type accountTx struct{ *store.Tx }

var (
	_ repair.AccountStore = (*Accounts)(nil)
	_ repair.AccountTx    = accountTx{}
)

// fold folds the log without a lock, all on one connection: others of the pool may be to a server that was replaced.
func (s *Accounts) fold(ctx context.Context, tenant uuid.UUID, add func(from store.Querier, after events.Position) (repair.FoldedTo,
	error)) (upTo repair.FoldedTo, err error) {
	err = postgres.InTx(ctx, s.Store.Pool(), func(tx pgx.Tx) error {
		upTo, err = add(tx, events.Position{Partition: events.PartitionOf(tenant)})
		return err
	})
	return upTo, store.Unavailable(err)
}

// addFolded adds the events of a tenant after a position to sums.
func addFolded(ctx context.Context, from store.Querier, tenant uuid.UUID, after events.Position,
	sums map[domain.AccountKey]*domain.Account) (repair.FoldedTo, error) {
	head, err := store.ReadHead(ctx, from, after.Partition)
	if err != nil {
		return head, err
	}
	for at := after.Number; at < head.Number; at += foldSpan {
		span := events.Stretch{Partition: after.Partition, After: at, UpTo: min(at+foldSpan, head.Number)}
		if err := AddAccounts(ctx, from, []uuid.UUID{tenant}, span, sums); err != nil {
			return head, err
		}
	}
	return head, nil
}

// AddAccounts adds the account changes of events of tenants in a stretch of their partition.
func AddAccounts(ctx context.Context, from store.Querier, tenants []uuid.UUID, in events.Stretch,
	sums map[domain.AccountKey]*domain.Account) error {
	rows, err := from.Query(ctx, foldAccountsSQL, in.Partition, tenants, in.After, in.UpTo)
	if err == nil {
		err = addSums(rows, sums)
	}
	if err != nil {
		return fmt.Errorf("summing accounts: %w", err)
	}
	return nil
}

func addSums(rows pgx.Rows, sums map[domain.AccountKey]*domain.Account) error {
	var key domain.AccountKey
	var used, held *big.Int
	_, err := pgx.ForEachRow(rows, []any{&key.TenantID, &key.Feature, &key.PeriodKey, &used, &held}, func() error {
		sum := sums[key]
		if sum == nil {
			sum = new(domain.Account)
			sums[key] = sum
		}
		sum.Used.Add(&sum.Used, used)
		sum.Held.Add(&sum.Held, held)
		return nil
	})
	return err
}

// FoldedAccounts implements repair.AccountStore.
func (s *Accounts) FoldedAccounts(ctx context.Context, tenant uuid.UUID) (map[domain.AccountKey]*domain.Account, repair.FoldedTo, error) {
	sums := map[domain.AccountKey]*domain.Account{}
	upTo, err := s.fold(ctx, tenant, func(from store.Querier, after events.Position) (repair.FoldedTo, error) {
		return addFolded(ctx, from, tenant, after, sums)
	})
	return sums, upTo, err
}

// ChangeAccounts implements repair.AccountStore.
func (s *Accounts) ChangeAccounts(ctx context.Context, tenant uuid.UUID, decide func(repair.AccountTx) error) error {
	return s.Store.ChangeTenant(ctx, tenant, func(tx *store.Tx) error { return decide(accountTx{tx}) })
}

// AddFoldedAccounts implements repair.AccountTx.
func (t accountTx) AddFoldedAccounts(tenant uuid.UUID, after events.Position, sums map[domain.AccountKey]*domain.Account) (events.Position,
	error) {
	upTo, err := addFolded(t.Context(), t.DB(), tenant, after, sums)
	return upTo.Position, err
}

// QuotaAccounts implements repair.AccountTx.
func (t accountTx) QuotaAccounts(tenant uuid.UUID) (map[domain.AccountKey]*domain.Account, error) {
	rows, err := t.DB().Query(t.Context(),
		`SELECT tenant_id, feature, period_key, to_json(used), to_json(held) FROM quota_accounts WHERE tenant_id = $1`, tenant)
	sums := map[domain.AccountKey]*domain.Account{}
	if err == nil {
		err = addSums(rows, sums)
	}
	if err != nil {
		return nil, fmt.Errorf("reading accounts: %w", err)
	}
	return sums, nil
}
