package query

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain/seats"
)

// patience is how long a read waits for its seats and a connection: a longer wait means a queue
// that cannot be served in time.
const patience = time.Second

// connected runs a read on a connection of the pool, in a seat of its viewer, with the context of the seat. The read may
// return inside a transaction.
func (d *DB) connected(ctx context.Context, v Viewer, read func(context.Context, *pgx.Conn) error) error {
	ctx, leave, err := d.Seats.acquire(ctx, v, d.kind)
	if err != nil {
		return err
	}
	defer leave()
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := d.Pool.Acquire(soon)
	if err != nil {
		return refuseSeat(ctx, soon, err)
	}
	defer conn.Release() // a connection that is left inside a transaction is closed by the pool
	if err := read(ctx, conn.Conn()); err != nil {
		rollBack(ctx, conn.Conn())
		return explainEnd(ctx, err)
	}
	return nil
}

// refuseSeat returns the error of a read that got no connection: ErrOverloaded if it waited for
// its whole patience.
func refuseSeat(ctx, soon context.Context, err error) error {
	if soon.Err() != nil && ctx.Err() == nil {
		return ErrOverloaded
	}
	return fmt.Errorf("take a connection to read: %w", err)
}

// rollBack ends the transaction of a failed read, so that the session remains for the next read.
func rollBack(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, _ = conn.Exec(soon, `rollback`) // else the pool closes the connection
}

// queryCanceled is the SQLSTATE of a statement that ran into statement_timeout, or was cancelled.
const queryCanceled = "57014"

// explainEnd converts the error of a statement that the server cancelled. If the caller is
// gone, the cancellation is ours, and the caller's end is the cause.
func explainEnd(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	switch {
	case errors.Is(context.Cause(ctx), seats.ErrEnded):
		return RefusedAs("overloaded", "The read was ended after a while because other tenants wait; read less at once, such as a "+
			"shorter period, or send the same again later", ErrOverloaded)
	case !errors.As(err, &pg) || pg.Code != queryCanceled:
		return err
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	}
	return RefusedAs("overloaded", "The database did not answer this read in time; read less at once, such as a shorter period, or send "+
		"the same again later", ErrOverloaded)
}
