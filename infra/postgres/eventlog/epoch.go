package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/relay/cursors"
)

// errNewLife means that the server was restarted, promoted or set back since the epoch of
// a locked head began. Appends and answers have to wait until the epoch is raised.
var errNewLife = errors.New("the database server is in another life than the log's epoch")

// Reasons for a raised epoch, as log_epochs keeps them.
const (
	ReasonFirst     = "first"     // the head had no life yet
	ReasonRestarted = "restarted" // same data, same timeline: a restart, or a volume that was set back
	ReasonPromoted  = "promoted"  // another timeline: a promoted standby, or a recovery to a point in time
	ReasonRestored  = "restored"  // another system identifier: a dump was restored on another server
	ReasonSetBack   = "set_back"  // a topic is ahead of the log
)

// EpochReasons lists all reasons.
func EpochReasons() []string {
	return []string{ReasonFirst, ReasonRestarted, ReasonPromoted, ReasonRestored, ReasonSetBack}
}

// Raised is an epoch that this instance began.
type Raised struct {
	Partition int16
	Epoch     int32
	From      int64 // the first position that it owns
	Reason    string
}

const (
	// Cursors come before heads in the order of locks. A caller needs its own
	// partitions; the others are raised beside them if no session holds them.
	lockRaisedCursorsSQL = `SELECT FROM relay_cursors WHERE partition = ANY ($1) ORDER BY partition FOR UPDATE`
	lockRaisedHeadsSQL   = `SELECT FROM log_heads WHERE partition = ANY ($1) ORDER BY partition FOR UPDATE`
	lockOtherHeadsSQL    = `SELECT h.partition FROM relay_cursors c JOIN log_heads h USING (partition)
 WHERE h.partition <> ALL ($1) ORDER BY partition FOR UPDATE SKIP LOCKED`

	// The number of an epoch is the time in whole seconds since 2020: a backup that is
	// restored for the second time does not know the number of the first, whose records the
	// topics still have.
	raiseEpochSQL = `WITH stale AS (
 SELECT h.partition, h.position + 1 AS from_position, s.*,
  greatest(h.epoch + 1, t.epoch + 1, floor(extract(epoch FROM clock_timestamp()))::int - 1577836800) AS epoch,
  CASE WHEN t.epoch IS NOT NULL THEN 'set_back' WHEN h.started_at IS NULL THEN 'first'
   WHEN h.system_identifier <> s.system_identifier THEN 'restored' WHEN h.timeline <> s.timeline THEN 'promoted'
   ELSE 'restarted' END AS reason
 FROM log_heads h CROSS JOIN server_life() s
 LEFT JOIN unnest($2::smallint[], $3::int[]) t (partition, epoch) ON t.partition = h.partition
 WHERE h.partition = ANY ($1) AND (t.epoch >= h.epoch
  OR (h.system_identifier, h.timeline, h.started_at) IS DISTINCT FROM (s.system_identifier, s.timeline, s.started_at))),
raised AS (INSERT INTO log_epochs (partition, epoch, from_position, system_identifier, timeline, started_at, reason)
 SELECT partition, epoch, from_position, system_identifier, timeline, started_at, reason FROM stale)
UPDATE log_heads h SET epoch = s.epoch, system_identifier = s.system_identifier, timeline = s.timeline, started_at = s.started_at
 FROM stale s WHERE h.partition = s.partition RETURNING h.partition, h.epoch, s.from_position, s.reason`

	// A life that begins later, and does not know this one, begins in a later second.
	endSecondSQL = `SELECT pg_sleep(least(2, greatest(0, $1::int + 1577836801 - extract(epoch FROM clock_timestamp())::float8)))`

	findStaleSQL = `SELECT h.partition FROM log_heads h CROSS JOIN server_life() s
 WHERE (h.system_identifier, h.timeline, h.started_at) IS DISTINCT FROM (s.system_identifier, s.timeline, s.started_at)
 ORDER BY h.partition`
)

// raise begins a new epoch at head + 1 in each of the partitions, and in all others that are
// free, if the server is in another life than the head. It is a transaction of its own:
// with a synchronous standby its COMMIT waits until the standby has all that the new life
// began with. After an error the epoch may be unchanged or raised; the next call finds out.
func (l *Log) raise(ctx context.Context, partitions []int16, ahead map[int16]int32) error {
	var raised []Raised
	var aheadOf []int16
	var epochs []int32
	for p, epoch := range ahead {
		aheadOf, epochs = append(aheadOf, p), append(epochs, epoch)
	}
	err := postgres.InTx(ctx, l.aside, func(tx pgx.Tx) error {
		for _, lock := range []string{lockRaisedCursorsSQL, lockRaisedHeadsSQL} {
			if _, err := tx.Exec(ctx, lock, partitions); err != nil {
				return fmt.Errorf("locking heads to raise their epoch: %w", err)
			}
		}
		rows, err := tx.Query(ctx, lockOtherHeadsSQL, partitions)
		if err != nil {
			return fmt.Errorf("locking free heads to raise their epoch: %w", err)
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[int16])
		if err != nil {
			return fmt.Errorf("locking free heads to raise their epoch: %w", err)
		}
		if rows, err = tx.Query(ctx, raiseEpochSQL, append(free, partitions...), aheadOf, epochs); err != nil {
			return fmt.Errorf("raising the epoch: %w", err)
		}
		raised, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Raised, err error) {
			return r, row.Scan(&r.Partition, &r.Epoch, &r.From, &r.Reason)
		})
		if err == nil && len(raised) > 0 {
			err = revokeLeases(ctx, tx, raised)
		}
		if err == nil {
			err = endSecond(ctx, tx, raised)
		}
		if err != nil {
			return fmt.Errorf("raising the epoch: %w", err)
		}
		return nil
	})
	if err == nil && len(raised) > 0 {
		l.reportRaised(raised)
	}
	return err
}

// endSecond waits until the second is over that the epochs are numbered after, before they
// begin. So two lives that began after one backup, and do not know each other, have different
// numbers. Every later life knows the first epoch of a log.
func endSecond(ctx context.Context, tx pgx.Tx, raised []Raised) error {
	var last int32
	for _, r := range raised {
		if r.Reason != ReasonFirst {
			last = max(last, r.Epoch)
		}
	}
	if last == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, endSecondSQL, last)
	return err
}

// revokeLeases ends the leases of relays: a relay may hold events that the log has lost.
func revokeLeases(ctx context.Context, tx pgx.Tx, raised []Raised) error {
	var began []cursors.Epoch
	for _, r := range raised {
		began = append(began, cursors.Epoch{Partition: r.Partition, Number: r.Epoch, From: r.From})
	}
	return cursors.Revoke(ctx, tx, began)
}

// reportRaised logs why epochs were raised, a line for each reason. A restart
// is routine; the others are incidents.
func (l *Log) reportRaised(raised []Raised) {
	byReason := map[string][]int16{}
	for _, r := range raised {
		byReason[r.Reason] = append(byReason[r.Reason], r.Partition)
	}
	for _, reason := range EpochReasons() {
		partitions := byReason[reason]
		if len(partitions) == 0 {
			continue
		}
		level, message := slog.LevelInfo, "database server restarted: a new epoch of the log begins"
		switch reason {
		case ReasonPromoted, ReasonRestored, ReasonSetBack:
			level, message = slog.LevelWarn,
				"promoted or restored database server found: a new epoch of the log begins; docs/runbooks/failover.md"
		case ReasonFirst:
			level, message = slog.LevelDebug, "first epoch of the log under this release begins"
		}
		l.cfg.Logger.Log(context.Background(), level, message, "reason", reason, "partitions", len(partitions), "epoch", raised[0].Epoch)
	}
	l.cfg.OnRaised(raised)
}

const (
	// lifeEvery is how often an instance compares the heads with the server: the epoch is
	// raised within it also without appends.
	lifeEvery = time.Second
	// lifeTime bounds one comparison and the raise that may follow.
	lifeTime = 5 * time.Second
)

// watchLife raises the epoch soon after a failover also without appends, and
// after an append found the new life inside a caller's transaction.
func (l *Log) watchLife(ctx context.Context) {
	_ = loop.Loop{Every: lifeEvery, Ticks: l.cfg.Ticks, Wake: l.newLife, Logger: l.cfg.Logger,
		Failed: "the log's epoch is not known to be the database server's life; retrying"}.Run(ctx, l.checkLife) // never fails
}

// checkLife raises the epoch of each partition that is of another life than the server.
func (l *Log) checkLife(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lifeTime)
	defer cancel()
	rows, err := l.aside.Query(ctx, findStaleSQL)
	if err != nil {
		return fmt.Errorf("comparing the log's epoch with the database server: %w", err)
	}
	stale, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil {
		return fmt.Errorf("comparing the log's epoch with the database server: %w", err)
	}
	if len(stale) == 0 {
		return nil
	}
	return l.raise(ctx, stale, nil)
}

// inNewLife reports a head of another life, found inside a transaction that cannot raise the
// epoch itself, and asks watchLife to raise it.
func (l *Log) inNewLife(hs heads) error {
	if len(hs.ofAnotherLife()) == 0 {
		return nil
	}
	l.newLife.Notify()
	return errNewLife
}

// InServerLife makes an attempt at a transaction, and a second one after raising the epoch if the
// first found the server in another life.
func (l *Log) InServerLife(ctx context.Context, attempt func() error) error {
	err := attempt()
	if !errors.Is(err, errNewLife) {
		return err
	}
	if err := l.checkLife(ctx); err != nil {
		return err
	}
	return attempt()
}

// startTime is how long an instance tries at its start to raise epochs that other sessions
// hold: longer than a server lets a session pause in a transaction.
const startTime = time.Minute

// startEpoch makes sure that every epoch is of the server's life before the instance
// begins. A session that is frozen, or whose machine died, may hold heads for seconds: an
// instance that replaces it must not end for that.
func (l *Log) startEpoch(ctx context.Context) error {
	for end := time.Now().Add(startTime); ; {
		err := l.checkLife(ctx)
		if postgres.SQLState(err) != postgres.LockNotAvailable || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		l.cfg.Logger.Warn("another session holds heads of the log; waiting for it to end", "error", err)
	}
}

// RaiseBeyond begins a new epoch in each partition of which a topic holds records of this
// log beyond the head: the database was set back. last are the last records of the topics.
func (l *Log) RaiseBeyond(ctx context.Context, last []events.RecordPosition) error {
	rows, err := l.db.Query(ctx, `SELECT partition, position FROM log_heads`)
	if err != nil {
		return fmt.Errorf("comparing topics with the log: %w", err)
	}
	head := map[int16]int64{}
	var partition int16
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &position}, func() error { head[partition] = position; return nil }); err != nil {
		return fmt.Errorf("comparing topics with the log: %w", err)
	}
	ahead := map[int16]int32{}
	var partitions []int16
	for _, t := range last {
		if t.Log != l.id || t.Position.Number <= head[t.Position.Partition] {
			continue
		}
		if !slices.Contains(partitions, t.Position.Partition) {
			partitions = append(partitions, t.Position.Partition)
		}
		ahead[t.Position.Partition] = max(ahead[t.Position.Partition], t.Epoch)
	}
	if len(partitions) == 0 {
		return nil
	}
	slices.Sort(partitions)
	return l.raise(ctx, partitions, ahead)
}

// ID is the log's name in the headers of its records.
func (l *Log) ID() uuid.UUID { return l.id }

func readLogID(ctx context.Context, q postgres.Queryer) (id uuid.UUID, err error) {
	rows, err := q.Query(ctx, `SELECT log_id FROM log_identity`)
	if err != nil {
		return id, fmt.Errorf("reading the log's id: %w", err)
	}
	if id, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return id, fmt.Errorf("reading the log's id: %w", err)
	}
	return id, nil
}
