package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
)

// ErrCommitUnknown means that a commit was not answered. The records must be delivered
// again: if the commit succeeded, they are found to be duplicates.
var ErrCommitUnknown = errors.New("the commit was not answered")

// errMoved means that a checkpoint differs from the value read under its lock.
var errMoved = errors.New("a checkpoint moved under its lock")

// LockTimeout bounds the wait for checkpoints and heads: a hanging holder must not
// exhaust the consumer's connections.
const LockTimeout = `SET LOCAL lock_timeout = '2s'`

// lockCheckpoints locks the checkpoints of all joined generations, which have the same
// position in a partition and move together. It reads the heads without a lock: a head
// only has to include the commit of the record compared with it, which came before.
const lockCheckpoints = `
SELECT c.partition, c.generation, c.serving, c.position, h.epoch, is_server_life(h.timeline, h.started_at),
       CASE WHEN $3::int = 0 THEN h.position ELSE h.topic_positions[$3::int] END
FROM consumer_checkpoints c JOIN log_heads h USING (partition)
WHERE c.consumer = $1 AND c.joined AND c.partition = ANY ($2::smallint[])
ORDER BY c.partition, c.generation
FOR UPDATE OF c`

// lockFreeCheckpoints leaves out the checkpoints that another session has locked: the caller holds heads, which come
// after checkpoints in the order of locks, so it must not wait.
const lockFreeCheckpoints = `
SELECT partition, position FROM consumer_checkpoints
WHERE consumer = $1 AND joined AND partition = ANY ($2::smallint[])
ORDER BY partition
FOR UPDATE SKIP LOCKED`

// moveCheckpoints also moves, and counts, a generation that joined after the lock was
// taken. That generation was not fed, so the transaction fails and is retried with it.
const moveCheckpoints = `
UPDATE consumer_checkpoints c SET position = n.position, epoch = n.epoch, updated_at = now()
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::int[]) AS n (partition, was, position, epoch)
WHERE c.consumer = $1 AND c.joined AND c.partition = n.partition AND c.position = n.was`

// readWithheldBeyond reads the records withheld beyond the checkpoints. A consumer that
// received the whole record, published once without our knowledge, must not fold it. The
// result holds under the checkpoints' locks: the relay takes them before it withholds.
const readWithheldBeyond = `
SELECT w.partition, w.position
FROM consumer_checkpoints c JOIN withheld_records w ON w.partition = c.partition AND w.position > c.position
WHERE c.consumer = $1 AND c.joined AND c.partition = ANY ($2::smallint[]) AND w.topic = $3::int AND NOT w.late`

const readEpochs = `SELECT partition, epoch, from_position FROM log_epochs ORDER BY partition, epoch`

// checkpoint is a consumer's state in a partition, read under its lock.
type checkpoint struct {
	position int64 // the checkpoint
	epoch    int32 // of the head
	living   bool  // the epoch began in the server's present life
	head     int64 // last position of the source
	fed      []fed // the generations at this position
	withheld []int64
}

// lock locks the checkpoints of the partitions, in ascending order.
func (r *Runner) lock(ctx context.Context, tx pgx.Tx, partitions []int16) (map[int16]checkpoint, error) {
	var b pgx.Batch
	b.Queue(LockTimeout)
	b.Queue(lockCheckpoints, r.Consumer.Name, partitions, int(r.Consumer.Topic))
	if r.Consumer.Topic != 0 {
		b.Queue(readWithheldBeyond, r.Consumer.Name, partitions, int(r.Consumer.Topic))
	}
	results := tx.SendBatch(ctx, &b)
	defer results.Close()
	if _, err := results.Exec(); err != nil {
		return nil, fmt.Errorf("bound the wait for checkpoints: %w", err)
	}
	rows, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("lock checkpoints: %w", err)
	}
	checkpoints := make(map[int16]checkpoint, len(partitions))
	var p int16
	var s checkpoint
	var f fed
	_, err = pgx.ForEachRow(rows, []any{&p, &f.Number, &f.serving, &s.position, &s.epoch, &s.living, &s.head}, func() error {
		if other, ok := checkpoints[p]; ok && other.position != s.position {
			return fmt.Errorf("generations %d and %d of %s differ in partition %d, at %d and %d", other.fed[0].Number, f.Number,
				r.Consumer.Name, p, other.position, s.position)
		}
		s.fed = append(checkpoints[p].fed, f)
		checkpoints[p] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock checkpoints: %w", err)
	}
	if len(checkpoints) != len(partitions) {
		return nil, fmt.Errorf("lock checkpoints: %s has %d of %d partitions", r.Consumer.Name, len(checkpoints), len(partitions))
	}
	if r.Consumer.Topic == 0 {
		return checkpoints, nil
	}
	return checkpoints, withheldBeyond(results, checkpoints)
}

func withheldBeyond(results pgx.BatchResults, checkpoints map[int16]checkpoint) error {
	rows, err := results.Query()
	if err != nil {
		return fmt.Errorf("read withheld records: %w", err)
	}
	var p int16
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&p, &position}, func() error {
		s := checkpoints[p]
		s.withheld = append(s.withheld, position)
		checkpoints[p] = s
		return nil
	})
	if err != nil {
		return fmt.Errorf("read withheld records: %w", err)
	}
	return nil
}

// move advances the checkpoints of all runs by compare-and-set, in one statement.
func (r *Runner) move(ctx context.Context, tx pgx.Tx, runs []*partitionRun) error {
	var to moveColumns
	rows := 0
	for _, l := range runs {
		if l.moves() {
			to.add(l.partition, l.checkpoint.position, l.last, r.epochs.owner(l.partition, l.last))
			rows += len(l.checkpoint.fed)
		}
	}
	if len(to.partitions) == 0 { // not rows == 0: all generations known may be detached, and others may have joined
		return nil
	}
	tag, err := tx.Exec(ctx, moveCheckpoints, to.args(r.Consumer.Name)...)
	if err != nil {
		return fmt.Errorf("move checkpoints: %w", err)
	}
	if tag.RowsAffected() != int64(rows) {
		return fmt.Errorf("move checkpoints: %w", errMoved)
	}
	return nil
}

// moveColumns collects the columns of moveCheckpoints.
type moveColumns struct {
	partitions []int16
	was, now   []int64
	epochs     []int32
}

func (m *moveColumns) add(partition int16, was, now int64, epoch int32) {
	m.partitions, m.epochs = append(m.partitions, partition), append(m.epochs, epoch)
	m.was, m.now = append(m.was, was), append(m.now, now)
}

func (m *moveColumns) args(consumer string) []any {
	return []any{consumer, m.partitions, m.was, m.now, m.epochs}
}

// commitTimeout bounds the wait for a commit's answer. It replaces the caller's context:
// if that ended meanwhile, a successful commit would look failed.
const commitTimeout = 10 * time.Second

func commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) || errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // it fails after a commit or on a closed connection: both are fine
}

// epochs caches which history owns which positions. It is read again as soon as a head
// has an unknown epoch, so that records of a history ended by a restore are recognized
// from the first transaction on.
type epochs struct {
	mu    sync.Mutex
	spans [events.Partitions][]epochSpan // ascending
}

type epochSpan struct {
	epoch int32
	from  int64
}

// owner returns the epoch of a position: the last one that began at or before it, or 0.
func (e *epochs) owner(partition int16, position int64) int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	spans := e.spans[partition]
	for i := len(spans) - 1; i >= 0; i-- {
		if spans[i].from <= position {
			return spans[i].epoch
		}
	}
	return 0
}

func (e *epochs) knows(partition int16, epoch int32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	spans := e.spans[partition]
	return len(spans) > 0 && spans[len(spans)-1].epoch == epoch || len(spans) == 0 && epoch == 0
}

// refresh reads the epochs again if a head has an unknown epoch.
func (e *epochs) refresh(ctx context.Context, tx pgx.Tx, checkpoints map[int16]checkpoint) error {
	stale := false
	for p, s := range checkpoints {
		stale = stale || !e.knows(p, s.epoch)
	}
	if !stale {
		return nil
	}
	rows, err := tx.Query(ctx, readEpochs)
	if err != nil {
		return fmt.Errorf("read epochs: %w", err)
	}
	var spans [events.Partitions][]epochSpan
	var p int16
	var s epochSpan
	_, err = pgx.ForEachRow(rows, []any{&p, &s.epoch, &s.from}, func() error {
		spans[p] = append(spans[p], s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read epochs: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spans = spans
	return nil
}

// Statements returns the SQL that the consumer runs for each batch, in sessions that cache
// plans: a plan must not depend on the tables' contents when it is made.
func Statements() map[string]string {
	return map[string]string{"lock checkpoints": lockCheckpoints, "lock free checkpoints": lockFreeCheckpoints,
		"move checkpoints": moveCheckpoints, "find what is behind": findBehind, "find what all are behind": findAllBehind}
}
