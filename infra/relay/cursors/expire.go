package cursors

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Expiry is the age at which the publications of a topic are deleted.
type Expiry struct {
	Topic events.Topic
	Age   time.Duration
}

// Expired is a topic of a partition whose publications are deleted if they are older than Age.
type Expired struct {
	Partition int16
	Expiry
}

// expiredSQL reads the first publication of each topic and partition: one row of the primary key. A
// publication that was overwritten after a rewind is young; those behind it are deleted after it.
const expiredSQL = `SELECT c.partition, e.topic, e.seconds
 FROM unnest($1::smallint[], $2::float8[]) e (topic, seconds) CROSS JOIN relay_cursors c
 CROSS JOIN LATERAL (SELECT p.published_at FROM outbox_publications p WHERE p.partition = c.partition AND p.topic = e.topic
  ORDER BY p.from_position LIMIT 1) oldest
 WHERE oldest.published_at < now() - make_interval(secs => e.seconds) ORDER BY 1, 2`

// FindExpired returns the topics and partitions whose first publication has expired. Topics without an
// Expiry keep all of theirs.
func FindExpired(ctx context.Context, db Database, topics []Expiry) ([]Expired, error) {
	var numbers []int16
	var ages []float64
	for _, e := range topics {
		numbers, ages = append(numbers, int16(e.Topic)), append(ages, e.Age.Seconds())
	}
	rows, err := db.Query(ctx, expiredSQL, numbers, ages)
	if err != nil {
		return nil, fmt.Errorf("looking for expired publications: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Expired, err error) {
		var seconds float64
		err = row.Scan(&e.Partition, &e.Topic, &seconds)
		e.Age = time.Duration(seconds * float64(time.Second))
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for expired publications: %w", err)
	}
	return found, nil
}

// lockExpirySQL makes one instance delete at a time. The lock ends with the transaction.
const lockExpirySQL = `SELECT pg_try_advisory_xact_lock(hashtextextended('meterplex.outbox_publications', 0))`

// deleteExpiredSQL deletes the expired ones among the first publications. It waits for no lock, and
// compares the age of the locked rows: a relay that was moved back overwrites publications. The last
// position of the first publications bounds each search of the primary key, without statistics of the table.
const deleteExpiredSQL = `WITH bound AS MATERIALIZED (SELECT max(f.from_position) AS last FROM (
 SELECT p.from_position FROM outbox_publications p WHERE p.partition = $1 AND p.topic = $2 ORDER BY p.from_position LIMIT $4) f
) DELETE FROM outbox_publications WHERE partition = $1 AND topic = $2 AND from_position <= (SELECT last FROM bound)
AND from_position = ANY (ARRAY(
 SELECT p.from_position FROM outbox_publications p WHERE p.partition = $1 AND p.topic = $2 AND p.from_position <= (SELECT last FROM bound)
 AND p.published_at < now() - make_interval(secs => $3) ORDER BY p.from_position FOR UPDATE SKIP LOCKED))`

// DeleteExpired deletes the expired ones among the first publications of a topic and partition, at most
// limit. It reports false without a deletion if another instance deletes at the moment.
func DeleteExpired(ctx context.Context, tx pgx.Tx, e Expired, limit int) (deleted int64, mine bool, err error) {
	if err := tx.QueryRow(ctx, lockExpirySQL).Scan(&mine); err != nil {
		return 0, false, fmt.Errorf("locking the deletion of publications: %w", err)
	}
	if !mine {
		return 0, false, nil
	}
	tag, err := tx.Exec(ctx, deleteExpiredSQL, e.Partition, int16(e.Topic), e.Age.Seconds(), limit)
	if err != nil {
		return 0, true, fmt.Errorf("deleting expired publications: %w", err)
	}
	return tag.RowsAffected(), true, nil
}
