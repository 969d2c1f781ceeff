package localtest

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// RoundTrips is a tracer that is called before each round trip of a pool, with the connection and the statements that are sent: one, or
// those of a batch. It is not called for COPY.
type RoundTrips func(conn *pgx.Conn, statements []string)

// TraceQueryStart implements pgx.QueryTracer.
func (r RoundTrips) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r(conn, []string{data.SQL})
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (RoundTrips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (r RoundTrips) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	statements := make([]string, len(data.Batch.QueuedQueries))
	for i, q := range data.Batch.QueuedQueries {
		statements[i] = q.SQL
	}
	r(conn, statements)
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (RoundTrips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (RoundTrips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
