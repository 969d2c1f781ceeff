package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// BatchingTx is a transaction whose queued statements share a round trip with the next statement that is not queued. A transaction that
// holds locks for which others wait so ends earlier. The error of a queued statement is that of the statement that sends it.
type BatchingTx struct {
	pgx.Tx
	queued []*pgx.QueuedQuery
	names  []string // of the queued statements, for their errors
}

// Queue adds a statement whose result is not needed. Flush sends it at the latest. Its error begins with doing.
func (t *BatchingTx) Queue(doing, sql string, args ...any) {
	t.queued, t.names = append(t.queued, &pgx.QueuedQuery{SQL: sql, Arguments: args}), append(t.names, doing)
}

// Flush sends the queued statements, in their order.
func (t *BatchingTx) Flush(ctx context.Context) error {
	if len(t.queued) == 0 {
		return nil
	}
	return t.SendBatch(ctx, &pgx.Batch{}).Close()
}

// SendBatch sends the queued statements before those of b.
func (t *BatchingTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if len(t.queued) == 0 {
		return t.Tx.SendBatch(ctx, b)
	}
	queued, names := t.queued, t.names
	t.queued, t.names = nil, nil
	res := t.Tx.SendBatch(ctx, &pgx.Batch{QueuedQueries: slices.Concat(queued, b.QueuedQueries)})
	for _, doing := range names {
		if _, err := res.Exec(); err != nil {
			return failedBatch{res, fmt.Errorf("%s: %w", doing, err)}
		}
	}
	return res
}

// failedBatch is the result of a batch that failed at a queued statement.
type failedBatch struct {
	pgx.BatchResults
	err error
}

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return failedRows{err: f.err}, f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failedRows{err: f.err} }
func (f failedBatch) Close() error {
	_ = f.BatchResults.Close() // the same error, or one that follows from it
	return f.err
}

type failedRows struct {
	pgx.Rows
	err error
}

func (f failedRows) Close()            {}
func (f failedRows) Err() error        { return f.err }
func (f failedRows) Next() bool        { return false }
func (f failedRows) Scan(...any) error { return f.err }

// one sends the queued statements and another one.
func (t *BatchingTx) one(ctx context.Context, sql string, args []any) pgx.BatchResults {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return t.SendBatch(ctx, b)
}

// Exec sends the queued statements first.
func (t *BatchingTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if len(t.queued) == 0 {
		return t.Tx.Exec(ctx, sql, args...)
	}
	res := t.one(ctx, sql, args)
	tag, err := res.Exec()
	if closing := res.Close(); err == nil {
		err = closing
	}
	return tag, err
}

// Query sends the queued statements first.
func (t *BatchingTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if len(t.queued) == 0 {
		return t.Tx.Query(ctx, sql, args...)
	}
	res := t.one(ctx, sql, args)
	rows, err := res.Query()
	if err != nil {
		_ = res.Close()
		return failedRows{err: err}, err
	}
	return &batchedRows{rows, res, nil}, nil
}

// batchedRows are the rows of the last statement of a batch, and end the batch.
type batchedRows struct {
	pgx.Rows
	batch pgx.BatchResults
	err   error // of the batch's end
}

// Next implements pgx.Rows.
func (r *batchedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close implements pgx.Rows.
func (r *batchedRows) Close() {
	r.Rows.Close()
	if r.batch != nil {
		r.err, r.batch = r.batch.Close(), nil
	}
}

// Err implements pgx.Rows.
func (r *batchedRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// QueryRow sends the queued statements first.
func (t *BatchingTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if len(t.queued) == 0 {
		return t.Tx.QueryRow(ctx, sql, args...)
	}
	rows, _ := t.Query(ctx, sql, args...) // its error is that of the rows
	return OneRow{rows}
}

// OneRow reads the first of some rows, and closes them.
type OneRow struct{ pgx.Rows }

// Scan implements pgx.Row.
func (r OneRow) Scan(into ...any) error {
	defer r.Close()
	if !r.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.Rows.Scan(into...); err != nil {
		return err
	}
	r.Close()
	return r.Err()
}

// Begin sets a savepoint, behind the queued statements.
func (t *BatchingTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// Commit sends the queued statements first.
func (t *BatchingTx) Commit(ctx context.Context) error {
	if err := t.Flush(ctx); err != nil {
		return err
	}
	return t.Tx.Commit(ctx)
}

// CopyFrom sends the queued statements first.
func (t *BatchingTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := t.Flush(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, from)
}
