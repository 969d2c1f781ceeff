package projectionstest

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
)

type (
	usageReads       = usage.Reads
	EntitlementReads = entitlements.Reads
	deadLetterReads  = deadletters.Reads
	rebuildReads     = rebuild.Reads
	seriesReads      = series.Reads
	eventReads       = audit.Reads
)

// Reads are all reads in one, for tests.
type Reads struct {
	*usageReads
	*EntitlementReads
	*deadLetterReads
	*rebuildReads
	*seriesReads
	*eventReads
	Now func() time.Time
}

// NewReads returns the reads of a database.
func NewReads(db query.DB, grants *entitlements.Cache, now func() time.Time) *Reads {
	r := models.NewReads(db, grants, models.DefaultFolds(), now, 0)
	return &Reads{r.Usage, r.Entitlements, r.DeadLetters, r.Rebuilds, r.Series, r.Events, now}
}

// SetNow replaces the clock.
func (r *Reads) SetNow(now func() time.Time) {
	r.usageReads.Now, r.EntitlementReads.Now, r.Now = now, now, now
}

// SetReplica lets lists be answered by another database.
func (r *Reads) SetReplica(pool *pgxpool.Pool) {
	for _, db := range []*query.DB{&r.usageReads.DB, &r.EntitlementReads.DB, &r.deadLetterReads.DB, &r.rebuildReads.DB, &r.seriesReads.DB,
		&r.eventReads.DB} {
		db.Replica = pool
	}
}

// Await waits as the reads of events do.
func (r *Reads) Await(ctx context.Context, v query.Viewer, tenant *uuid.UUID, w query.Wait) error {
	return r.eventReads.Await(ctx, v, tenant, w)
}

// Operator is the view of an operator's key.
var Operator = query.Viewer{Operator: true}

// TenantViewer is the view of a tenant's key.
func TenantViewer(tenant uuid.UUID) query.Viewer { return query.Viewer{TenantID: tenant} }
