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

// OffboardingColumns are the columns that RowToOffboarding reads.
const (
	OffboardingColumns = `id, tenant_id, saga_id, state, step, reason, actor, cancel_reason, cancel_actor, requested_at, suspended_at, ` +
		`drained_to, closed, exports, manifest, ended_at`
	lastOffboardingSQL = `SELECT ` + OffboardingColumns + ` FROM offboardings WHERE tenant_id = $1 ORDER BY id DESC LIMIT 1`
)

// RowToOffboarding reads a row.
func RowToOffboarding(row pgx.CollectableRow) (domain.Offboarding, error) {
	found, err := pgx.RowToStructByName[struct {
		domain.Offboarding
		Closed []string // as key/snapshot, instead of the offboarding's
	}](row)
	o := found.Offboarding
	for _, text := range found.Closed {
		key, number, _ := strings.Cut(text, "/")
		snapshot, wrong := strconv.Atoi(number)
		if wrong != nil {
			err = fmt.Errorf("the period %q names no snapshot", text)
		}
		o.Closed = append(o.Closed, domain.Closing{TenantID: o.TenantID, PeriodKey: key, Snapshot: snapshot})
	}
	return o, err
}

// LastOffboarding implements offboarding.Reader.
func (c *Catalogue) LastOffboarding(ctx context.Context, tenant uuid.UUID) (*domain.Offboarding, error) {
	return Get(ctx, c, RowToOffboarding, lastOffboardingSQL, tenant)
}

// Offboarding implements commands.Offboardings.
func (t *Tx) Offboarding(tenant uuid.UUID) (*domain.Offboarding, error) {
	return Find(t.ctx, t.tx, RowToOffboarding, lastOffboardingSQL, tenant)
}
