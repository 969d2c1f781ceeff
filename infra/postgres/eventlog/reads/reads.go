// Package reads reads the log: stretches of partitions, by topic or subject.
package reads

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/origins"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// Reader reads the log.
type Reader struct {
	DB       postgres.Queryer
	HotReads postgres.Queryer // of ReadStretches: its sessions keep their plans
	Origins  *origins.Origins
	LogID    uuid.UUID
}

// readColumns are the values that server.RowReader.Event takes, in its order.
const readColumns = `SELECT l.position, l.previous_position, l.recorded_at, l.occurred_at, l.event_id, l.tenant_id, l.correlation_id,
 l.causation_id, l.epoch, l.origin, l.subject, l.dedupe_key, l.body, coalesce(l.replay, ''), w.position IS NOT NULL, coalesce(w.late, false)
 FROM event_log_rows l LEFT JOIN withheld_records w ON w.partition = l.partition AND w.position = l.position`

// The topic is compared during the scan of the key: a stretch of a partition is read
// once, for any mix of topics.
const readSQL = readColumns + `
 WHERE l.partition = $1 AND l.position > $2 AND l.position <= $3 AND ($4 = 0 OR l.topic = $4) ORDER BY l.position LIMIT $5`

const readAtSQL = readColumns + ` WHERE l.partition = $1 AND l.position = ANY ($2::bigint[])`

// Read returns the events of a partition after one position up to and including
// another, in order, at most limit.
func (l *Reader) Read(ctx context.Context, partition int16, after, upTo int64, limit int) ([]events.Envelope, error) {
	return l.ReadIn(ctx, l.DB, partition, after, upTo, 0, limit)
}

// ReadTx is Read inside a transaction, for one topic, or for all if topic is 0.
func (l *Reader) ReadTx(ctx context.Context, tx pgx.Tx, partition int16, after, upTo int64, topic events.Topic,
	limit int) ([]events.Envelope, error) {
	return l.ReadIn(ctx, tx, partition, after, upTo, topic, limit)
}

// ReadAtTx returns the events at some positions of a partition, in any order.
func (l *Reader) ReadAtTx(ctx context.Context, tx pgx.Tx, partition int16, numbers []int64) ([]events.Envelope, error) {
	rows, err := tx.Query(ctx, readAtSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, partition, numbers)
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	return l.envelopes(ctx, tx, rows, int64(len(numbers)), func(*server.RowReader) int16 { return partition })
}

// ReadTopic returns the events of one topic in a stretch of a partition, in order.
func (l *Reader) ReadTopic(ctx context.Context, s events.Stretch, topic events.Topic) ([]events.Envelope, error) {
	return l.ReadIn(ctx, l.DB, s.Partition, s.After, s.UpTo, topic, int(s.UpTo-s.After))
}

// One statement for many partitions: planned once, answered in one round trip.
// LATERAL forces one range scan of the key for each.
const (
	stretchesBegin = `SELECT s.partition, l.* FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS s (partition, after, up_to)
 CROSS JOIN LATERAL (
  ` + readColumns + `
  WHERE l.partition = s.partition AND l.position > s.after AND l.position <= s.up_to`
	stretchesEnd = ` ORDER BY l.position LIMIT $4) l`

	readStretchesSQL = stretchesBegin + stretchesEnd
	// The last event of a stretch is always returned: if it is missing, the log has lost its end.
	readStretchesOfSQL = stretchesBegin + ` AND (l.subject = ANY ($5::smallint[]) OR l.position = s.up_to)` + stretchesEnd

	readTopicStretchesSQL = stretchesBegin + ` AND l.topic = $5` + stretchesEnd
)

// walkBackSQL finds the first events of a topic after a position, from its last event back: each names the one before it.
const walkBackSQL = `WITH RECURSIVE back AS (
  SELECT l.position, l.previous_position FROM event_log_rows l WHERE l.partition = $1 AND l.position = $3
  UNION ALL
  SELECT l.position, l.previous_position FROM back b JOIN event_log_rows l ON l.partition = $1 AND l.position = b.previous_position
  WHERE b.previous_position > $2)
SELECT position FROM back ORDER BY position LIMIT $4`

// maxScanned bounds the positions of a stretch that are scanned for events of a topic. If they hold no such event, the topic is sparse.
const maxScanned = 5000

// ReadStretches returns the events of several stretches of the log, those of each
// stretch in order, at most limit of each.
func (l *Reader) ReadStretches(ctx context.Context, stretches []events.Stretch, limit int) ([]events.Envelope, error) {
	return l.readStretches(ctx, l.HotReads, readStretchesSQL, stretches, limit)
}

// ReadStretchesTx is ReadStretches inside a transaction. It returns the events of some
// subjects and the last event of each stretch, or all events if no subject is named.
func (l *Reader) ReadStretchesTx(ctx context.Context, tx pgx.Tx, stretches []events.Stretch, of []events.Subject,
	limit int) ([]events.Envelope, error) {
	if len(of) == 0 {
		return l.readStretches(ctx, tx, readStretchesSQL, stretches, limit)
	}
	subjects := make([]int16, len(of))
	for i, s := range of {
		subjects[i] = int16(s)
	}
	return l.readStretches(ctx, tx, readStretchesOfSQL, stretches, limit, subjects)
}

// ReadTopicTx returns events of a topic in several stretches inside a transaction, the first ones of each stretch, in order, at most limit
// of each. A stretch ends at the last event of the topic; if no event of it is returned, the last one is missing.
func (l *Reader) ReadTopicTx(ctx context.Context, tx pgx.Tx, stretches []events.Stretch, topic events.Topic, limit int) ([]events.Envelope,
	error) {
	scanned := slices.Clone(stretches)
	for i := range scanned {
		scanned[i].UpTo = min(scanned[i].UpTo, scanned[i].After+maxScanned)
	}
	list, err := l.readStretches(ctx, tx, readTopicStretchesSQL, scanned, limit, int16(topic))
	if err != nil {
		return nil, err
	}
	for i, s := range stretches {
		if s.UpTo == scanned[i].UpTo || slices.ContainsFunc(list, func(e events.Envelope) bool {
			return e.Position.Partition == s.Partition
		}) {
			continue
		}
		sparse, err := l.walkBack(ctx, tx, s, limit)
		if err != nil {
			return nil, err
		}
		list = append(list, sparse...)
	}
	return list, nil
}

// walkBack returns the first events of a sparse topic in a stretch that ends at one of them.
func (l *Reader) walkBack(ctx context.Context, tx pgx.Tx, s events.Stretch, limit int) ([]events.Envelope, error) {
	rows, err := tx.Query(ctx, walkBackSQL, s.Partition, s.After, s.UpTo, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	list, err := l.ReadAtTx(ctx, tx, s.Partition, numbers)
	slices.SortFunc(list, func(a, b events.Envelope) int { return cmp.Compare(a.Position.Number, b.Position.Number) })
	return list, err
}

func (l *Reader) readStretches(ctx context.Context, q postgres.Queryer, sql string, stretches []events.Stretch, limit int,
	more ...any) ([]events.Envelope, error) {
	partitions, after, upTo := make([]int16, len(stretches)), make([]int64, len(stretches)), make([]int64, len(stretches))
	var most int64
	for i, s := range stretches {
		partitions[i], after[i], upTo[i] = s.Partition, s.After, s.UpTo
		most += min(s.UpTo-s.After, int64(limit))
	}
	rows, err := q.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}, partitions, after, upTo, limit}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	return l.envelopes(ctx, q, rows, most, func(r *server.RowReader) int16 { return r.Int16() })
}

// ReadIn is ReadTx on a connection.
func (l *Reader) ReadIn(ctx context.Context, q postgres.Queryer, partition int16, after, upTo int64, topic events.Topic,
	limit int) ([]events.Envelope, error) {
	rows, err := q.Query(ctx, readSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, partition, after, upTo, int16(topic), limit)
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	return l.envelopes(ctx, q, rows, min(upTo-after, int64(limit)), func(*server.RowReader) int16 { return partition })
}

// maxPrepared bounds the events for which memory is prepared: a filter may pass few of the positions.
const maxPrepared = 512

// envelopes reads rows, at most so many; partitionOf knows their partition, or reads it from the row.
func (l *Reader) envelopes(ctx context.Context, q postgres.Queryer, rows pgx.Rows, most int64,
	partitionOf func(*server.RowReader) int16) ([]events.Envelope, error) {
	defer rows.Close()
	most = max(0, min(most, maxPrepared))
	list, origin := make([]events.Envelope, 0, most), make([]int32, 0, most)
	for rows.Next() {
		r := server.RowReader{Values: rows.RawValues()}
		e, id := r.Event(partitionOf(&r))
		if r.Err != nil {
			return nil, r.Err
		}
		l.Origins.InEpoch(e.Position.Partition, e.Epoch)
		list, origin = append(list, e), append(origin, id)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	known, err := l.Origins.Resolve(ctx, q, origin)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].LogID = l.LogID
		of := known[origin[i]]
		list[i].Actor, list[i].Producer, list[i].Vocabulary, list[i].Residency = of.Actor, of.Producer, of.Vocabulary, of.Residency
	}
	return list, nil
}
