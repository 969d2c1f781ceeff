package repairs

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/relay/cursors"
)

var (
	_ repair.ReplayStore  = (*Replays)(nil)
	_ repair.ReplayReader = (*Replays)(nil)
	_ repair.ReplayTx     = (*replayTx)(nil)
)

// The cursors are locked in their order, before any head and after checkpoints: a
// transaction that holds cursors locks no checkpoint.
const holdCursorsSQL = `SELECT FROM relay_cursors ORDER BY partition FOR UPDATE`

// Replays changes the replays of published events, and reads them. It implements
// repair.ReplayStore and repair.ReplayReader.
type Replays struct{ Store *store.Store }

// replayTx is a change of replays.
type replayTx struct{ *store.Tx }

// ChangeReplays implements repair.ReplayStore.
func (s *Replays) ChangeReplays(ctx context.Context, cursors bool, decide func(repair.ReplayTx) error) error {
	hold := func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error {
		if cursors {
			t.Queue("locking the relay's cursors", holdCursorsSQL)
		}
		return s.Store.Log().LockHeads(ctx, t, []int16{events.PartitionOf(events.Platform)}, admitted)
	}
	return s.Store.ChangeUnder(ctx, events.Platform, hold, func(tx *store.Tx) error { return decide(&replayTx{tx}) })
}

// RelayCursors implements repair.ReplayTx: all of them, in their order.
func (t *replayTx) RelayCursors() ([]repair.RelayCursor, error) {
	cursors, err := store.FindAll(t.Context(), t.DB(), "reading the relay's cursors", pgx.RowToStructByPos[repair.RelayCursor],
		`SELECT partition, position FROM relay_cursors ORDER BY partition`)
	if err == nil && len(cursors) != events.Partitions {
		return nil, fmt.Errorf("reading the relay's cursors: %d of %d", len(cursors), events.Partitions)
	}
	return cursors, err
}

// Before implements repair.ReplayTx.
func (t *replayTx) Before(at time.Time) (last [events.Partitions]int64, err error) {
	rows, err := t.DB().Query(t.Context(), `SELECT partition, recorded_until(partition, $1, false) FROM log_heads`, at)
	if err != nil {
		return last, fmt.Errorf("looking up positions of a time: %w", err)
	}
	var partition int16
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		last[partition] = position
		return nil
	})
	if err != nil {
		return last, fmt.Errorf("looking up positions of a time: %w", err)
	}
	return last, nil
}

// Recorded implements repair.ReplayTx.
func (t *replayTx) Recorded(p events.Position) (is bool, err error) {
	const sql = `SELECT EXISTS (SELECT FROM event_log_rows WHERE partition = $1 AND position = $2)`
	if err = t.DB().QueryRow(t.Context(), sql, p.Partition, p.Number).Scan(&is); err != nil {
		return false, fmt.Errorf("looking up %s: %w", p, err)
	}
	return is, nil
}

// RewindRelay implements repair.ReplayTx.
func (t *replayTx) RewindRelay(steps []events.ReplayStep) error {
	return cursors.Rewind(t.Context(), t.DB(), steps)
}

const startReplaySQL = `INSERT INTO replays (id, kind, topic, tenant_id, consumer, target, reason, state, created_at, ended_at)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// StartReplay implements repair.ReplayTx.
func (t *replayTx) StartReplay(r repair.Replay) error {
	topic, _ := events.TopicOf(r.Topic)
	t.Queue("replay", startReplaySQL, r.ID, r.Kind, int16(topic), r.TenantID, r.Consumer, r.Target, r.Reason, r.State, r.CreatedAt,
		r.EndedAt)
	return cursors.AddUnits(t.Context(), t.DB(), r.ID, unitsOf(r.Units))
}

func unitsOf(units []repair.ReplayUnit) (all []cursors.Unit) {
	for _, u := range units {
		all = append(all, cursors.Unit{Partition: u.Partition, First: u.First, Cursor: u.Cursor, UpTo: u.UpTo})
	}
	return all
}

const endReplaySQL = `UPDATE replays SET state = $2, failure = $3, ended_at = $4 WHERE id = $1 AND state = 'RUNNING'`

// EndReplay implements repair.ReplayTx.
func (t *replayTx) EndReplay(id uuid.UUID, state, failure string, at time.Time, units []repair.ReplayUnit) (bool, error) {
	tag, err := t.DB().Exec(t.Context(), endReplaySQL, id, state, failure, at)
	if err != nil {
		return false, fmt.Errorf("ending a replay: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	return true, cursors.EndUnits(t.Context(), t.DB(), id, unitsOf(units))
}

// Replay implements repair.ReplayTx.
func (t *replayTx) Replay(id uuid.UUID) (*repair.Replay, error) {
	return store.Find(t.Context(), t.DB(), rowToReplay, replaySQL, id)
}

// The units are read with their replay, so that one statement sees both at one moment.
const replayColumns = `SELECT r.id, r.kind, r.topic, r.tenant_id, r.consumer, r.target, r.reason, r.state, r.failure, r.created_at,
	r.ended_at,
 coalesce((SELECT sum(greatest(v.upto - CASE r.kind WHEN 'relay' THEN greatest(c.position, v.cursor) ELSE v.cursor END, 0))
  FROM replay_units v JOIN relay_cursors c USING (partition) WHERE v.replay_id = r.id AND r.kind <> 'consumer'), 0)::bigint AS remaining,
 (SELECT json_agg(u ORDER BY u.partition) FROM replay_units u WHERE u.replay_id = r.id) AS units
 FROM replays r`

const (
	replaySQL = replayColumns + ` WHERE r.id = $1`
	// The newest first; ids follow time.
	replaysSQL = replayColumns + ` WHERE $1::uuid IS NULL OR r.id < $1 ORDER BY r.id DESC LIMIT $2`
	// The oldest pending rewind. Each instance asks once a second, nearly always in vain, and planning replayColumns takes a millisecond.
	dueRewindSQL = `SELECT id FROM replays WHERE state = 'RUNNING' AND kind = 'consumer' ORDER BY id LIMIT 1`
)

func rowToReplay(row pgx.CollectableRow) (repair.Replay, error) {
	found, err := pgx.RowToStructByName[struct {
		repair.Replay
		Topic events.Topic // instead of its name
	}](row)
	found.Replay.Topic = found.Topic.Name()
	return found.Replay, err
}

// Replay implements repair.ReplayReader; nil if the id is unknown.
func (s *Replays) Replay(ctx context.Context, id uuid.UUID) (*repair.Replay, error) {
	r, err := store.Find(ctx, s.Store.Pool(), rowToReplay, replaySQL, id)
	return r, store.Unavailable(err)
}

// Replays implements repair.ReplayReader.
func (s *Replays) Replays(ctx context.Context, p commands.Page) ([]repair.Replay, error) {
	list, err := store.FindAll(ctx, s.Store.Pool(), "reading replays", rowToReplay, replaysSQL, store.BeforeID(p), p.Limit)
	return list, store.Unavailable(err)
}

// DueRewind returns the oldest pending rewind of the consumer of usage.commands, or nil.
func (s *Replays) DueRewind(ctx context.Context) (*repair.Replay, error) {
	id, err := store.Find(ctx, s.Store.Pool(), pgx.RowTo[uuid.UUID], dueRewindSQL)
	if err != nil || id == nil {
		return nil, store.Unavailable(err)
	}
	r, err := s.Replay(ctx, *id)
	if err != nil || r == nil || r.State != repair.ReplayRunning { // it has ended meanwhile
		return nil, err
	}
	return r, nil
}
