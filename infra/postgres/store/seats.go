package store

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
)

// patience is how long a request waits for a connection, or for a seat to make a
// change. A longer wait means a backlog that cannot be worked off in time.
const patience = time.Second

// borrow acquires a connection for a request, or refuses it.
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

// busy refuses a request that got no connection.
func busy() error { return &commands.Overloaded{Wait: patience, Database: true} }

// How many catalogue changes, and how many loads of keys and histories, may hold a
// connection of the pool that events are written through. Changes wait for each other
// at the heads of the log; a client that guesses keys causes any number of loads. With
// the seats of projections.Rebuilder these bounds leave a connection for every writer.
const (
	maxChanges = 3
	maxLoads   = 3
	// maxDeliveries is how many transactions of webhooks' deliveries run at the same time. They are short, and their requests need no connection: a writer waits for one of them
	// at most.
	maxDeliveries = 2
	// deliveryPatience is how long such a transaction waits. It is shorter than the lease of a webhook.
	deliveryPatience = 10 * time.Second
)

// seats limit how many connections one kind of work holds at once.
type seats chan struct{}

// acquire waits for a seat, for patience at most.
func (s seats) acquire(ctx context.Context) (leave func(), err error) {
	return s.acquireWithin(ctx, patience)
}

func (s seats) acquireWithin(ctx context.Context, most time.Duration) (leave func(), err error) {
	soon, cancel := context.WithTimeout(ctx, most)
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

// changeSeats are the seats of changes. A change by a key of a tenant waits for the one seat of its tenant first: meanwhile it holds no seat that another
// caller needs. All tenants together leave a seat to operators and to the service.
type changeSeats struct {
	all, tenants seats

	mu  sync.Mutex
	own map[uuid.UUID]*ownSeat // of tenants with a change that runs or waits
}

// ownSeat is the seat of a tenant.
type ownSeat struct {
	seats
	changes int // that run or wait
}

func newChangeSeats() *changeSeats {
	return &changeSeats{all: make(seats, maxChanges), tenants: make(seats, maxChanges-1), own: map[uuid.UUID]*ownSeat{}}
}

// acquire waits for the seats of a change, for patience at most. tenant is that of the key of the change; Nil: an operator or the service makes it.
func (c *changeSeats) acquire(ctx context.Context, tenant uuid.UUID) (leave func(), err error) {
	if tenant == uuid.Nil {
		return c.all.acquire(ctx)
	}
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	own, exit := c.enter(tenant)
	leave = exit
	for _, bound := range []seats{own, c.tenants, c.all} {
		free, err := bound.acquire(soon)
		if err != nil {
			leave()
			if ctx.Err() == nil {
				err = busy()
			}
			return nil, err
		}
		before := leave
		leave = func() { free(); before() }
	}
	return leave, nil
}

// enter returns the seat of a tenant, which is forgotten after its last change called exit.
func (c *changeSeats) enter(tenant uuid.UUID) (own seats, exit func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.own[tenant]
	if o == nil {
		o = &ownSeat{seats: make(seats, 1)}
		c.own[tenant] = o
	}
	o.changes++
	return o.seats, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if o.changes--; o.changes == 0 {
			delete(c.own, tenant)
		}
	}
}

// paced is a seat that stays taken after its work: many changes at once leave most of the time to other requests. A change alone waits for
// no one.
type paced struct{ seats }

const (
	// restTimes is how many times as long as its work a paced seat rests.
	restTimes = 12
	// longestRest bounds the rest: the work may have waited for a lock, or for a busy machine.
	longestRest = 45 * time.Millisecond
	// pacedPatience is how long a request waits for a paced seat: about a hundred of them at once do.
	pacedPatience = 5 * time.Second
)

func (p paced) acquire(ctx context.Context) (leave func(), err error) {
	free, err := p.acquireWithin(ctx, pacedPatience)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	return func() { time.AfterFunc(min(restTimes*time.Since(began), longestRest), free) }, nil
}
