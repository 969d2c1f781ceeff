package relay

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/relay/cursors"
)

// A replayer whose lease of a partition has run out does not move the cursor any more, nor renew the lease of the next one.
func TestP2_AReplayMovesOnlyUnderItsLease(t *testing.T) {
	_, pool := migrated(t, false)
	ctx, replay := t.Context(), uuid.New()
	for _, sql := range []string{
		`INSERT INTO replays (id, kind, state, topic, reason, created_at) VALUES ($1, 'range', 'RUNNING', 1, 'test', now())`,
		`INSERT INTO replay_units (replay_id, partition, first, cursor, upto) VALUES ($1, 3, 0, 0, 100)`,
	} {
		if _, err := pool.Exec(ctx, sql, replay); err != nil {
			t.Fatal(err)
		}
	}
	first, err := cursors.Claim(ctx, pool, -time.Second) // it has run out at once
	if err != nil || first == nil {
		t.Fatalf("%v %v", first, err)
	}
	second, err := cursors.Claim(ctx, pool, time.Minute)
	if err != nil || second == nil || second.Fence == first.Fence {
		t.Fatalf("%+v %v", second, err)
	}
	if moved, err := first.Move(ctx, pool, 50, 50, time.Hour); err != nil || moved {
		t.Errorf("the replayer whose lease has run out moved the cursor: %t %v", moved, err)
	}
	if moved, err := second.Move(ctx, pool, 50, 50, time.Minute); err != nil || !moved {
		t.Errorf("the replayer with the lease did not move the cursor: %t %v", moved, err)
	}
	var cursor, records int64
	var soon bool
	const now = `SELECT cursor, records, lease_until < now() + interval '2 minutes' FROM replay_units WHERE replay_id = $1`
	if err := pool.QueryRow(ctx, now, replay).Scan(&cursor, &records, &soon); err != nil || cursor != 50 || records != 50 || !soon {
		t.Errorf("the cursor is at %d after %d records, the lease ends soon: %t, %v", cursor, records, soon, err)
	}
}
