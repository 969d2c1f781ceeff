// Package cursors stores the positions up to which the log is published: the relay's cursor in each
// partition, and the cursors of replays. Each cursor is leased. Each lease has a number, the fence; a write
// with the fence of an earlier lease fails.
package cursors

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Database is a pool or a transaction.
type Database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Lease is the lease of a partition.
type Lease struct {
	Partition int16
	Fence     int64
}

// Leased is a leased cursor. Epoch is the log's, of an acquired lease only.
type Leased struct {
	Lease
	Position int64
	Epoch    int32
}

// renewSQL, like each statement on several cursors, locks them in ascending order first, so that renewals
// and moves cannot deadlock.
const renewSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, c.fence FROM relay_cursors c JOIN unnest($2::smallint[], $3::bigint[]) m (partition, fence) USING (partition, fence)
 WHERE c.owner = $1 ORDER BY c.partition FOR UPDATE OF c
) UPDATE relay_cursors c SET lease_until = now() + $4::interval FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence AND c.owner = $1 RETURNING c.partition, c.fence, c.position`

// Renew extends leases and returns those that the instance still has.
func Renew(ctx context.Context, db Database, instance string, held []Lease, ttl time.Duration) ([]Leased, error) {
	partitions, fences := columns(held)
	rows, err := db.Query(ctx, renewSQL, instance, partitions, fences, ttl)
	if err != nil {
		return nil, fmt.Errorf("renewing leases: %w", err)
	}
	confirmed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Leased, err error) {
		return c, row.Scan(&c.Partition, &c.Fence, &c.Position)
	})
	if err != nil {
		return nil, fmt.Errorf("renewing leases: %w", err)
	}
	return confirmed, nil
}

func columns(leases []Lease) (partitions []int16, fences []int64) {
	for _, l := range leases {
		partitions, fences = append(partitions, l.Partition), append(fences, l.Fence)
	}
	return partitions, fences
}

const acquireSQL = `WITH loose AS MATERIALIZED (
 SELECT partition FROM relay_cursors WHERE owner IS NULL OR lease_until < now()
 ORDER BY partition LIMIT $2 FOR UPDATE SKIP LOCKED
) UPDATE relay_cursors c SET owner = $1, fence = c.fence + 1, lease_until = now() + $3::interval FROM loose JOIN log_heads h
USING (partition)
 WHERE c.partition = loose.partition RETURNING c.partition, c.fence, c.position, h.epoch`

// Acquire leases free partitions to an instance, at most limit.
func Acquire(ctx context.Context, db Database, instance string, limit int, ttl time.Duration) ([]Leased, error) {
	rows, err := db.Query(ctx, acquireSQL, instance, limit, ttl)
	if err != nil {
		return nil, fmt.Errorf("acquiring leases: %w", err)
	}
	acquired, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Leased, err error) {
		return c, row.Scan(&c.Partition, &c.Fence, &c.Position, &c.Epoch)
	})
	if err != nil {
		return nil, fmt.Errorf("acquiring leases: %w", err)
	}
	return acquired, nil
}

const releaseSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, c.fence FROM relay_cursors c JOIN unnest($2::smallint[], $3::bigint[]) m (partition, fence) USING (partition, fence)
 WHERE c.owner = $1 ORDER BY c.partition FOR UPDATE OF c
) UPDATE relay_cursors c SET owner = NULL, lease_until = '-infinity' FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence AND c.owner = $1`

// Release ends an instance's leases, so that others can acquire them at once.
func Release(ctx context.Context, db Database, instance string, held []Lease) error {
	partitions, fences := columns(held)
	if _, err := db.Exec(ctx, releaseSQL, instance, partitions, fences); err != nil {
		return fmt.Errorf("releasing leases: %w", err)
	}
	return nil
}

// Epoch is an epoch of the log that begins in a partition.
type Epoch struct {
	Partition int16
	Number    int32
	From      int64 // its first position
}

// An epoch's number is a time. So no lease of an earlier life, whose number the restored table may not
// know, equals one of the new life.
const revokeSQL = `UPDATE relay_cursors c SET owner = NULL, lease_until = '-infinity', fence = greatest(c.fence + 1, s.epoch::bigint << 24),
 position = least(c.position, s.from_position - 1), furthest = least(c.furthest, s.from_position - 1)
 FROM unnest($1::smallint[], $2::int[], $3::bigint[]) s (partition, epoch, from_position) WHERE c.partition = s.partition`

// Revoke ends the leases of partitions in which an epoch begins, and takes the cursors back to where the
// log ended before it. The caller holds the cursors' locks.
func Revoke(ctx context.Context, tx pgx.Tx, began []Epoch) error {
	var partitions []int16
	var numbers []int32
	var from []int64
	for _, e := range began {
		partitions, numbers, from = append(partitions, e.Partition), append(numbers, e.Number), append(from, e.From)
	}
	if _, err := tx.Exec(ctx, revokeSQL, partitions, numbers, from); err != nil {
		return fmt.Errorf("revoking leases: %w", err)
	}
	return nil
}
