package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/seats"
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
	return nil, Unavailable(err)
}

// busy refuses a request that got no connection.
func busy() error { return &commands.Overloaded{Wait: patience, Database: true} }

// unseated returns the error of a request that got no seat, or that ran with the context of a seat and may have lost it.
func unseated(ctx context.Context, err error) error {
	if errors.Is(err, seats.ErrBusy) || errors.Is(context.Cause(ctx), seats.ErrEnded) {
		return busy()
	}
	return err
}

// How many catalogue changes, and how many loads of keys and histories, may hold a
// connection of the pool that events are written through. Changes wait for each other
// at the heads of the log; a client that guesses keys causes any number of loads. With
// the seats of rebuild.Rebuilder these bounds leave a connection for every writer.
const (
	maxChanges = 3 // those of operators and of the service one less: tenants and they leave each other one
	maxLoads   = 3
	// maxDeliveries is how many transactions of webhooks' deliveries run at the same time. They are short, and their requests need no
	// connection: a writer waits for one of them at most.
	maxDeliveries = 2
	// deliveryPatience is how long such a transaction waits. It is shorter than the lease of a webhook.
	deliveryPatience = 10 * time.Second
)

// share returns how many connections of a small pool one of the bounds above leaves to its use: a quarter, and two at least.
func (c Config) share(most int) int {
	if c.Connections == 0 {
		return most
	}
	return min(most, max(2, c.Connections/4))
}

// limited limits how many connections one kind of work holds at once.
type limited chan struct{}

// acquire waits for a seat, for patience at most.
func (s limited) acquire(ctx context.Context) (leave func(), err error) {
	return s.acquireWithin(ctx, patience)
}

func (s limited) acquireWithin(ctx context.Context, most time.Duration) (leave func(), err error) {
	soon, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-soon.Done():
		if err := ctx.Err(); err != nil {
			return nil, Unavailable(err)
		}
		return nil, busy()
	}
}

// paced is a seat that stays taken after its work: many changes at once leave most of the time to other requests. A change alone waits for
// no one.
type paced struct{ limited }

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
