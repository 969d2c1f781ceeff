package usage

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// addByGrant adds a batch's sums by grant to the table.
//
//go:embed by_grant.sql
var addByGrant string

// upsertByGrant adds the sums of the verdicts that name a grant. Batches without such verdicts run no statement.
func upsertByGrant(ctx context.Context, tx pgx.Tx, generation int, keys []Key, sums map[Key]*usageSum) error {
	var c usageColumns
	var grants []int64
	for _, key := range keys {
		of := sums[key].byGrant
		for _, number := range slices.Sorted(maps.Keys(of)) {
			c.add(key, of[number])
			grants = append(grants, number)
		}
	}
	if len(grants) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, addByGrant, generation, c.partitions, c.tenants, c.features, c.periods, c.subscriptions, grants, c.amounts,
		c.counts, c.applied)
	if err != nil {
		return fmt.Errorf("add to usage_by_grant: %w", err)
	}
	return nil
}
