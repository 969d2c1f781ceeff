package prometheus

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/state"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

// series returns a metric's values by label values, ordered by label name.
func series(t *testing.T, registry *prom.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	must.OK(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetValue() + " "
			}
			if f.GetName() == name {
				values[labels] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return values
}

// migrated returns a pool on an empty migrated database.
func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := localtest.Migrated(t, postgres.Migrate)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, ApplicationName: "test"})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// reader reads the state of a database, which metrics show.
type reader struct {
	*state.Watch
	registry *prom.Registry
	metrics  *Metrics
}

func newReader(pool *pgxpool.Pool) *reader {
	r := &reader{&state.Watch{Pool: pool, Viewed: func() bool { return false }}, prom.NewRegistry(), nil}
	r.metrics = New(r.registry, r.State, []string{"known"})
	r.Accounts = func(ctx context.Context) (state.Accounts, error) { return r.metrics.CompareAccounts(ctx, pool) }
	return r
}

// read reads all of the state.
func (r *reader) read(t *testing.T) {
	t.Helper()
	before := r.State().ReadAt
	if r.Read(t.Context()); !r.State().ReadAt.After(before) {
		t.Fatal("a part of the state could not be read")
	}
}

// unread is the state before the first read.
func unread() *state.State { return new(state.State) }

// watched reads the state until seen returns true.
func watched(t *testing.T, pool *pgxpool.Pool, seen func(*reader) bool) *prom.Registry {
	r := newReader(pool)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for !seen(r) {
		time.Sleep(time.Millisecond)
	}
	stop()
	must.OK(t, <-done)
	return r.registry
}

func TestOpenDeadLettersAreCounted(t *testing.T) {
	pool := migrated(t)
	for i, status := range []string{"FAILED", "FAILED", "RETRYING", "RESOLVED", "DISCARDED"} {
		must.Exec(t, pool, `INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason,
			producer_event_id, feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
			VALUES (1, $1, 3, $2, 'VALIDATION', $3, 'c', 'r', '', 'f', $4, 't', 0, now(), now())`, uuid.New(), uuid.New(), status, i)
	}
	registry := watched(t, pool, func(r *reader) bool {
		return series(t, r.registry, "meterplex_dead_letters")["VALIDATION FAILED "] != 0
	})
	got := series(t, registry, "meterplex_dead_letters")
	if got["VALIDATION FAILED "] != 2 || got["VALIDATION RETRYING "] != 1 || got["AGGREGATION FAILED "] != 0 {
		t.Error(got)
	}
}

func TestDeadLettersOfEachStageAreCounted(t *testing.T) {
	registry := prom.NewRegistry()
	m := New(registry, unread, nil)
	applied := []events.Envelope{{Subject: events.UsageRejected}, {Subject: events.UsageRejected}, {Subject: events.UsageConflicted},
		{Subject: events.UsageRefused}, {Subject: events.DeadLetterClosed}}
	m.Observe(&projections.Consumer{Name: events.GroupDeadLetter, Topic: events.TopicUsageDeadLetter}, projections.Batch{Applied: applied})
	m.Observe(&projections.Consumer{Name: events.GroupEntitlements}, projections.Batch{Applied: applied})
	m.Observe(&projections.Consumer{Name: events.GroupAggregator, Topic: events.TopicUsageValidated},
		projections.Batch{Applied: make([]events.Envelope, 3), Failed: make([]projections.Failure, 1)})
	m.Relay().Withheld(events.TopicUsageRaw)
	got := series(t, registry, "meterplex_events_dlq_total")
	want := map[string]float64{"VALIDATION usage.raw ": 2, "INGESTION usage.raw ": 1, "INGESTION usage.commands ": 1,
		"AGGREGATION usage.validated ": 1, "PUBLISHING usage.raw ": 1}
	for labels, n := range want {
		if got[labels] != n {
			t.Errorf("%q is %v: %s", labels, got[labels], fmt.Sprint(got))
		}
	}
}
