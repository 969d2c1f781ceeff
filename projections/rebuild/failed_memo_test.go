package rebuild

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// A rebuild forgets the events that could not be folded once the log begins another life: the life before may have lost them, and
// other events have their positions.
func TestP5_FailedEventsAreForgottenInAnotherLife(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), localtest.Migrated(t, postgres.Migrate))
	must.OK(t, err)
	defer conn.Close(t.Context())
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), events.SQL(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	v := events.CurrentVocabulary()
	exec(`INSERT INTO log_vocabularies (hash, document) VALUES ($1, $2)`, v.Hash(), v.Document())
	exec(
		`INSERT INTO log_origins (actor_type, actor_id, service, instance, commit, vocabulary) VALUES ('service', $1, 'meterplex', 'test',
			'x', $2)`,
		events.GroupAggregator, v.Hash(),
	)
	exec(
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
		 topic, subject, dedupe_key, body)
	 SELECT 9, 0, now(), now(), gen_random_uuid(), gen_random_uuid(), 1, max(id), 3, 3, {usage.event.aggregation_failed}, 'e/9',
	 '{"sourcePosition":7}' FROM log_origins`,
	)
	exec(`UPDATE log_heads SET position = 9, epoch = 1, topic_positions[{usage.dead-letter}] = 9 WHERE partition = 3`)
	var memo failedMemo
	failed := func() (positions map[int64]bool) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) (err error) {
			positions, err = memo.since(t.Context(), tx, events.GroupAggregator, 3)
			return err
		})
		must.OK(t, err)
		return positions
	}
	for range 2 {
		if got := failed(); len(got) != 1 || !got[7] {
			t.Fatalf("failed are %v, not 7", got)
		}
	}
	exec(`DELETE FROM event_log_rows WHERE partition = 3`)
	exec(`UPDATE log_heads SET position = 8, epoch = 2, topic_positions[{usage.dead-letter}] = 0 WHERE partition = 3`)
	if got := failed(); len(got) != 0 {
		t.Errorf("the log has lost the dead letter, and a rebuild leaves out %v", got)
	}
}
