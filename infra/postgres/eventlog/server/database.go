// Package server is the database server as the log uses it: the sessions of its writers, and events in the binary
// format of their rows, which are written by COPY and read.
package server

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/postgres"
)

// Database is the server as the log uses it: a pool of connections, and the two ways of
// writing events, in which COPY is hand-written. The simulation has another one.
type Database interface {
	postgres.Pool
	// Session returns a connection for a writer.
	Session(ctx context.Context) (Session, error)
	// Copy sets the savepoint of an append inside a transaction, and writes events.
	Copy(ctx context.Context, tx pgx.Tx, rows *Rows) error
}

// Statement is a statement with its parameters.
type Statement struct {
	SQL  string
	Args []any
}

// Move is a statement that is sent with the events. Its Name is that of its prepared form.
type Move struct {
	Name string
	Statement
}

// Session is a connection of a writer.
type Session interface {
	postgres.Queryer
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	// Finish writes rows, runs the moves and commits, in one round trip; without rows it only commits.
	Finish(ctx context.Context, rows *Rows, moves []Move) error
	Closed() bool
	Release()
}

// Of returns PostgreSQL behind a pool.
func Of(pool *pgxpool.Pool) Database { return server{pool} }

type server struct{ *pgxpool.Pool }

// The savepoint of an append comes after the heads' locks, which a rollback to it must not release.
const savepointSQL = `SAVEPOINT append`

func (s server) Session(ctx context.Context) (Session, error) {
	c, err := s.Acquire(ctx)
	return pooled{c}, err
}

func (s server) Copy(ctx context.Context, tx pgx.Tx, rows *Rows) error {
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, rows, savepointSQL+"; "+CopySQL) // one round trip
	if err != nil {
		return fmt.Errorf("copying %d events into the log: %w", rows.Len(), err)
	}
	if tag.RowsAffected() != int64(rows.Len()) {
		return fmt.Errorf("copying into the log: %d rows of %d", tag.RowsAffected(), rows.Len())
	}
	return nil
}

type pooled struct{ *pgxpool.Conn }

func (c pooled) Finish(ctx context.Context, rows *Rows, moves []Move) error {
	if rows.Len() > 0 {
		return finish(ctx, c.Conn.Conn(), rows, moves)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postgres.CommitTimeout)
	defer cancel()
	return postgres.Commit(c.Conn.Conn(), func() error {
		_, err := c.Exec(ctx, "commit")
		return err
	})
}

func (c pooled) Closed() bool { return c.Conn.Conn().IsClosed() }
