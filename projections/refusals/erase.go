package refusals

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// PersonalData leaves the payloads out of the samples.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: projections.ProjectionRefusals, Consumer: events.GroupRefusals,
		Topic: events.TopicUsageDuplicates, Erase: erase}
}

var eraseSamples = events.SQL(`UPDATE usage_refusals SET samples = erased_body({usage.event.refusals_seen}::smallint, samples::text)::json
 WHERE generation = ANY (ARRAY(SELECT generation FROM projection_generations WHERE projection = '` + projections.ProjectionRefusals +
	`' AND NOT purged))
  AND tenant_id = $1 AND strpos(samples::text, '"payload"') > 0`)

// erase erases all groups of the tenant: a tenant has about 1,000 in a generation.
func erase(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, _ string) (next string, err error) {
	if _, err := tx.Exec(ctx, eraseSamples, tenant); err != nil {
		return "", fmt.Errorf("erase samples: %w", err)
	}
	return "", nil
}
