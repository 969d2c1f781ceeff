package prometheus

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/state"
)

// accountsAtOnce bounds the accounts that one read of the state compares.
const accountsAtOnce = 1000

// quotaDrift counts the accounts behind limits that differ from the projection entitlement_reads, which folds the same
// events: none, unless rows were changed outside of the service. Each read compares some accounts, all of them in turns.
// The events that the projection has not folded yet are added. It shows which partitions it could compare: those whose projection counts
// what accounts count, and is not far behind the head.
type quotaDrift struct {
	now    func() time.Time
	turn   state.Accounts // the last one
	after  accountCursor
	found  int64                        // in this turn so far
	missed [events.Partitions]bool      // in this turn so far: an account was not compared
	last   [events.Partitions]time.Time // the end of the last turn that compared all accounts of the partition
}

// accountCursor is the last account that was compared.
type accountCursor struct {
	tenant          uuid.UUID
	feature, period string
}

func newQuotaDrift(now func() time.Time) *quotaDrift {
	d := &quotaDrift{now: now}
	for p := range d.last {
		d.last[p] = now()
	}
	return d
}

// accountDriftSQL reads the accounts and those of the projection after a cursor, in the order of their keys, less those of the projection
// for features that are not QUOTA: they have no account. It returns the difference of the amounts, where a missing row is 0, and the
// checkpoint of the projection, which is -1 if its version does not count like the accounts, or if it has none up to the head.
const accountDriftSQL = `WITH live AS (
  SELECT p.tenant_id, p.generation, g.fold_version FROM projection_pointers p
  JOIN projection_generations g ON g.projection = p.projection AND g.generation = p.generation
  WHERE p.live AND p.projection = '` + projections.ProjectionEntitlements + `'),
 keys AS (
  (SELECT a.tenant_id, a.feature, a.period_key FROM quota_accounts a
   WHERE (a.tenant_id, a.feature, a.period_key) > ($1, $2, $3) ORDER BY a.tenant_id, a.feature, a.period_key LIMIT $4)
  UNION
  SELECT n.tenant_id, n.feature, n.period_key FROM (SELECT DISTINCT generation FROM live) l CROSS JOIN LATERAL (
   SELECT u.tenant_id, u.feature, u.period_key FROM entitlement_usage u
   WHERE u.generation = l.generation AND (u.tenant_id, u.feature, u.period_key) > ($1, $2, $3)
   ORDER BY u.tenant_id, u.feature, u.period_key LIMIT $4) n
  ORDER BY 1, 2, 3 LIMIT $4)
 SELECT k.tenant_id, k.feature, k.period_key, a.used IS NULL AND u.used IS NULL, h.partition,
  CASE WHEN l.fold_version = $5 AND c.position <= h.position THEN c.position ELSE -1 END, h.position,
  (coalesce(a.used, 0) - coalesce(u.used, 0))::text, (coalesce(a.held, 0) - coalesce(u.held, 0))::text
 FROM keys k
 JOIN log_heads h ON h.partition = get_byte(sha256(convert_to(k.tenant_id::text, 'UTF8')), 0) % 32
 LEFT JOIN LATERAL (SELECT p.generation, p.fold_version FROM live p
  WHERE p.tenant_id IN (k.tenant_id, '00000000-0000-0000-0000-000000000000') ORDER BY p.tenant_id DESC LIMIT 1) l ON true
 LEFT JOIN consumer_checkpoints c ON c.consumer = '` + events.GroupEntitlements +
	`' AND c.generation = l.generation AND c.partition = h.partition
 LEFT JOIN LATERAL (SELECT q.used, q.held FROM quota_accounts q
  WHERE q.tenant_id = k.tenant_id AND q.feature = k.feature AND q.period_key = k.period_key LIMIT 1) a ON true
 LEFT JOIN LATERAL (SELECT n.used, n.held FROM entitlement_usage n
  WHERE n.generation = l.generation AND n.tenant_id = k.tenant_id AND n.feature = k.feature AND n.period_key = k.period_key
   AND (a.used IS NOT NULL OR EXISTS (SELECT FROM features f WHERE f.lookup_key = k.feature AND f.type = '` + domain.FeatureQuota +
	`')) LIMIT 1) u ON true
 ORDER BY k.tenant_id, k.feature, k.period_key`

// mostBehind bounds the events that a comparison adds to the projection.
const mostBehind = 20_000

// comparison is the difference of an account and its row of the projection, which has folded the events up to behind.After.
type comparison struct {
	key        domain.AccountKey
	behind     events.Stretch
	used, held string
}

// read compares some accounts, and returns the result of the last turn.
func (d *quotaDrift) read(ctx context.Context, pool *pgxpool.Pool) (state.Accounts, error) {
	last, found, missed, n := d.after, d.found, d.missed, 0
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		page, at, rows, err := readPage(ctx, tx, d.after)
		if err != nil {
			return err
		}
		last, n = at, rows
		newer, err := readNewer(ctx, tx, page)
		if err != nil {
			return err
		}
		for _, c := range page {
			var sum domain.Account
			if of := newer[c.key]; of != nil {
				sum = *of
			}
			switch {
			case c.behind.After < 0 || c.behind.UpTo-c.behind.After > mostBehind:
				missed[c.behind.Partition] = true
			case c.used != sum.Used.String() || c.held != sum.Held.String():
				found++
			}
		}
		return nil
	})
	if err != nil {
		return d.turn, fmt.Errorf("comparing accounts: %w", err)
	}
	if d.after, d.found, d.missed = last, found, missed; n < accountsAtOnce {
		d.end()
	}
	return d.turn, nil
}

// readPage reads the comparisons after a cursor, and returns the next cursor and the number of rows.
func readPage(ctx context.Context, tx pgx.Tx, after accountCursor) (page []comparison, last accountCursor, n int, err error) {
	last = after
	rows, err := tx.Query(ctx, accountDriftSQL, after.tenant, after.feature, after.period, accountsAtOnce, entitlements.V1)
	if err != nil {
		return nil, last, 0, err
	}
	var c comparison
	var none bool
	_, err = pgx.ForEachRow(rows, []any{&last.tenant, &last.feature, &last.period, &none, &c.behind.Partition, &c.behind.After,
		&c.behind.UpTo, &c.used, &c.held}, func() error {
		if n++; !none {
			c.key = domain.AccountKey{TenantID: last.tenant, Feature: last.feature, PeriodKey: last.period}
			page = append(page, c)
		}
		return nil
	})
	return page, last, n, err
}

// readNewer sums the changes of the accounts of a page by the events that the projection has not folded yet.
func readNewer(ctx context.Context, tx pgx.Tx, page []comparison) (map[domain.AccountKey]*domain.Account, error) {
	sums, tenants := map[domain.AccountKey]*domain.Account{}, map[events.Stretch][]uuid.UUID{}
	for _, c := range page {
		if b := c.behind; b.After >= 0 && b.After < b.UpTo && b.UpTo-b.After <= mostBehind && !slices.Contains(tenants[b], c.key.TenantID) {
			tenants[b] = append(tenants[b], c.key.TenantID)
		}
	}
	for behind, list := range tenants {
		if err := repairs.AddAccounts(ctx, tx, list, behind, sums); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

// end ends a turn through all accounts.
func (d *quotaDrift) end() {
	now, compared, oldest := d.now(), 0, time.Duration(0)
	for p := range d.last {
		if !d.missed[p] {
			compared, d.last[p] = compared+1, now
		}
		oldest = max(oldest, now.Sub(d.last[p]))
	}
	d.turn = state.Accounts{Differ: d.found, Compared: compared, AgeSeconds: oldest.Seconds()}
	d.after, d.found, d.missed = accountCursor{}, 0, [events.Partitions]bool{}
}
