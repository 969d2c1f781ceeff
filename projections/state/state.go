// Package state reads the state of an installation from its database: how far the log is published and folded, and the work that waits or
// needs an operator. Each part of the state has one statement. Metrics, the overview, /projections, /outbox and doctor render its results.
package state

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// State is the state of an installation as an instance last read it. Parts that were never read are empty. It is shared: its readers
// change no part of it.
type State struct {
	ReadAt        time.Time // of the last complete read; zero: no such read yet
	Outbox        Outbox
	Lags          Lags
	UsageCommands map[int16]int64 // messages of usage.commands by partition that its consumer has not passed, as the pipe says
	Generations   Generations
	LastRebuilds  LastRebuilds
	Units         Units
	DeadLetters   DeadLetters
	Sagas         Sagas
	Pushes        Pushes
	Webhooks      Webhooks
	Disabled      DisabledWebhooks
	Server        *Server // nil before the first read
	Accounts      Accounts
	Identity      *Comparison
}

// Part is a part of the state. Its statement adds rows to it, so that each read begins with an empty part.
type Part interface{ Statement() query.Statement }

// Session runs statements: a connection, a pool or a transaction.
type Session interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Read reads empty parts, one after the other.
func Read(ctx context.Context, db Session, parts ...Part) error {
	for _, p := range parts {
		s := p.Statement()
		found, err := db.Query(ctx, s.SQL, s.Args...)
		if err != nil {
			return err
		}
		err = s.Scan(found)
		if found.Close(); err != nil {
			return err
		}
	}
	return nil
}

// rows reads the rows of a statement into a list of structs, by the order of their members.
func rows[T any](into *[]T, sql string, args ...any) query.Statement {
	return query.New(sql, args, func(found pgx.Rows) (err error) {
		*into, err = pgx.AppendRows(*into, found, pgx.RowToStructByPos[T])
		return err
	})
}

// row reads the only row of a statement.
func row[T any](into *T, sql string, args ...any) query.Statement {
	return query.New(sql, args, func(found pgx.Rows) (err error) {
		*into, err = pgx.CollectExactlyOneRow(found, pgx.RowToStructByPos[T])
		return err
	})
}

// Reads answers queries for the state, for operators.
type Reads struct {
	query.DB
	List []projections.Projection // of this binary
}

// Outbox reads all partitions in one snapshot.
func (r *Reads) Outbox(ctx context.Context) (o Outbox, err error) {
	err = r.ForSystem().Snapshot(ctx, query.Viewer{Operator: true}, o.Statement())
	return o, err
}
