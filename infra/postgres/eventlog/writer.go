package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

const (
	// maxGroupRows bounds one commit, and so how long a head is locked.
	maxGroupRows = 2000
	// maxQueued bounds the submissions that wait for a writer. It is more than the
	// requests in progress can make, so that the bounds of admission.go apply first.
	maxQueued = 4096
	// hotFor is how long a partition is probed before each write after a duplicate was found.
	hotFor = time.Second
	// resolveFor bounds how long the outcome of an unanswered commit is resolved before
	// the caller gets an error.
	resolveFor = 8 * time.Second
)

// submission is one caller's batch on its way through a writer.
type submission struct {
	tenant      uuid.UUID
	batch       []metering.Submitted
	bytes       int64 // of the payloads
	resubmitted bool  // it is submitted again until it is stored
	outcomes    []metering.Outcome
	admission   *commands.Admission // nil: not compared
	whole       bool                // its events are stored together or not at all
	load        *queueLoad          // counts it until it is answered
	done        chan error

	origins []int32 // the numbers of its events' origins; nil: not known yet
	era     uint64  // of the cache of origins that the numbers are from
}

// writer commits submissions in groups: submissions that arrive while one group commits
// form the next. It has no timer, but after a large group (see shared.go).
type writer struct {
	log     *Log
	queue   chan *submission
	load    *queueLoad
	shared  bool                // accepts small submissions of all partitions; see shared.go
	carried []*submission       // belong to the next group
	stuck   []*submission       // belong to writers whose queues are full; see shared.go
	offered time.Time           // when they were offered last
	last    int                 // rows of the last group
	group   *group              // the group in progress
	hot     map[int16]time.Time // until when a partition is probed first

	bound func() (context.Context, context.CancelFunc) // of a group whose outcome is unknown
}

func newWriter(l *Log, shared bool) *writer {
	return &writer{log: l, shared: shared, group: newGroup(l, nil), queue: make(chan *submission, maxQueued),
		load: newQueueLoad(l.cfg.LongestWait), hot: map[int16]time.Time{},
		bound: func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), resolveFor)
		}}
}

// Submit implements metering.UsageLog.
func (l *Log) Submit(ctx context.Context, tenant uuid.UUID, batch []metering.Submitted) ([]metering.Outcome, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	s := &submission{tenant: tenant, batch: batch, bytes: sizeOf(batch), resubmitted: isResubmitted(&batch[0]),
		admission: batch[0].Admission, whole: batch[0].Whole, outcomes: make([]metering.Outcome, len(batch)), done: make(chan error, 1)}
	began := time.Now()
	if err := l.numberOrigins(ctx, s); err != nil {
		return nil, err
	}
	if err := l.enqueue(s); err != nil {
		return nil, err
	}
	select {
	case err := <-s.done:
		l.submitted(ctx, began, s, err)
		return s.outcomes, err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %v", commands.ErrUnavailable, ctx.Err())
	}
}

// numberOrigins sets the numbers of a submission's origins.
func (l *Log) numberOrigins(ctx context.Context, s *submission) (err error) {
	s.era = l.origins.Era()
	s.origins, err = l.origins.NumbersInTurn(ctx, s.tenant, len(s.batch), func(i int) *events.Pending { return &s.batch[i].Pending })
	return err
}

// isResubmitted reports whether messages brought a submission, whose refusals are events, too, or the end of a reservation's time: neither
// waits for its tenant's own requests.
func isResubmitted(s *metering.Submitted) bool {
	return s.Inbox != "" || s.Subject == events.UsageRefused || s.Subject == events.ReservationExpired
}

var errClosed = fmt.Errorf("%w: shutting down", commands.ErrUnavailable)

// enqueue never blocks: if the queue is too long, it returns an error at once.
func (l *Log) enqueue(s *submission) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return errClosed
	}
	own := l.ownWriter(s.tenant)
	w := own
	if len(s.batch) <= smallRows {
		w = l.shared // which may pass it on
		if err := own.load.mayEnter(s); err != nil {
			return err
		}
	}
	if err := w.load.enter(s); err != nil {
		return err
	}
	select {
	case w.queue <- s:
		return nil
	default:
		w.load.remove(s)
		return &commands.Overloaded{Wait: w.load.longest}
	}
}

func (w *writer) run() {
	for {
		group, ok := w.gather()
		if !ok {
			return
		}
		w.commit(group)
	}
}

// gather waits for a submission and adds the other queued ones, up to maxGroupRows. A
// submission beyond the bound is carried over to the next group. It returns false when
// the queue is closed and empty.
func (w *writer) gather() (group []*submission, ok bool) {
	w.offer()
	group, w.carried = w.carried, nil
	rows := rowsOf(group)
	if len(group) == 0 {
		s, ok := w.first()
		if !ok {
			return nil, false
		}
		group, rows = append(group, s), len(s.batch)
	}
	patience, calm := w.lingering()
	defer calm()
	for s := w.next(rows, patience); s != nil; s = w.next(rows, patience) {
		if rows+len(s.batch) > maxGroupRows {
			w.carried = append(w.carried, s)
			break
		}
		group, rows = append(group, s), rows+len(s.batch)
	}
	w.last = rows
	return group, true
}

func rowsOf(group []*submission) (rows int) {
	for _, s := range group {
		rows += len(s.batch)
	}
	return rows
}

// commit appends a group and answers all its submissions. After a commit without an
// answer, the group is appended again, and its keys are probed first. The probe waits
// for the head's lock, which the unanswered transaction holds until it is durable or
// rolled back.
func (w *writer) commit(subs []*submission) {
	g := w.group
	g.fill(subs)
	defer g.forget()
	w.load.begin()
	smooth := false
	defer func() { w.load.end(len(g.members), smooth) }()
	probing := g.mustProbe || w.isHot(g.partitions)
	ctx, cancel := w.bound()
	defer cancel()
	var cause error // of the last failure that the end of ctx did not cause
	for attempt := 0; ; attempt++ {
		began := time.Now()
		err := w.attempt(ctx, g, probing, attempt == 0)
		if err == nil {
			smooth = attempt == 0
			w.log.written(g.rows)
			w.log.appendedWith(began, g.rows)
			g.reportInline(time.Since(began))
			inMemory := g.offer() // before the answer: then the caller uses the memory of its bodies again
			g.answer(nil)
			if inMemory {
				w.log.cfg.OnInMemory(g.partitions)
			} else {
				w.log.cfg.OnAppend(g.partitions)
			}
			return
		}
		if (postgres.SQLState(err) == postgres.UniqueViolation || errors.Is(err, errKnownRefused)) && !probing {
			g.sent = false // the outcome is known
			w.markHot(g.partitions)
			probing = true
			continue
		}
		if ctx.Err() == nil || cause == nil {
			cause = err
		}
		if ctx.Err() != nil || postgres.Hopeless(err) {
			w.log.cfg.Logger.Error("appending failed", "error", cause, "attempts", attempt+1)
			g.answer(fmt.Errorf("%w: %v", commands.ErrUnavailable, cause))
			return
		}
		probing = true
		time.Sleep(postgres.RetryPause(attempt + 1))
	}
}

// attempt runs one transaction. If the group was sent before, its events may be in a
// transaction that still locks their heads; attempt waits for it. The first attempt may fold inline.
func (w *writer) attempt(ctx context.Context, g *group, probing, first bool) error {
	era := w.log.origins.Era()
	origin, err := g.originsIn(ctx, era) // new ones are numbered before anything is locked
	if err != nil {
		return err
	}
	conn, err := w.log.db.Session(ctx)
	if err != nil {
		return fmt.Errorf("taking a connection: %w", err)
	}
	defer conn.Release() // a connection in mid-transaction is closed, not reused
	planning := keepPlansSQL
	if probing {
		planning = planAnewSQL
	}
	lock := lockHeadsSQL
	if w.shared && !g.sent {
		lock = lockFreeHeadsSQL
	}
	var quotas *quotaRequests
	var ended *admissions
	var checkpoints map[int16]int64
	var named targets
	hs, err := w.begin(ctx, conn, g.partitions, planning, lock, func() []*LockedRead {
		var locking *LockedRead
		locking, checkpoints = w.lockInline(g, first)
		quotas = newQuotaRequests(g)
		var reading []*LockedRead
		reading, named = g.readingTargets()
		ended = &admissions{group: g}
		return slices.Concat(ended.reading(), quotas.reading(), []*LockedRead{locking}, reading)
	})
	if err != nil {
		return err
	}
	w.log.sawEpochs(hs)
	left := len(hs) < len(g.partitions)
	if left {
		w.passOn(g.removeLocked(hs))
	}
	if err := ended.complete(ctx, conn, hs); err != nil {
		return errors.Join(err, rollback(conn))
	}
	left = g.removeEnded(ended) || left
	if now := w.log.origins.Era(); left || now != era {
		if origin, err = g.originsIn(ctx, now); err != nil {
			return errors.Join(err, rollback(conn))
		}
	}
	if err := quotas.complete(ctx, conn, hs); err != nil {
		return errors.Join(err, rollback(conn))
	}
	if err := g.decide(ctx, conn, hs, origin, quotas, named, probing); err != nil {
		return errors.Join(err, rollback(conn))
	}
	if len(g.rows) == 0 && g.isDurable(hs) {
		return rollback(conn)
	}
	if err := g.extend(ctx, conn, hs, quotas, checkpoints); err != nil {
		return errors.Join(err, rollback(conn))
	}
	g.sent = true
	err = conn.Finish(ctx, server.NewRows(g.rows), g.moves(hs))
	if err == nil {
		w.log.durable.committed(hs)
	}
	if postgres.SQLState(err) != "" && !conn.Closed() {
		err = errors.Join(err, rollback(conn))
	}
	return err
}

// begin starts a transaction and locks the heads. If the server is in another life than the
// epoch of one, the epoch is raised by a transaction of its own, and the heads are locked again. Then the state that was read under the
// locks may have changed: reads returns the reads of each attempt, with their results empty.
func (w *writer) begin(ctx context.Context, conn server.Session, partitions []int16, planning, lock string,
	reads func() []*LockedRead) (heads, error) {
	for {
		hs, err := beginLocked(ctx, conn, partitions, planning, lock, reads()...)
		if err != nil {
			return nil, err
		}
		stale := hs.ofAnotherLife()
		if len(stale) == 0 {
			return hs, nil
		}
		if err := rollback(conn); err != nil {
			return nil, err
		}
		if err := w.log.raise(ctx, stale, nil); err != nil {
			return nil, err
		}
	}
}

func rollback(conn server.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), postgres.CommitTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, "rollback")
	return err
}

func (w *writer) isHot(partitions []int16) bool {
	now := time.Now()
	for _, p := range partitions {
		if now.Before(w.hot[p]) {
			return true
		}
	}
	return false
}

func (w *writer) markHot(partitions []int16) {
	for _, p := range partitions {
		w.hot[p] = time.Now().Add(hotFor)
	}
}
