package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/domain"
)

var _ offboarding.Reader = (*Catalogue)(nil)

// OffboardingColumns are what ScanOffboarding reads.
const (
	OffboardingColumns = `id, tenant_id, saga_id, state, step, reason, actor, cancel_reason, cancel_actor, requested_at, suspended_at, ` +
		`drained_to, closed, exports, manifest, ended_at`
	lastOffboardingSQL = `SELECT ` + OffboardingColumns + ` FROM offboardings WHERE tenant_id = $1 ORDER BY id DESC LIMIT 1`
)

// ScanOffboarding reads a row.
func ScanOffboarding(row pgx.Row) (*domain.Offboarding, error) {
	var o domain.Offboarding
	var closed []string
	var manifest *string
	err := row.Scan(&o.ID, &o.TenantID, &o.SagaID, &o.State, &o.Step, &o.Reason, &o.Actor, &o.CancelReason, &o.CancelActor, &o.RequestedAt,
		&o.SuspendedAt, &o.DrainedTo,
		&closed, &o.Exports, &manifest, &o.EndedAt)
	if manifest != nil {
		o.Manifest = []byte(*manifest)
	}
	for _, text := range closed {
		key, number, _ := strings.Cut(text, "/")
		snapshot, wrong := strconv.Atoi(number)
		if wrong != nil {
			err = fmt.Errorf("the period %q names no snapshot", text)
		}
		o.Closed = append(o.Closed, domain.Closing{TenantID: o.TenantID, PeriodKey: key, Snapshot: snapshot})
	}
	return One(&o, "offboarding", err)
}

// LastOffboarding implements offboarding.Reader.
func (c *Catalogue) LastOffboarding(ctx context.Context, tenant uuid.UUID) (*domain.Offboarding, error) {
	return Get(ctx, c, Scanned(ScanOffboarding), lastOffboardingSQL, tenant)
}

// Offboarding implements commands.Offboardings.
func (t *Tx) Offboarding(tenant uuid.UUID) (*domain.Offboarding, error) {
	return ScanOffboarding(t.tx.QueryRow(t.ctx, lastOffboardingSQL, tenant))
}
