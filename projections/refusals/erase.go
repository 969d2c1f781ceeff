package refusals

import (
	"context"
	"fmt"
	"maps"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// PersonalData leaves the payloads out of the samples.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: projections.ProjectionRefusals, Consumer: events.GroupRefusals, Topic: events.TopicUsageDuplicates, Erase: erase}
}

// erase erases all groups of the tenant: a tenant has about 1,000 in a generation.
func erase(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, _ *domain.Eraser, _ string) (next string, err error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT generation FROM usage_refusals WHERE tenant_id = $1`, tenant)
	if err != nil {
		return "", fmt.Errorf("read usage_refusals: %w", err)
	}
	generations, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return "", fmt.Errorf("read usage_refusals: %w", err)
	}
	for _, generation := range generations {
		s, err := load(ctx, tx, generation, []events.Envelope{{Subject: events.RefusalsSeen, TenantID: tenant}})
		if err != nil {
			return "", err
		}
		for g := range maps.Values(s.groups) {
			for i := range g.Samples {
				g.Samples[i].Payload = ""
			}
			g.changed = true
		}
		if err := s.write(ctx, tx, generation); err != nil {
			return "", err
		}
	}
	return "", nil
}
