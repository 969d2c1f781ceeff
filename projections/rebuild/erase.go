package rebuild

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections"
)

// PersonalData leaves the tenant's rows out of the reports of comparisons: those of series name groups, those of dead letters hold
// payloads.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: "projection_rebuilds", Erase: eraseReports}
}

const eraseReport = `UPDATE projection_rebuilds SET report = (
  SELECT coalesce(json_agg(r ORDER BY n), '[]') FROM json_array_elements(report) WITH ORDINALITY AS x (r, n) WHERE strpos(r::text,
  '"tenantId":"' || $1::uuid || '"') = 0)
WHERE json_typeof(report) = 'array' AND strpos(report::text, $1::uuid::text) > 0`

func eraseReports(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, _ string) (next string, err error) {
	if _, err := tx.Exec(ctx, eraseReport, tenant); err != nil {
		return "", fmt.Errorf("erase reports: %w", err)
	}
	return "", nil
}
