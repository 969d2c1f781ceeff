package prometheus

import (
	"math"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/internal/must"
)

func TestLagDriftAndProgress(t *testing.T) {
	pool := migrated(t)
	open, verified := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	for _, sql := range []string{
		// Partition 3 has 10 events; the last verdict is the sixth, a minute old.
		`UPDATE log_heads SET position = 10, topic_positions[2] = 6 WHERE partition = 3`,
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
		 SELECT n, 0, now() - interval '1 min', now(), gen_random_uuid(), gen_random_uuid(), 0, 1, 3, CASE WHEN n = 6 THEN 2 ELSE 1 END, 1,
		 n::text, '{}' FROM generate_series(1, 10) n`,
		`UPDATE consumer_checkpoints SET position = 2 WHERE consumer = 'meterplex-usage-aggregator' AND partition = 3`,
		`UPDATE consumer_checkpoints SET position = 10 WHERE consumer IN ('meterplex-entitlement-reads', 'meterplex-usage-series')
			AND partition = 3`,
		// A rebuild has folded one of the two events that the live generation has folded.
		`INSERT INTO projection_generations (projection, generation, fold_version) VALUES ('usage_aggregates', 2, 'v'), ('usage_aggregates',
			3, 'v')`,
		`UPDATE projection_generations SET broken = 'b' WHERE generation = 3`,
		`INSERT INTO consumer_checkpoints (consumer, generation, partition, position, joined, serving) VALUES ('meterplex-usage-aggregator',
			2, 3, 1, false, false)`,
		`INSERT INTO projection_rebuilds (id, projection, consumer, generation, fold_version, purpose, tenant_id, period_key, reason, state,
			workers, differs, created_at, ended_at) VALUES
		 ('` + open.String() +
			`', 'usage_aggregates', 'meterplex-usage-aggregator', 2, 'v', 'rebuild', gen_random_uuid(), '', 'r', 'FOLDING', 1, NULL, now(), NULL),
		 ('` + verified.String() +
			`', 'usage_aggregates', 'meterplex-usage-aggregator', 3, 'v', 'verify', gen_random_uuid(), '', 'r', 'ABANDONED', 1, 7, now(), now())`,
		`INSERT INTO rebuild_units (rebuild_id, partition, target) VALUES ('` + open.String() + `', 3, 2)`,
	} {
		must.Exec(t, pool, sql)
	}
	r := newReader(pool)
	r.read(t)
	registry := r.registry
	for name, want := range map[string]map[string]float64{
		"projection_lag_events":         {"usage_aggregates ": 4, "entitlement_reads ": 0, "dead_letter_events ": 0, "usage_series ": 0},
		"consumer_lag":                  {"3 usage.validated ": 4, "0 usage.validated ": 0, "31 usage.raw ": 0},
		"projection_drift_rows":         {"usage_aggregates ": 7},
		"projection_broken_generations": {"usage_aggregates ": 1, "entitlement_reads ": 0},
		"rebuilds_open":                 {"usage_aggregates FOLDING ": 1},
		"rebuild_events_done":           {"usage_aggregates ": 1},
		"rebuild_events_total":          {"usage_aggregates ": 2},
	} {
		got := series(t, registry, "meterplex_"+name)
		for labels, n := range want {
			if v, there := got[labels]; !there || v != n {
				t.Errorf("%s: %v, want %s%v", name, got, labels, n)
			}
		}
	}
	age := series(t, registry, "meterplex_projection_lag_seconds")
	if age["usage_aggregates "] < 59 || age["usage_aggregates "] > 600 || age["entitlement_reads "] != 0 {
		t.Errorf("age %v", age)
	}
	if drift := series(t, registry, "meterplex_projection_drift_rows"); !math.IsNaN(drift["entitlement_reads "]) {
		t.Errorf("drift of a projection that was never verified: %v", drift)
	}
}
