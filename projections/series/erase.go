package series

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// erasedRows bounds the rows that one call of erase adds to those without values.
const erasedRows = 1000

// PersonalData adds the rows of groups to the rows of usage that has no value of their keys.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: projections.ProjectionSeries, Consumer: events.GroupSeries, Erase: erase}
}

// eraseGroups adds groups up: after a colon a value begins with a quote, and a quote in a key or a value has a backslash.
const (
	// generations are those with rows: the keys begin with them.
	generations = `ARRAY(SELECT generation FROM projection_generations WHERE projection = '` + projections.ProjectionSeries +
		`' AND NOT purged)`

	eraseGroups = `
WITH gone AS (
  DELETE FROM usage_series WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM usage_series WHERE generation = ANY (` + generations +
		`) AND tenant_id = $1 AND group_values <> '{}' AND group_values LIKE '%":"%' LIMIT $2)) RETURNING *),
added AS (
  INSERT INTO usage_series AS s (generation, partition, tenant_id, feature, hour, group_values, amount, event_count)
  SELECT g.generation, min(g.partition), g.tenant_id, g.feature, g.hour, regexp_replace(g.group_values, '":"(\\.|[^"\\])*"',
  '":null', 'g') AS erased, sum(g.amount), sum(g.event_count)
  FROM gone g GROUP BY g.generation, g.tenant_id, g.feature, g.hour, erased
  ON CONFLICT (generation, tenant_id, feature, hour, group_values) DO UPDATE SET
    amount = s.amount + excluded.amount, event_count = s.event_count + excluded.event_count)
SELECT count(*) FROM gone`

	eraseValues = `DELETE FROM usage_series_values WHERE tenant_id = $1 AND generation = ANY (` + generations + `)`
)

func erase(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, _ string) (next string, err error) {
	var gone int
	if err := tx.QueryRow(ctx, eraseGroups, tenant, erasedRows).Scan(&gone); err != nil {
		return "", fmt.Errorf("erase groups: %w", err)
	}
	if gone == erasedRows {
		return "more", nil
	}
	if _, err := tx.Exec(ctx, eraseValues, tenant); err != nil {
		return "", fmt.Errorf("erase values: %w", err)
	}
	return "", nil
}
