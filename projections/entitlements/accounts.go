package entitlements

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Account holds the used and held amounts of a tenant's QUOTA feature in a period (P7), beside the limit of its present
// subscription. Amounts are exact integers of any size.
type Account struct {
	TenantID      uuid.UUID   `json:"tenantId"`
	Feature       string      `json:"feature"`
	PeriodKey     string      `json:"periodKey"`
	Limit         *int64      `json:"limit"`
	LimitBehavior *string     `json:"limitBehavior"`
	Used          json.Number `json:"used"`
	Held          json.Number `json:"held"`
	// OpenReservations is how many reservations hold the held amount.
	OpenReservations int64 `json:"openReservations"`
}

// AccountQuery asks for accounts of a tenant, at most Limit after an account. Feature and PeriodKey filter, "" means all.
type AccountQuery struct {
	TenantID                  uuid.UUID
	Feature, PeriodKey        string
	AfterFeature, AfterPeriod string
	Limit                     int
}

// Grants are of the subscription that accepts usage.
const readAccounts = `
SELECT a.feature, a.period_key, a.used::text, a.held::text, g.grant, (SELECT count(*) FROM reservations r
  WHERE r.tenant_id = a.tenant_id AND r.feature = a.feature AND r.period_key = a.period_key AND r.state = 'HELD')
FROM quota_accounts a
LEFT JOIN LATERAL (
  SELECT e.value AS grant FROM subscriptions s CROSS JOIN LATERAL json_array_elements(s.entitlements) WITH ORDINALITY AS e (value, n)
  WHERE s.tenant_id = a.tenant_id AND s.status IN ('ACTIVE', 'TRIALING') AND e.value ->> 'feature' = a.feature ORDER BY e.n
  LIMIT 1) g ON true
WHERE a.tenant_id = $1 AND ($2 = '' OR a.feature = $2) AND ($3 = '' OR a.period_key = $3) AND (a.feature, a.period_key) > ($4, $5)
ORDER BY a.feature, a.period_key LIMIT $6`

const readHead = `SELECT partition, position FROM log_heads WHERE partition = $1`

// Accounts returns a page of accounts with the head of the tenant's partition, in one snapshot.
func (r *Reads) Accounts(ctx context.Context, q AccountQuery) (list []Account, head events.Position, err error) {
	accounts := query.New(readAccounts, []any{q.TenantID, q.Feature, q.PeriodKey, q.AfterFeature, q.AfterPeriod, q.Limit},
		query.Each(func(rows pgx.Rows) error {
			a := Account{TenantID: q.TenantID}
			var used, held string
			var grant []byte
			if err := rows.Scan(&a.Feature, &a.PeriodKey, &used, &held, &grant, &a.OpenReservations); err != nil {
				return err
			}
			a.Used, a.Held = json.Number(used), json.Number(held)
			if grant != nil {
				var g domain.Grant
				if err := json.Unmarshal(grant, &g); err != nil {
					return fmt.Errorf("read a grant: %w", err)
				}
				if sameReset(g.ResetPeriod, a.PeriodKey) {
					a.Limit, a.LimitBehavior = g.Limit, &g.LimitBehavior
				}
			}
			list = append(list, a)
			return nil
		}))
	at := query.New(readHead, []any{events.PartitionOf(q.TenantID)}, query.One(&head.Partition, &head.Number))
	return list, head, r.Snapshot(ctx, query.Viewer{Operator: true}, accounts, at)
}

// sameReset reports whether a period key is one of a reset period.
func sameReset(reset, periodKey string) bool {
	start, _, bounded := domain.PeriodBounds(periodKey)
	if !bounded {
		return reset != domain.ResetMonthly && reset != domain.ResetAnnually
	}
	return domain.PeriodKey(reset, start) == periodKey
}
