package projections_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
)

// pipelineFixture is a fixture with every consumer and the reads.
type pipelineFixture struct {
	*logFixture
	reads                                         *reads
	cached                                        *reads // with a cache of grants
	validating, aggregating, lettering, entitling *consume.Runner
	summing                                       *consume.Runner // usage_series
	now                                           time.Time
}

type (
	usageReads       = usage.Reads
	entitlementReads = entitlements.Reads
	deadLetterReads  = deadletters.Reads
	rebuildReads     = rebuild.Reads
	seriesReads      = series.Reads
	eventReads       = audit.Reads
)

// reads are all reads in one, for tests.
type reads struct {
	*usageReads
	*entitlementReads
	*deadLetterReads
	*rebuildReads
	*seriesReads
	*eventReads
	Now func() time.Time
}

func newReads(db query.DB, grants *entitlements.Cache, now func() time.Time) *reads {
	r := models.NewReads(db, grants, models.DefaultFolds(), now, 0)
	return &reads{r.Usage, r.Entitlements, r.DeadLetters, r.Rebuilds, r.Series, r.Events, now}
}

// setNow replaces the clock.
func (r *reads) setNow(now func() time.Time) {
	r.usageReads.Now, r.entitlementReads.Now, r.Now = now, now, now
}

// setReplica lets lists be answered by another database.
func (r *reads) setReplica(pool *pgxpool.Pool) {
	for _, db := range []*query.DB{&r.usageReads.DB, &r.entitlementReads.DB, &r.deadLetterReads.DB, &r.rebuildReads.DB, &r.seriesReads.DB, &r.eventReads.DB} {
		db.Replica = pool
	}
}

// Await waits as the reads of events do.
func (r *reads) Await(ctx context.Context, v query.Viewer, tenant *uuid.UUID, w query.Wait) error {
	return r.eventReads.Await(ctx, v, tenant, w)
}

var operator = query.Viewer{Operator: true}

func tenantViewer(tenant uuid.UUID) query.Viewer { return query.Viewer{TenantID: tenant} }

func newPipelineFixture(t testing.TB) *pipelineFixture {
	return newPipelineFixtureOf(newLogFixture(t))
}

func newPipelineFixtureOf(w *logFixture) *pipelineFixture {
	s := &pipelineFixture{logFixture: w, now: may.Add(10 * 24 * time.Hour)}
	now := func() time.Time { return s.now }
	s.reads = newReads(query.DB{Pool: w.pool}, nil, now)
	s.cached = newReads(query.DB{Pool: w.pool}, entitlements.NewCache(w.pool, w.pool), now)
	s.validating, _ = w.validator()
	s.aggregating, _ = w.aggregator(nil)
	s.lettering, _ = w.runner(deadletters.Consumer(models.DefaultFolds().DeadLetters))
	s.entitling, _ = w.runner(entitlements.Consumer(models.DefaultFolds().Entitlements, newID))
	s.summing, _ = w.runner(series.Consumer(models.DefaultFolds().Series))
	return s
}

// addSeparateGeneration makes a second generation of a consumer's projection that is fed apart
// from the first, event by event.
func (s *pipelineFixture) addSeparateGeneration(c projections.Consumer) *consume.Runner {
	s.Helper()
	c.Name, c.MaxPerPartition = "one by one", 1
	s.must(second(s.pool.Exec(context.Background(), `INSERT INTO projection_generations (projection, generation, fold_version) VALUES ($1, 2, $2) ON CONFLICT DO NOTHING`,
		c.Projection, c.Versions[0])))
	s.must(second(s.pool.Exec(context.Background(), `INSERT INTO consumer_checkpoints (consumer, generation, partition)
		SELECT 'one by one', 2, p FROM generate_series(0, 31) p ON CONFLICT DO NOTHING`)))
	r, _ := s.runner(c)
	return r
}

// drain lets consumers read the log until each has reached its source's end.
func (s *pipelineFixture) drain(runners ...*consume.Runner) {
	s.Helper()
	ctx := context.Background()
	for _, r := range runners {
		until := time.Now().Add(time.Minute)
		for {
			ahead, err := r.Ahead(ctx)
			s.must(err)
			if len(ahead) == 0 {
				break
			}
			if time.Now().After(until) {
				s.stuck(r.Consumer.Name, len(ahead))
				break
			}
			if r.ReadUpTo(ctx, ahead) != nil {
				time.Sleep(time.Millisecond) // a router pauses and sends them again
			}
		}
	}
}

// stuck reports a consumer that does not reach the end, and the cause if visible:
// generations of a partition move together or not at all.
func (s *pipelineFixture) stuck(consumer string, behind int) {
	s.Helper()
	var apart string
	s.must(s.pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(format('%s-%s to %s', partition, low, high), ', '), '') FROM (
		SELECT partition, min(position) low, max(position) high FROM consumer_checkpoints WHERE consumer = $1 AND joined GROUP BY 1) c WHERE low < high`, consumer).Scan(&apart))
	s.Errorf("%s does not reach the end in %d partitions; generations stand apart in %q", consumer, behind, apart)
}

// settle lets every consumer reach the end, those first that others follow.
func (s *pipelineFixture) settle() {
	s.Helper()
	s.drain(s.validating, s.aggregating, s.lettering, s.entitling)
	s.drain(s.lettering, s.entitling, s.summing) // the follow-ups of the others
}

// relayed marks all events as published, at offsets from a base on.
func (s *pipelineFixture) relayed(base int64) {
	s.Helper()
	_, err := s.pool.Exec(context.Background(), `
		WITH moved AS (UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition)
		INSERT INTO outbox_publications (partition, topic, from_position, to_position, base_offset)
		SELECT partition, topic, min(position), max(position), $1 FROM event_log_rows GROUP BY partition, topic`, base)
	s.must(err)
}

// conflict is the record of an eventId sent again with another payload.
func conflict(tenant uuid.UUID, eventID string, first events.Position, other string) events.Pending {
	hash := sha256.Sum256([]byte(other))
	payload, _ := json.Marshal(map[string]string{"eventId": eventID, "feature": "calls"})
	body, _ := json.Marshal(events.Conflicted{EventID: eventID, RawPosition: first.Number, FirstHash: hex.EncodeToString(make([]byte, 32)),
		ConflictHash: hex.EncodeToString(hash[:]), Payload: payload})
	return events.Pending{EventID: newID(), Subject: events.UsageConflicted, TenantID: tenant, DedupeKey: events.KeyConflict(eventID, hash[:]),
		Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified, OccurredAt: may, Payload: body}
}

// plainEvent makes any event that needs no key but its own.
func plainEvent(tenant uuid.UUID, subject events.Subject, counts events.Counts, payload any) events.Pending {
	id := newID()
	body, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	return events.Pending{EventID: id, Subject: subject, TenantID: tenant, DedupeKey: events.KeyEvent(id), Actor: events.Actor{Type: "service", ID: "test"},
		Residency: events.ResidencyUnspecified, OccurredAt: may, Payload: body, Counts: counts}
}

// quota returns a grant with a limit; less than 0: unlimited.
func quota(feature string, limit int64, behavior, reset string) domain.Grant {
	g := domain.Grant{Entitlement: domain.Entitlement{Feature: feature, LimitBehavior: behavior, ResetPeriod: reset, OnIngest: domain.OnIngestRecord}, Type: domain.FeatureQuota}
	if limit >= 0 {
		g.Limit = &limit
	}
	return g
}

func (s *pipelineFixture) receipt(tenant uuid.UUID, eventID string) audit.Receipt {
	s.Helper()
	r, err := s.reads.Receipt(context.Background(), tenantViewer(tenant), tenant, eventID, query.Wait{})
	s.must(err)
	return r
}

func second[T any](_ T, err error) error { return err }

func refusedAs(t *testing.T, want, err error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
