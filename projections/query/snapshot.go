package query

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Errors of reads; compare with errors.Is. Each is a *domain.Error, too.
var (
	ErrNotFound         error = &domain.Error{Code: "not_found", Message: "Not found"}
	ErrProjectionBehind error = &domain.Error{Code: "projection_behind",
		Message: "The projection has not applied the position yet; retry, or wait longer by Prefer: wait=N"}
	ErrPositionInvalid error = &domain.Error{Code: "position_invalid", Message: "minPosition is not a position of this tenant's log"}
	ErrOverloaded      error = &domain.Error{Code: "overloaded", Message: "Overloaded: the database has too many reads; retry later"}
	ErrCursorInvalid   error = &domain.Error{Code: "cursor_invalid", Message: "The cursor is not of this list; start again without it"}
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

// Snapshot runs the queries in one read-only transaction, under the viewer's
// role, in one round trip.
func (d *DB) Snapshot(ctx context.Context, v Viewer, queries ...Statement) error {
	return d.connected(ctx, v, func(ctx context.Context, conn *pgx.Conn) error {
		results := conn.SendBatch(ctx, snapshotBatch(v, queries))
		if err := scanBatch(results, v, queries); err != nil {
			return errors.Join(err, results.Close())
		}
		if err := results.Close(); err != nil {
			return fmt.Errorf("end a snapshot: %w", err)
		}
		return nil
	})
}

// Within runs several steps in one read-only transaction, under the viewer's role. Their context ends if the read loses its seat.
func (d *DB) Within(ctx context.Context, v Viewer, read func(context.Context, pgx.Tx) error) error {
	return d.connected(ctx, v, func(ctx context.Context, conn *pgx.Conn) error {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err != nil {
			return fmt.Errorf("begin to read: %w", err)
		}
		if !v.Operator {
			b := new(pgx.Batch)
			b.Queue(becomeTenant)
			b.Queue(nameTenant, v.TenantID.String())
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return fmt.Errorf("become a tenant: %w", err)
			}
		}
		if err := read(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
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

// RunAll runs queries of within, in one round trip.
func RunAll(ctx context.Context, tx pgx.Tx, queries ...Statement) error {
	b := new(pgx.Batch)
	for _, q := range queries {
		b.Queue(q.SQL, q.Args...)
	}
	results := tx.SendBatch(ctx, b)
	if err := scanQueries(results, queries); err != nil {
		return errors.Join(err, results.Close())
	}
	if err := results.Close(); err != nil {
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
	return scanQueries(results, queries)
}

func scanQueries(results pgx.BatchResults, queries []Statement) error {
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

// Into appends the value that a function reads from each row to a list.
func Into[T any](list *[]T, scan func(pgx.Rows) (T, error)) func(pgx.Rows) error {
	return Each(func(rows pgx.Rows) error {
		one, err := scan(rows)
		*list = append(*list, one)
		return err
	})
}

// Values appends the only column of each row to a list.
func Values[T any](list *[]T) func(pgx.Rows) error {
	return Into(list, func(rows pgx.Rows) (value T, err error) {
		err = rows.Scan(&value)
		return value, err
	})
}

// One scans the columns of the only row, if there is one.
func One(columns ...any) func(pgx.Rows) error {
	return Each(func(rows pgx.Rows) error { return rows.Scan(columns...) })
}

// Storable reports whether the database can hold the text at all. A text that it cannot
// hold is in no table, and a query for it would be a fault.
func Storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
