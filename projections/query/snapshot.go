package query

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Errors of reads; compare with errors.Is. Each is a *domain.Error, too.
var (
	ErrNotFound         error = &domain.Error{Code: "not_found", Message: "There is no such thing, or it is another's"}
	ErrProjectionBehind error = &domain.Error{Code: "projection_behind", Message: "The position has not been folded yet; ask again, or wait longer by Prefer: wait=N"}
	ErrPositionInvalid  error = &domain.Error{Code: "position_invalid", Message: "minPosition is not a position of this tenant's log"}
	ErrOverloaded       error = &domain.Error{Code: "overloaded", Message: "More is being read than the database answers in time; send the same again later"}
	ErrCursorInvalid    error = &domain.Error{Code: "cursor_invalid", Message: "The cursor is not one that this list gave; begin again without it"}
)

// refused returns a refusal with details of this case.
type refused struct {
	detail *domain.Error
	kind   error
}

func (r *refused) Error() string   { return r.detail.Error() }
func (r *refused) Unwrap() []error { return []error{r.detail, r.kind} }

// RefusedAs returns a refusal of a kind, such as ErrNotFound, with a message of its own.
func RefusedAs(code, message string, kind error) error {
	return &refused{&domain.Error{Code: code, Message: message}, kind}
}

func PositionInvalid(message string) error {
	return RefusedAs("position_invalid", message, ErrPositionInvalid)
}

// Wait asks for an answer that includes every event recorded up to MinPosition,
// waiting at most For. The zero value does not wait.
type Wait struct {
	MinPosition *events.Position
	For         time.Duration
}

// A snapshot's first statements. They travel with the queries, in one round trip.
const (
	beginSnapshot = `begin isolation level repeatable read read only`
	becomeTenant  = `set local role meterplex_tenant`
	nameTenant    = `select set_config('meterplex.tenant_id', $1, true)`
	endSnapshot   = `commit`
)

// Statement is a statement of a snapshot and the function that reads its rows.
type Statement struct {
	SQL  string
	Args []any
	Scan func(pgx.Rows) error
}

// New returns a query of a snapshot.
func New(sql string, args []any, scan func(pgx.Rows) error) Statement {
	return Statement{sql, args, scan}
}

// patience is how long a read waits for a connection: a longer wait means a queue that
// cannot be served in time.
const patience = time.Second

// connection takes a connection from the pool, or refuses.
func (d *DB) connection(ctx context.Context) (*pgxpool.Conn, error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := d.Pool.Acquire(soon)
	if err == nil {
		return conn, nil
	}
	if soon.Err() != nil && ctx.Err() == nil {
		return nil, ErrOverloaded
	}
	return nil, fmt.Errorf("take a connection to read: %w", err)
}

// Snapshot runs the queries in one read-only transaction, under the viewer's
// role, in one round trip.
func (d *DB) Snapshot(ctx context.Context, v Viewer, queries ...Statement) error {
	conn, err := d.connection(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // a connection that is left inside a transaction is closed by the pool
	results := conn.SendBatch(ctx, snapshotBatch(v, queries))
	if err := scanBatch(results, v, queries); err != nil {
		return errors.Join(err, results.Close())
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("end a snapshot: %w", err)
	}
	return nil
}

// Within runs several steps in one read-only transaction, under the viewer's role.
func (d *DB) Within(ctx context.Context, v Viewer, read func(pgx.Tx) error) error {
	conn, err := d.connection(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		if !v.Operator {
			b := new(pgx.Batch)
			b.Queue(becomeTenant)
			b.Queue(nameTenant, v.TenantID.String())
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return fmt.Errorf("become a tenant: %w", err)
			}
		}
		return read(tx)
	})
}

// Run runs one query of within.
func Run(ctx context.Context, tx pgx.Tx, q Statement) error {
	rows, err := tx.Query(ctx, q.SQL, q.Args...)
	if err == nil {
		err = q.Scan(rows)
		rows.Close()
	}
	if err != nil {
		return fmt.Errorf("read in a snapshot: %w", err)
	}
	return nil
}

func snapshotBatch(v Viewer, queries []Statement) *pgx.Batch {
	b := new(pgx.Batch)
	b.Queue(beginSnapshot)
	if !v.Operator {
		b.Queue(becomeTenant)
		b.Queue(nameTenant, v.TenantID.String())
	}
	for _, q := range queries {
		b.Queue(q.SQL, q.Args...)
	}
	b.Queue(endSnapshot)
	return b
}

func scanBatch(results pgx.BatchResults, v Viewer, queries []Statement) error {
	opening := 1
	if !v.Operator {
		opening = 3
	}
	for range opening {
		if _, err := results.Exec(); err != nil {
			return fmt.Errorf("begin a snapshot: %w", err)
		}
	}
	for _, q := range queries {
		rows, err := results.Query()
		if err == nil {
			err = q.Scan(rows)
			rows.Close()
		}
		if err != nil {
			return fmt.Errorf("read in a snapshot: %w", err)
		}
	}
	return nil
}

// Each scans every row by a function.
func Each(scan func(pgx.Rows) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// maxPage bounds a page of any list: a larger request is cut to it.
const maxPage = 1000

func PageSize(limit int) int { return max(1, min(limit, maxPage)) }

// Storable reports whether the database can hold the text at all. A text that it cannot
// hold is in no table, and a query for it would be a fault.
func Storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
