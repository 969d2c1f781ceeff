package postgres

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
)

// Bounds of what waits for one writer. Those of rows and bytes bound memory, the
// one of time what callers wait; whichever is reached first refuses.
const (
	maxQueuedRows  = 32_000   // 16 groups
	maxQueuedBytes = 16 << 20 // of what is to be stored
	// standardWait is far below what clients wait for an answer, and far above what a
	// full group takes.
	standardWait = 500 * time.Millisecond
	// firstPerRow is what a row is taken to need before any was measured.
	firstPerRow = 50 * time.Microsecond
	// measuredRows is how many rows a group has to have to tell that a row takes more:
	// a small one takes what its commit takes.
	measuredRows = 256
)

// queueLoad is what one writer has before it, and how fast it gets on. Rows and bytes
// change under the lock alone, with the shares; anybody reads them without it.
type queueLoad struct {
	longest time.Duration
	started time.Time // what since counts from
	rows    atomic.Int64
	bytes   atomic.Int64
	perRow  atomic.Int64 // nanoseconds, as measured by end
	since   atomic.Int64 // when the group under way began; 0: there is none

	mu     sync.Mutex
	shares map[uuid.UUID]share // of the tenants that wait
	seen   [2]sight            // the tenants that came last, two of them
}

// share is what one tenant has in a queue. It may have half of each bound, so that
// one that sends more than can be written leaves room for the others of its writer.
// Who is alone may have all of it.
type share struct{ rows, bytes int64 }

// othersFor is how long a tenant that came counts as there: who was refused, or sends
// a little now and then, must not find all taken each time.
const othersFor = 5 * time.Second

// sight is when a tenant came to a queue, admitted or not.
type sight struct {
	tenant uuid.UUID
	at     time.Duration // since the queue began; 0: never
}

// meet notes that a submission comes, and tells what its tenant has, and whether
// others wait there or came lately. Its caller holds the lock.
func (q *queueLoad) meet(s *submission) (had share, others bool) {
	who, now := s.tenant, max(1, time.Since(q.started))
	if s.owed {
		who = uuid.Max // room is left for it as for another tenant
	}
	if q.seen[0].tenant != who {
		q.seen[1] = q.seen[0]
	}
	q.seen[0] = sight{who, now}
	had, waits := q.shares[s.tenant]
	last := q.seen[1]
	return had, len(q.shares) > 1 || len(q.shares) == 1 && !waits || last.at > 0 && now-last.at < othersFor
}

// count counts so much of a tenant in, or out. Its caller holds the lock.
func (q *queueLoad) count(tenant uuid.UUID, rows, bytes int64) {
	q.rows.Add(rows)
	q.bytes.Add(bytes)
	was := q.shares[tenant]
	now := share{was.rows + rows, was.bytes + bytes}
	if now == (share{}) {
		delete(q.shares, tenant)
		return
	}
	q.shares[tenant] = now
}

func newQueueLoad(longest time.Duration) *queueLoad {
	if longest == 0 {
		longest = standardWait
	}
	q := &queueLoad{longest: longest, started: time.Now(), shares: make(map[uuid.UUID]share)}
	q.perRow.Store(int64(firstPerRow))
	return q
}

// wait estimates how long so many rows take to commit, and how long the group under
// way has taken already.
func (q *queueLoad) wait(ahead int64) (expected, elapsed time.Duration) {
	if since := q.since.Load(); since > 0 {
		elapsed = time.Since(q.started) - time.Duration(since)
	}
	return time.Duration(ahead * q.perRow.Load()), elapsed
}

// check refuses where what is ahead takes too long. A group that takes twice as
// long by itself stands for a database that is slow or away; a pause may be over at
// once, a queue is not. Nothing is refused by a queue that is empty: a wrong
// estimate would never be corrected.
func (q *queueLoad) check(ahead, rows, bytes int64) error {
	if ahead == 0 {
		return nil
	}
	expected, elapsed := q.wait(ahead)
	if expected > q.longest || elapsed > 2*q.longest || ahead+rows > maxQueuedRows || q.bytes.Load()+bytes > maxQueuedBytes {
		return &commands.Overloaded{Wait: max(expected, elapsed)}
	}
	return nil
}

// checkShare refuses where a tenant has its half already, and more would come to that.
func (q *queueLoad) checkShare(has share, rows, bytes int64) error {
	if has.rows == 0 {
		return nil
	}
	expected, _ := q.wait(has.rows)
	if expected > q.longest/2 || has.rows+rows > maxQueuedRows/2 || has.bytes+bytes > maxQueuedBytes/2 {
		return &commands.Overloaded{Wait: expected}
	}
	return nil
}

// refusal of a submission that met what its tenant had. What messages brought is
// asked for again with all that came beside it, and comes batch by batch: what its
// tenant sends by other ways does not count against it.
func (q *queueLoad) refusal(s *submission, ahead int64, had share, others bool) error {
	rows := int64(len(s.batch))
	if err := q.check(ahead, rows, s.bytes); err != nil || !others || s.owed {
		return err
	}
	return q.checkShare(had, rows, s.bytes)
}

// mayEnter refuses what could not enter, and counts nothing.
func (q *queueLoad) mayEnter(s *submission) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	had, others := q.meet(s)
	return q.refusal(s, q.rows.Load(), had, others)
}

// enter counts a submission in, or refuses it, under one lock: what is refused is
// never counted, or those that come meanwhile would be refused for it.
func (q *queueLoad) enter(s *submission) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	had, others := q.meet(s)
	if err := q.refusal(s, q.rows.Load(), had, others); err != nil {
		return err
	}
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
	s.load = q
	return nil
}

// add counts a submission in that was admitted elsewhere.
func (q *queueLoad) add(s *submission) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
	s.load = q
}

// leave counts a submission out, once it is answered.
func (q *queueLoad) leave(s *submission) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(s.tenant, -int64(len(s.batch)), -s.bytes)
}

// begin and end stand around the commit of a group.
func (q *queueLoad) begin() { q.since.Store(int64(max(1, time.Since(q.started)))) }

// A group that did not go smoothly tells how long the database was away. A small one
// tells no more than that a row takes less than that.
func (q *queueLoad) end(rows int, smooth bool) {
	took := int64(time.Since(q.started)) - q.since.Swap(0)
	if rows == 0 || !smooth {
		return
	}
	before, each := q.perRow.Load(), took/int64(rows)
	if rows < measuredRows && each >= before {
		return
	}
	q.perRow.Store(max(1, before+(each-before)/4))
}

// sizeOf is what the log will keep of a batch beside its keys.
func sizeOf(batch []commands.Submitted) (bytes int64) {
	for i := range batch {
		bytes += int64(len(batch[i].Payload) + len(batch[i].Body))
	}
	return bytes
}

// Admit implements commands.UsageLog. What is small goes through another queue
// first, which is asked when it is known to be small.
func (l *Log) Admit(tenant uuid.UUID) error {
	return l.ownWriter(tenant).load.mayEnter(&submission{tenant: tenant})
}

// Queue is what waits to be committed.
type Queue struct {
	Rows, Bytes int64
	Wait        time.Duration // of the longest queue, as estimated
}

// Queue tells what waits now.
func (l *Log) Queue() (all Queue) {
	for _, w := range append(l.writers[:len(l.writers):len(l.writers)], l.shared) {
		rows := w.load.rows.Load()
		all.Rows += rows
		all.Bytes += w.load.bytes.Load()
		expected, elapsed := w.load.wait(rows)
		all.Wait = max(all.Wait, expected, elapsed)
	}
	return all
}

// patience is how long a request waits for a connection, or for its turn to change
// something: who waits longer has more before him than is done in time.
const patience = time.Second

// borrow takes a connection for a request, or refuses.
func borrow(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := pool.Acquire(soon)
	switch {
	case err == nil:
		return conn, nil
	case soon.Err() != nil && ctx.Err() == nil:
		return nil, busy()
	}
	return nil, unavailable(err)
}

// busy refuses what found no connection.
func busy() error { return &commands.Overloaded{Wait: patience, Database: true} }

// How many changes of the catalogue, and how many looks at keys and histories, may
// have a connection of the pool that events are written through. Changes wait for
// each other at the heads of the log; whoever tries keys can ask for any number. With
// the seats of projections.Rebuilder they leave a connection to every writer.
const (
	maxChanges = 3
	maxLoads   = 3
)

// seats are the places of what may not take all connections.
type seats chan struct{}

// take waits a little for a seat.
func (s seats) take(ctx context.Context) (leave func(), err error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-soon.Done():
		if err := ctx.Err(); err != nil {
			return nil, unavailable(err)
		}
		return nil, busy()
	}
}
