package origins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

const (
	// MaxNumbering bounds the tenants whose new origins are numbered at the same time, each
	// on a connection.
	MaxNumbering = 2
	// maxNumbered bounds the submissions of a tenant whose origins are numbered in one turn.
	maxNumbered = 500
	// maxOriginNumber is the last number that a row of the log can hold, and that the identity
	// of log_origins gives.
	maxOriginNumber = 1<<31 - 1
	// numberFor bounds how long a submission waits for the numbers of its origins.
	numberFor = 8 * time.Second
)

// numbering numbers the origins of submissions that the cache does not have, before the
// submissions are queued: no submission of another tenant waits for them in its group. Each
// tenant with such origins has one worker. The workers take turns.
type numbering struct {
	warned  atomic.Bool
	turns   chan struct{}
	working context.Context // of the workers
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	waiting map[uuid.UUID][]*unnumbered // has a key while the tenant's worker runs
}

// unnumbered are the new origins of one submission, and the outcome once done is closed.
type unnumbered struct {
	origins []Origin
	left    <-chan struct{} // closed if its caller waits no longer; nil without a caller
	ids     map[Origin]int32
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

func newNumbering() numbering {
	working, stop := context.WithCancel(context.Background())
	return numbering{turns: make(chan struct{}, MaxNumbering), working: working, stop: stop, waiting: map[uuid.UUID][]*unnumbered{}}
}

// Close refuses new origins, and ends the workers: submissions that wait for them are answered with an error.
func (o *Origins) Close() {
	o.numbering.mu.Lock()
	o.numbering.closed = true
	o.numbering.mu.Unlock()
	o.numbering.stop()
	o.numbering.workers.Wait()
}

var errClosed = fmt.Errorf("%w: shutting down", commands.ErrUnavailable)

// add queues new origins of a tenant, and starts its worker.
func (o *Origins) add(tenant uuid.UUID, u *unnumbered) error {
	n := &o.numbering
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	queued, running := n.waiting[tenant]
	n.waiting[tenant] = append(queued, u)
	if !running {
		n.workers.Go(func() { o.work(n.working, tenant) })
	}
	return nil
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
func (o *Origins) work(ctx context.Context, tenant uuid.UUID) {
	for {
		o.numbering.turns <- struct{}{}
		batch := o.numbering.next(tenant)
		if batch != nil {
			o.numberAll(ctx, batch)
		}
		<-o.numbering.turns
		if batch == nil {
			return
		}
	}
}

// numberAll answers submissions whose callers wait. It tries again after failures that a retry may fix, as a
// writer does, until the context ends.
func (o *Origins) numberAll(ctx context.Context, batch []*unnumbered) {
	batch = slices.DeleteFunc(batch, (*unnumbered).hasLeft)
	if len(batch) == 0 {
		return
	}
	var list []Origin
	for _, u := range batch {
		list = append(list, u.origins...)
	}
	ctx, cancel := context.WithTimeout(ctx, numberFor)
	defer cancel()
	var ids map[Origin]int32
	var err error
	for attempt := 1; ; attempt++ {
		if ids, err = o.number(ctx, list); err == nil || postgres.Hopeless(err) || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(postgres.RetryPause(attempt)):
		}
	}
	if err != nil {
		o.logger.Error("recording the origin of events failed", "error", err, "origins", len(list))
		err = fmt.Errorf("%w: %v", commands.ErrUnavailable, err)
	}
	for _, id := range ids {
		if id > maxOriginNumber/2 && !o.numbering.warned.Swap(true) {
			o.logger.Warn("more than half of the numbers of log_origins are used; docs/decisions/0015-origins.md", "number", id, "last",
				maxOriginNumber)
		}
	}
	for _, u := range batch {
		u.ids, u.err = ids, err
		close(u.done)
	}
}

// Numbers returns the number of the origin of each of n events. It does not wait for the
// workers: the caller holds a group, or a transaction.
func (o *Origins) Numbers(ctx context.Context, n int, at func(int) *events.Pending) ([]int32, error) {
	return o.numbersOf(ctx, n, at, o.number)
}

// NumbersInTurn is Numbers for a submission that is not queued yet: new origins wait for the turn of the tenant's worker.
func (o *Origins) NumbersInTurn(ctx context.Context, tenant uuid.UUID, n int, at func(int) *events.Pending) ([]int32, error) {
	return o.numbersOf(ctx, n, at, func(ctx context.Context, list []Origin) (map[Origin]int32, error) {
		ctx, cancel := context.WithTimeout(ctx, numberFor)
		defer cancel()
		u := &unnumbered{origins: list, left: ctx.Done(), done: make(chan struct{})}
		if err := o.add(tenant, u); err != nil {
			return nil, err
		}
		select {
		case <-u.done:
			return u.ids, u.err
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: recording the origin of events: %v", commands.ErrUnavailable, ctx.Err())
		}
	})
}

var errNotNumbered = errors.New("an origin has no number yet")

// KnownNumbers is Numbers without waiting: nil if an origin has no number yet. Then the worker of the first event's tenant gives it one.
func (o *Origins) KnownNumbers(ctx context.Context, n int, at func(int) *events.Pending) ([]int32, error) {
	ids, err := o.numbersOf(ctx, n, at, func(_ context.Context, list []Origin) (map[Origin]int32, error) {
		_ = o.add(at(0).TenantID, &unnumbered{origins: list, done: make(chan struct{})})
		return nil, errNotNumbered
	})
	if errors.Is(err, errNotNumbered) {
		return nil, nil
	}
	return ids, err
}

// numbersOf returns the number of the origin of each of some events; few of them are
// distinct. It calls number for those that the cache does not have.
func (o *Origins) numbersOf(ctx context.Context, n int, at func(int) *events.Pending,
	number func(context.Context, []Origin) (map[Origin]int32, error)) ([]int32, error) {
	ids := make([]int32, n)
	var missing map[Origin][]int // where they are
	for i := range ids {
		if i > 0 && ids[i-1] > 0 && sameOrigin(at(i), at(i-1)) {
			ids[i] = ids[i-1]
			continue
		}
		of, err := o.of(at(i))
		if err != nil {
			return nil, err
		}
		var ok bool
		if ids[i], ok = o.cached(of); !ok {
			if missing == nil {
				missing = map[Origin][]int{}
			}
			missing[of] = append(missing[of], i)
		}
	}
	if len(missing) == 0 {
		return ids, nil
	}
	list := make([]Origin, 0, len(missing))
	for of := range missing {
		list = append(list, of)
	}
	numbers, err := number(ctx, list)
	if err != nil {
		return nil, err
	}
	for of, indexes := range missing {
		for _, i := range indexes {
			ids[i] = numbers[of]
		}
	}
	return ids, nil
}
