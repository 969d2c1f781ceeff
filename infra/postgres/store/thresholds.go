package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

var (
	_ catalogue.ThresholdStore  = (*Store)(nil)
	_ catalogue.ThresholdTx     = (*Tx)(nil)
	_ catalogue.ThresholdReader = (*Catalogue)(nil)
)

const thresholdColumns = `id, tenant_id, feature, percent, amount, position, created_at`

func rowToThreshold(row pgx.CollectableRow) (domain.DefinedThreshold, error) {
	found, err := pgx.RowToStructByName[struct {
		domain.DefinedThreshold
		Position int64 // the number alone, instead of the threshold's
	}](row)
	t := found.DefinedThreshold
	t.Position = events.Position{Partition: events.PartitionOf(t.TenantID), Number: found.Position}
	return t, err
}

// ChangeThresholds implements catalogue.ThresholdStore, as Change does.
func (s *Store) ChangeThresholds(ctx context.Context, tenant uuid.UUID, decide func(catalogue.ThresholdTx) error) error {
	return s.ChangeTenant(ctx, tenant, func(tx *Tx) error { return decide(tx) })
}

const thresholdSQL = `SELECT ` + thresholdColumns + ` FROM thresholds WHERE id = $1 AND tenant_id = $2 AND removed IS NULL`

// Threshold implements catalogue.ThresholdTx. The lock of the head is the threshold's.
func (t *Tx) Threshold(tenant, id uuid.UUID) (*domain.DefinedThreshold, error) {
	return Find(t.ctx, t.tx, rowToThreshold, thresholdSQL, id, tenant)
}

// CountThresholds implements catalogue.ThresholdTx.
func (t *Tx) CountThresholds(tenant uuid.UUID) (n int, err error) {
	if err := t.tx.QueryRow(t.ctx, `SELECT count(*) FROM thresholds WHERE tenant_id = $1 AND removed IS NULL`, tenant).
		Scan(&n); err != nil {
		return 0, fmt.Errorf("counting thresholds: %w", err)
	}
	return n, nil
}

// Threshold implements catalogue.ThresholdReader.
func (c *Catalogue) Threshold(ctx context.Context, tenant, id uuid.UUID) (*domain.DefinedThreshold, error) {
	return Get(ctx, c, rowToThreshold, thresholdSQL, id, tenant)
}

// Thresholds implements catalogue.ThresholdReader.
func (c *Catalogue) Thresholds(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]domain.DefinedThreshold, error) {
	return List(ctx, c, rowToThreshold,
		`SELECT `+thresholdColumns+` FROM thresholds WHERE tenant_id = $1 AND removed IS NULL AND id > $2 ORDER BY id LIMIT $3`, tenant,
		AfterID(p), p.Limit)
}
