package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// inBatchingTx runs a transaction with a table n of different numbers, and returns its error.
func inBatchingTx(t *testing.T, url string, run func(ctx context.Context, tx *BatchingTx, trips *int) error) error {
	t.Helper()
	trips := 0
	pool, err := Open(t.Context(), Config{URL: url, Tracer: localtest.RoundTrips(func(*pgx.Conn, []string) { trips++ })})
	must.OK(t, err)
	defer pool.Close()
	return InTx(t.Context(), pool, func(inner pgx.Tx) error {
		if _, err := inner.Exec(t.Context(), `CREATE TEMP TABLE n (n int PRIMARY KEY) ON COMMIT DROP`); err != nil {
			return err
		}
		return run(t.Context(), &BatchingTx{Tx: inner}, &trips)
	})
}

const (
	addNumber    = `INSERT INTO n VALUES ($1)`
	countNumbers = `SELECT count(*) FROM n`
)

func TestQueuedStatementsShareTheRoundTripOfTheNextOne(t *testing.T) {
	err := inBatchingTx(t, localtest.Migrated(t, Migrate), func(ctx context.Context, tx *BatchingTx, trips *int) error {
		var added int
		for name, send := range map[string]func() error{
			"QueryRow": func() error {
				var n int
				return errors.Join(tx.QueryRow(ctx, countNumbers).Scan(&n), not(n == added))
			},
			"Query": func() error {
				rows, err := tx.Query(ctx, countNumbers)
				if err != nil {
					return err
				}
				n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
				return errors.Join(err, not(n == added))
			},
			"Exec": func() error {
				tag, err := tx.Exec(ctx, `UPDATE n SET n = n`)
				return errors.Join(err, not(int(tag.RowsAffected()) == added))
			},
			"SendBatch": func() error {
				var n int
				b := &pgx.Batch{}
				b.Queue(countNumbers).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
				return errors.Join(tx.SendBatch(ctx, b).Close(), not(n == added))
			},
			"Flush": func() error { return tx.Flush(ctx) },
		} {
			for range 2 {
				added++
				tx.Queue("adding", addNumber, added)
			}
			before := *trips
			if err := send(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := *trips - before; got != 1 {
				t.Errorf("%s took %d round trips with two queued statements, want 1", name, got)
			}
			if err := send(); err != nil { // without a queued statement
				t.Errorf("%s alone: %v", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func not(so bool) error {
	if so {
		return nil
	}
	return errors.New("it does not see the queued statements before it")
}

// The caller of a statement learns that a queued one failed, and which; the transaction is rolled back.
func TestAFailedQueuedStatementFailsTheNextOne(t *testing.T) {
	url := localtest.Migrated(t, Migrate)
	for name, send := range map[string]func(context.Context, *BatchingTx) error{
		"QueryRow": func(ctx context.Context, tx *BatchingTx) error {
			var n int
			return tx.QueryRow(ctx, countNumbers).Scan(&n)
		},
		"Query": func(ctx context.Context, tx *BatchingTx) error {
			rows, err := tx.Query(ctx, countNumbers)
			rows.Close()
			return errors.Join(err, rows.Err())
		},
		"Exec": func(ctx context.Context, tx *BatchingTx) error {
			_, err := tx.Exec(ctx, `UPDATE n SET n = n`)
			return err
		},
		"SendBatch": func(ctx context.Context, tx *BatchingTx) error {
			b := &pgx.Batch{}
			b.Queue(countNumbers)
			return tx.SendBatch(ctx, b).Close()
		},
		"a row of SendBatch": func(ctx context.Context, tx *BatchingTx) error {
			b := &pgx.Batch{}
			b.Queue(countNumbers)
			res := tx.SendBatch(ctx, b)
			defer res.Close()
			var n int
			return res.QueryRow().Scan(&n)
		},
		"Begin":  func(ctx context.Context, tx *BatchingTx) error { _, err := tx.Begin(ctx); return err },
		"Flush":  func(ctx context.Context, tx *BatchingTx) error { return tx.Flush(ctx) },
		"Commit": func(ctx context.Context, tx *BatchingTx) error { return tx.Commit(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			var failed error
			err := inBatchingTx(t, url, func(ctx context.Context, tx *BatchingTx, _ *int) error {
				tx.Queue("adding a number", addNumber, 1)
				tx.Queue("adding it again", addNumber, 1)
				tx.Queue("adding another", addNumber, 2)
				failed = send(ctx, tx)
				return failed
			})
			if SQLState(failed) != UniqueViolation || !strings.Contains(failed.Error(), "adding it again: ") {
				t.Errorf("the error is %v, want a unique violation of the second statement", failed)
			}
			if !errors.Is(err, failed) {
				t.Errorf("the transaction ended with %v", err)
			}
		})
	}
}
