package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

const (
	// maxNumbering bounds the tenants whose new origins are numbered at the same time, each
	// on a connection. Other uses of the connections aside keep the rest of AsideConns.
	maxNumbering = 2
	// maxNumbered bounds the submissions of a tenant whose origins are numbered in one turn.
	maxNumbered = 500
	// maxOriginNumber is the last number that a row of the log can hold, and that the identity
	// of log_origins gives.
	maxOriginNumber = 1<<31 - 1
)

// numbering numbers the origins of submissions that the cache does not have, before the
// submissions are queued: no submission of another tenant waits for them in its group. Each
// tenant with such origins has one worker. The workers take turns.
type numbering struct {
	origins *origins
	logger  *slog.Logger
	warned  atomic.Bool
	turns   chan struct{}
	mu      sync.Mutex
	waiting map[uuid.UUID][]*unnumbered // has a key while the tenant's worker runs
}

// unnumbered are the new origins of one submission, and the outcome once done is closed.
type unnumbered struct {
	origins []origin
	left    <-chan struct{} // closed if its caller waits no longer; nil without a caller
	ids     map[origin]int32
	err     error
	done    chan struct{}
}

func (u *unnumbered) hasLeft() bool {
	select {
	case <-u.left:
		return true
	default:
		return false
	}
}

func newNumbering(o *origins, logger *slog.Logger) *numbering {
	return &numbering{origins: o, logger: logger, turns: make(chan struct{}, maxNumbering), waiting: map[uuid.UUID][]*unnumbered{}}
}

// add queues new origins of a tenant. It reports whether the caller has to start its worker.
func (n *numbering) add(tenant uuid.UUID, u *unnumbered) (first bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	queued, running := n.waiting[tenant]
	n.waiting[tenant] = append(queued, u)
	return !running
}

// next removes the oldest of a tenant's submissions from its queue. After nil the tenant has no worker.
func (n *numbering) next(tenant uuid.UUID) []*unnumbered {
	n.mu.Lock()
	defer n.mu.Unlock()
	queued := n.waiting[tenant]
	if len(queued) == 0 {
		delete(n.waiting, tenant)
		return nil
	}
	taken := queued[:min(len(queued), maxNumbered)]
	n.waiting[tenant] = queued[len(taken):]
	return taken
}

// work numbers the new origins of a tenant until its queue is empty.
func (n *numbering) work(ctx context.Context, tenant uuid.UUID) {
	for {
		n.turns <- struct{}{}
		batch := n.next(tenant)
		if batch != nil {
			n.number(ctx, batch)
		}
		<-n.turns
		if batch == nil {
			return
		}
	}
}

// number answers submissions whose callers wait. It tries again after failures that a retry may fix, as a
// writer does, until the context ends.
func (n *numbering) number(ctx context.Context, batch []*unnumbered) {
	batch = slices.DeleteFunc(batch, (*unnumbered).hasLeft)
	if len(batch) == 0 {
		return
	}
	var list []origin
	for _, u := range batch {
		list = append(list, u.origins...)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveFor)
	defer cancel()
	var ids map[origin]int32
	var err error
	for attempt := 1; ; attempt++ {
		if ids, err = n.origins.number(ctx, list); err == nil || hopeless(err) || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause(attempt)):
		}
	}
	if err != nil {
		n.logger.Error("recording the origin of events failed", "error", err, "origins", len(list))
		err = fmt.Errorf("%w: %v", commands.ErrUnavailable, err)
	}
	for _, id := range ids {
		if id > maxOriginNumber/2 && !n.warned.Swap(true) {
			n.logger.Warn("more than half of the numbers of log_origins are used; docs/decisions/0015-origins.md", "number", id, "last", maxOriginNumber)
		}
	}
	for _, u := range batch {
		u.ids, u.err = ids, err
		close(u.done)
	}
}

// numberOrigins sets the numbers of a submission's origins.
func (l *Log) numberOrigins(ctx context.Context, s *submission) error {
	s.era = l.origins.now()
	at := func(i int) *events.Pending { return &s.batch[i].Pending }
	ids, err := l.originsOf(ctx, len(s.batch), at, func(ctx context.Context, list []origin) (map[origin]int32, error) {
		return l.numberInTurn(ctx, s.tenant, list)
	})
	s.origins = ids
	return err
}

// numberInTurn waits until the tenant's worker has numbered new origins.
func (l *Log) numberInTurn(ctx context.Context, tenant uuid.UUID, list []origin) (map[origin]int32, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveFor)
	defer cancel()
	u := &unnumbered{origins: list, left: ctx.Done(), done: make(chan struct{})}
	if err := l.startNumbering(tenant, u); err != nil {
		return nil, err
	}
	select {
	case <-u.done:
		return u.ids, u.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: recording the origin of events: %v", commands.ErrUnavailable, ctx.Err())
	}
}

// startNumbering queues new origins. Close ends the workers: a submission that is numbered later is refused in any case.
func (l *Log) startNumbering(tenant uuid.UUID, u *unnumbered) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return errClosed
	}
	if l.numbering.add(tenant, u) {
		l.wg.Go(func() { l.numbering.work(l.working, tenant) })
	}
	return nil
}

// originsOf returns the number of the origin of each of some events; few of them are
// distinct. It calls number for those that the cache does not have.
func (l *Log) originsOf(ctx context.Context, events int, at func(int) *events.Pending, number func(context.Context, []origin) (map[origin]int32, error)) ([]int32, error) {
	ids := make([]int32, events)
	var missing map[origin][]int // where they are
	for i := range ids {
		if i > 0 && ids[i-1] > 0 && sameOrigin(at(i), at(i-1)) {
			ids[i] = ids[i-1]
			continue
		}
		of, err := l.originOf(at(i))
		if err != nil {
			return nil, err
		}
		var ok bool
		if ids[i], ok = l.origins.cached(of); !ok {
			if missing == nil {
				missing = map[origin][]int{}
			}
			missing[of] = append(missing[of], i)
		}
	}
	if len(missing) == 0 {
		return ids, nil
	}
	list := make([]origin, 0, len(missing))
	for of := range missing {
		list = append(list, of)
	}
	numbers, err := number(ctx, list)
	if err != nil {
		return nil, err
	}
	for of, places := range missing {
		for _, i := range places {
			ids[i] = numbers[of]
		}
	}
	return ids, nil
}
