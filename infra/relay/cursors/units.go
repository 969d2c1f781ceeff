package cursors

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// Claimed is a unit of a range under a lease.
type Claimed struct {
	Replay    uuid.UUID
	Partition int16
	Topic     events.Topic
	Tenant    *uuid.UUID // nil: all
	Cursor    int64
	UpTo      int64
	Fence     int64
}

const claimUnitSQL = `WITH due AS MATERIALIZED (
 SELECT u.replay_id, u.partition, r.topic, r.tenant_id FROM replay_units u JOIN replays r ON r.id = u.replay_id
 WHERE r.state = 'RUNNING' AND r.kind = 'range' AND u.cursor < u.upto AND u.lease_until < now()
 AND (u.replay_id, u.partition) NOT IN (SELECT * FROM unnest($2::uuid[], $3::smallint[]))
 ORDER BY u.replay_id, u.partition LIMIT 1 FOR UPDATE OF u SKIP LOCKED
) UPDATE replay_units u SET fence = u.fence + 1, lease_until = now() + $1::interval FROM due
 WHERE u.replay_id = due.replay_id AND u.partition = due.partition
 RETURNING u.replay_id, u.partition, due.topic, due.tenant_id, u.cursor, u.upto, u.fence`

// Claim leases a unit that is free, has records left to publish and is none of the excluded, or returns nil.
func Claim(ctx context.Context, db Database, ttl time.Duration, except ...*Claimed) (*Claimed, error) {
	var u Claimed
	replays, partitions := []uuid.UUID{}, []int16{} // not nil: NOT IN of NULL is not true
	for _, e := range except {
		replays, partitions = append(replays, e.Replay), append(partitions, e.Partition)
	}
	err := db.QueryRow(ctx, claimUnitSQL, ttl, replays, partitions).Scan(&u.Replay, &u.Partition, &u.Topic, &u.Tenant, &u.Cursor, &u.UpTo,
		&u.Fence)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claiming a replay unit: %w", err)
	}
	return &u, nil
}

const moveUnitSQL = `UPDATE replay_units SET cursor = $5, records = records + $6, lease_until = now() + $7::interval
 WHERE replay_id = $1 AND partition = $2 AND fence = $3 AND cursor = $4 AND EXISTS (SELECT FROM replays WHERE id = $1
 AND state = 'RUNNING')`

// Move moves the unit's cursor past records that are published, and renews the lease. It reports false if
// the lease was lost or the replay has ended.
func (u *Claimed) Move(ctx context.Context, db Database, to, records int64, ttl time.Duration) (bool, error) {
	tag, err := db.Exec(ctx, moveUnitSQL, u.Replay, u.Partition, u.Fence, u.Cursor, to, records, ttl)
	if err != nil {
		return false, fmt.Errorf("moving a replay's cursor: %w", err)
	}
	u.Cursor = to
	return tag.RowsAffected() == 1, nil
}

// Release ends the lease, so that any instance can continue at once.
func (u *Claimed) Release(ctx context.Context, db Database) error {
	_, err := db.Exec(ctx, `UPDATE replay_units SET lease_until = '-infinity' WHERE replay_id = $1 AND partition = $2 AND fence = $3`,
		u.Replay, u.Partition, u.Fence)
	if err != nil {
		return fmt.Errorf("releasing a replay unit: %w", err)
	}
	return nil
}
