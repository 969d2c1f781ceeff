package consume

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

const (
	// This locks no rows: the position of the live generation is only the first target.
	createCheckpoints = `WITH live AS (
  SELECT DISTINCT partition, position FROM consumer_checkpoints WHERE consumer = $1 AND joined AND ($3::smallint IS NULL
  OR partition = $3)),
 made AS (
  INSERT INTO consumer_checkpoints (consumer, generation, partition, joined, serving) SELECT $1, $2, partition, false, false FROM live)
 SELECT partition, position FROM live`

	moveCheckpoint = `UPDATE consumer_checkpoints SET position = $4, epoch = $5, joined = $6, updated_at = now()
 WHERE consumer = $1 AND generation = $2 AND partition = $3`

	serveFlips = `UPDATE consumer_checkpoints c SET serving = s.serving
 FROM (SELECT g.generation, EXISTS (SELECT FROM projection_pointers p WHERE p.live AND p.projection = g.projection
 AND p.generation = g.generation) AS serving
       FROM projection_generations g WHERE g.projection = $1) s
 WHERE c.consumer = $2 AND c.generation = s.generation AND c.joined AND c.serving <> s.serving`

	dropCheckpoint = `DELETE FROM consumer_checkpoints WHERE consumer = $1 AND generation = $2 AND partition = $3`
)

// CreateCheckpoints creates a generation's checkpoints in the partitions of its scope, before
// the first event: the consumer does not feed it yet. It returns the positions of the live
// generation there.
func CreateCheckpoints(ctx context.Context, tx pgx.Tx, consumer string, g projections.Generation) (live []events.Position, err error) {
	var partition *int16
	if g.TenantID != uuid.Nil {
		p := events.PartitionOf(g.TenantID)
		partition = &p
	}
	rows, err := tx.Query(ctx, createCheckpoints, consumer, g.Number, partition)
	if err != nil {
		return nil, fmt.Errorf("create the checkpoints of generation %d: %w", g.Number, err)
	}
	if live, err = pgx.CollectRows(rows, pgx.RowToStructByPos[events.Position]); err != nil {
		return nil, fmt.Errorf("create the checkpoints of generation %d: %w", g.Number, err)
	}
	return live, nil
}

// MoveCheckpoint moves the checkpoint of a generation that is not fed. The caller holds its
// row's lock. If the generation joins, the consumer feeds it from there on, and the caller
// holds the live generation's lock also.
func MoveCheckpoint(ctx context.Context, tx pgx.Tx, consumer string, generation int, to events.Position, epoch int32, joins bool) error {
	_, err := tx.Exec(ctx, moveCheckpoint, consumer, generation, to.Partition, to.Number, epoch, joins)
	return err
}

// ServeFlips makes the generations serving that a live pointer shows, after a flip, and no others.
func ServeFlips(ctx context.Context, tx pgx.Tx, projection, consumer string) error {
	_, err := tx.Exec(ctx, serveFlips, projection, consumer)
	return err
}

// DropCheckpoint ends the feeding of a generation in a partition for good.
func DropCheckpoint(ctx context.Context, tx pgx.Tx, consumer string, generation int, partition int16) error {
	_, err := tx.Exec(ctx, dropCheckpoint, consumer, generation, partition)
	return err
}
