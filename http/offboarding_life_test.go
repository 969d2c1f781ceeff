package http_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// storeWithFailover fails over after its first manifest.
type storeWithFailover struct {
	offboarding.Store
	failover func()
}

func (s *storeWithFailover) Manifest(ctx context.Context, offboarding, tenant uuid.UUID) (*domain.OffboardingManifest, int32, error) {
	m, epoch, err := s.Store.Manifest(ctx, offboarding, tenant)
	if s.failover != nil {
		s.failover()
		s.failover = nil
	}
	return m, epoch, err
}

// A failover after the manifest was made may lose events that it lists, and other events get their positions: the manifest lists the log of
// the new epoch.
func TestP8_AManifestListsTheLogAfterAFailover(t *testing.T) {
	w := newOffboardingWorld(t)
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until("export", false)
	w.want(204, call{"DELETE", "/api/v1/tenants/" + w.a.id + "/api-keys/" + w.a.keyID, bootstrap, nil, ""}) // the event that is lost
	owner, err := pgx.Connect(t.Context(), w.pool.Config().ConnString())
	w.must(err)
	defer owner.Close(t.Context())
	tenant := uuid.MustParse(w.a.id)
	c := w.offboarding()
	c.Store = &storeWithFailover{c.Store, func() {
		_, err := owner.Exec(t.Context(), `WITH lost AS (DELETE FROM event_log_rows l USING log_heads h WHERE h.partition = $1
			AND l.partition = h.partition AND l.position = h.position)
UPDATE log_heads SET position = position - 1, timeline = timeline - 1, started_at = started_at - interval '1 hour' WHERE partition = $1`,
			events.PartitionOf(tenant))
		w.must(err)
	}}
	w.kind = c.OffboardingKind()
	w.until("archive", false)
	var stored []byte
	var last int64
	w.must(w.pool.QueryRow(t.Context(), `SELECT manifest FROM offboardings WHERE tenant_id = $1`, tenant).Scan(&stored))
	w.must(w.pool.QueryRow(t.Context(), `SELECT position - 1 FROM event_log_rows l WHERE tenant_id = $1 AND subject = $2
		AND payload(l)->>'step' = 'exported'`, tenant, events.OffboardingStepped).Scan(&last))
	m, err := domain.DecodeManifest(stored)
	w.must(err)
	w.same("last position of the manifest", m.Log.Last.Number, last)
	w.same("steps", w.stepped(), []string{"requested", "suspended", "drained", "closed", "pushed", "exported"})
}
