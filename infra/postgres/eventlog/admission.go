package eventlog

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
)

// Bounds of one writer's queue. The row and byte bounds limit memory, the time bound
// limits how long callers wait. The first bound that is reached refuses submissions.
const (
	maxQueuedRows  = 32_000   // 16 groups
	maxQueuedBytes = 16 << 20 // of payloads
	// standardWait is far below the timeouts of clients, and far above the time that
	// a full group needs.
	standardWait = 500 * time.Millisecond
	// firstPerRow is the estimate for a row before the first measurement.
	firstPerRow = 50 * time.Microsecond
	// measuredRows is how many rows a group needs to raise the estimate for a row:
	// the time of a small group is mostly the time of its commit.
	measuredRows = 256
)

// queueLoad holds one writer's backlog and its speed. Rows and bytes change only
// under the lock, together with the shares; reading them needs no lock.
type queueLoad struct {
	longest time.Duration
	started time.Time // the start of since
	rows    atomic.Int64
	bytes   atomic.Int64
	perRow  atomic.Int64 // nanoseconds, as measured by end
	since   atomic.Int64 // when the group in progress began; 0: no group is in progress

	mu     sync.Mutex
	shares map[uuid.UUID]share // of the tenants with queued submissions
	seen   [2]arrival          // the last two tenants that submitted
}

// share is one tenant's part of a queue. It may reach half of what the other tenants leave of each bound,
// so that tenants that send more than can be written, however many, leave room for the
// others of their writer. A tenant that is alone may use the whole queue.
type share struct{ rows, bytes int64 }

// othersFor is how long a tenant counts as present after a submission: a tenant that
// was refused, or that sends a little now and then, must not find the queue full each time.
const othersFor = 5 * time.Second

// arrival is when a tenant submitted to a queue, admitted or not.
type arrival struct {
	tenant uuid.UUID
	at     time.Duration // since the queue began; 0: never
}

// arrive records the arrival of a submission. It returns its tenant's share, and whether
// other tenants are queued or submitted lately. The caller holds the lock.
func (q *queueLoad) arrive(s *submission) (had share, others bool) {
	tenant, now := s.tenant, max(1, time.Since(q.started))
	if s.resubmitted {
		tenant = uuid.Max // room is left for it as for another tenant
	}
	if q.seen[0].tenant != tenant {
		q.seen[1] = q.seen[0]
	}
	q.seen[0] = arrival{tenant, now}
	had, waits := q.shares[s.tenant]
	last := q.seen[1]
	return had, len(q.shares) > 1 || len(q.shares) == 1 && !waits || last.at > 0 && now-last.at < othersFor
}

// count adds to a tenant's share, or subtracts from it. The caller holds the lock.
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

// wait estimates how long the rows ahead take to commit, and returns how long the
// group in progress has taken already.
func (q *queueLoad) wait(ahead int64) (expected, elapsed time.Duration) {
	if since := q.since.Load(); since > 0 {
		elapsed = time.Since(q.started) - time.Duration(since)
	}
	return time.Duration(ahead * q.perRow.Load()), elapsed
}

// check refuses a submission if the queue ahead takes too long. A group that alone
// takes twice the longest wait means that the database is slow or unreachable; a
// pause may end at once, a queue does not. An empty queue never refuses: otherwise a
// wrong estimate would never be corrected.
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

// checkShare refuses a submission after which its tenant would hold more of the queue than it leaves to others. A batch that takes
// long on a slow database counts as a quarter of the longest wait: else it would be refused each time that another tenant waits.
func (q *queueLoad) checkShare(has share, ahead, rows, bytes int64) error {
	rows = max(rows, 1) // before its body is read, a submission has at least one
	expected, _ := q.wait(has.rows)
	all, _ := q.wait(ahead)
	own, _ := q.wait(rows)
	own = min(own, q.longest/4)
	if expected+own > q.longest-all-own || has.rows+rows > maxQueuedRows-ahead-rows ||
		has.bytes+bytes > maxQueuedBytes-q.bytes.Load()-bytes {
		return &commands.Overloaded{Wait: expected}
	}
	return nil
}

// refusal returns why a submission is refused, given its tenant's share. A refused
// message is delivered again together with its batch, and messages arrive batch by
// batch: usage that the tenant sends otherwise does not count against them.
func (q *queueLoad) refusal(s *submission, ahead int64, had share, others bool) error {
	rows := int64(len(s.batch))
	if err := q.check(ahead, rows, s.bytes); err != nil || !others || s.resubmitted {
		return err
	}
	return q.checkShare(had, ahead, rows, s.bytes)
}

// mayEnter refuses a submission that enter would refuse, without counting it.
func (q *queueLoad) mayEnter(s *submission) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	had, others := q.arrive(s)
	return q.refusal(s, q.rows.Load(), had, others)
}

// enter counts a submission in, or refuses it, under one lock. A refused submission is
// never counted, not even briefly: concurrent submissions would be refused because of it.
func (q *queueLoad) enter(s *submission) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	had, others := q.arrive(s)
	if err := q.refusal(s, q.rows.Load(), had, others); err != nil {
		return err
	}
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
	s.load = q
	return nil
}

// add counts in a submission that another queue admitted.
func (q *queueLoad) add(s *submission) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
	s.load = q
}

// remove counts out a submission after its answer.
func (q *queueLoad) remove(s *submission) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(s.tenant, -int64(len(s.batch)), -s.bytes)
}

// begin and end enclose the commit of a group.
func (q *queueLoad) begin() { q.since.Store(int64(max(1, time.Since(q.started)))) }

// end updates the estimate for a row. It ignores a group that needed a retry: that
// measures the outage of the database. A small group gives only an upper bound.
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

// sizeOf returns the bytes that the log will store of a batch, without its keys.
func sizeOf(batch []metering.Submitted) (bytes int64) {
	for i := range batch {
		bytes += int64(len(batch[i].Payload) + len(batch[i].Sent))
	}
	return bytes
}

// Admit implements metering.UsageLog. A small submission goes through the shared queue
// first, which checks it when its size is known.
func (l *Log) Admit(tenant uuid.UUID) error {
	return l.ownWriter(tenant).load.mayEnter(&submission{tenant: tenant})
}

// Queue is the backlog of submissions that wait to be committed.
type Queue struct {
	Rows, Bytes int64
	Wait        time.Duration // of the longest queue, as estimated
}

// Queue returns the present backlog.
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
