package cursors

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Unit is one partition of a replay: the range (First, UpTo] is published again, up to Cursor so far.
type Unit struct {
	Partition           int16
	First, Cursor, UpTo int64
}

const (
	addUnitsSQL = `INSERT INTO replay_units (replay_id, partition, first, cursor, upto)
 SELECT $1, u.* FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[]) u`
	endUnitsSQL = `UPDATE replay_units u SET cursor = n.cursor, upto = n.upto
 FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) n (partition, cursor, upto) WHERE u.replay_id = $1 AND u.partition = n.partition`
)

// AddUnits adds the units of a new replay.
func AddUnits(ctx context.Context, tx pgx.Tx, replay uuid.UUID, units []Unit) error {
	partitions, first, cursor, upTo := unitColumns(units)
	if _, err := tx.Exec(ctx, addUnitsSQL, replay, partitions, first, cursor, upTo); err != nil {
		return fmt.Errorf("keeping a replay: %w", err)
	}
	return nil
}

// EndUnits keeps how far the units of a replay came at its end.
func EndUnits(ctx context.Context, tx pgx.Tx, replay uuid.UUID, units []Unit) error {
	partitions, _, cursor, upTo := unitColumns(units)
	if _, err := tx.Exec(ctx, endUnitsSQL, replay, partitions, cursor, upTo); err != nil {
		return fmt.Errorf("keeping a replay's figures: %w", err)
	}
	return nil
}

func unitColumns(units []Unit) (partitions []int16, first, cursor, upTo []int64) {
	for _, u := range units {
		partitions, first = append(partitions, u.Partition), append(first, u.First)
		cursor, upTo = append(cursor, u.Cursor), append(upTo, u.UpTo)
	}
	return partitions, first, cursor, upTo
}

// OpenUnit is a unit of a running range with records left to publish.
type OpenUnit struct {
	Replay    uuid.UUID
	Partition int16
	Topic     events.Topic
	Tenant    *uuid.UUID // nil: all
	Cursor    int64
	UpTo      int64
}

const openUnitsSQL = `SELECT u.replay_id, u.partition, r.topic, r.tenant_id, u.cursor, u.upto
 FROM replay_units u JOIN replays r ON r.id = u.replay_id
 WHERE u.replay_id = $1 AND r.state = 'RUNNING' AND u.cursor < u.upto ORDER BY u.partition`

// Open returns the open units of a replay.
func Open(ctx context.Context, db Database, replay uuid.UUID) ([]OpenUnit, error) {
	rows, err := db.Query(ctx, openUnitsSQL, replay)
	if err == nil {
		var units []OpenUnit
		if units, err = pgx.CollectRows(rows, pgx.RowToStructByPos[OpenUnit]); err == nil {
			return units, nil
		}
	}
	return nil, fmt.Errorf("reading the units of a replay: %w", err)
}

const moveUnitSQL = `UPDATE replay_units SET cursor = $4, records = records + $5
 WHERE replay_id = $1 AND partition = $2 AND cursor = $3 AND EXISTS (SELECT FROM replays WHERE id = $1 AND state = 'RUNNING')`

// Move moves the unit's cursor past records that are published. It reports false if another instance moved it, or the replay has ended.
func (u *OpenUnit) Move(ctx context.Context, db Database, to, records int64) (bool, error) {
	tag, err := db.Exec(ctx, moveUnitSQL, u.Replay, u.Partition, u.Cursor, to, records)
	if err != nil {
		return false, fmt.Errorf("moving a replay's cursor: %w", err)
	}
	u.Cursor = to
	return tag.RowsAffected() == 1, nil
}
