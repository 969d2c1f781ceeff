package tracing

import (
	"context"
	"strings"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/codes"
	metric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
)

// Statements returns a tracer of the statements that run under a sampled span; the statements of other loops have no
// span. The name of a span is the beginning of its statement, which is a constant of the program.
func (t *Tracing) Statements() pgx.QueryTracer {
	return statements{otelpgx.NewTracer(otelpgx.WithTracerProvider(reticent{TracerProvider: t.provider}),
		otelpgx.WithMeterProvider(metric.NewMeterProvider()),
		otelpgx.WithDisableConnectionDetailsInAttributes(), otelpgx.WithDisableSQLStatementInAttributes(),
		otelpgx.WithDisableAcquireTracer(),
		otelpgx.WithTrimSQLInSpanName(), otelpgx.WithSpanNameFunc(statementName), otelpgx.WithDisableQuerySpanNamePrefix())}
}

// maxStatementName bounds the name of a span.
const maxStatementName = 60

func statementName(sql string) string {
	name := strings.Join(strings.Fields(sql[:min(len(sql), 4*maxStatementName)]), " ")
	return strings.ToValidUTF8(name[:min(len(name), maxStatementName)], "")
}

type statements struct{ *otelpgx.Tracer }

// TraceBatchQuery makes no span: a batch of statements is one span, whatever its size.
func (statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TracePrepareStart makes no span: the statement that is prepared has one.
func (statements) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	return ctx
}

// TracePrepareEnd follows TracePrepareStart.
func (statements) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

// reticent makes spans without the texts of errors: a server's error may repeat a value. SQLSTATE remains.
type reticent struct{ trace.TracerProvider }

// Tracer implements trace.TracerProvider.
func (r reticent) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	return reticentTracer{r.TracerProvider.Tracer(name, options...)}
}

type reticentTracer struct{ trace.Tracer }

// Start implements trace.Tracer.
func (r reticentTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := r.Tracer.Start(ctx, name, options...)
	quiet := reticentSpan{span}
	return trace.ContextWithSpan(ctx, quiet), quiet
}

type reticentSpan struct{ trace.Span }

// RecordError implements trace.Span.
func (reticentSpan) RecordError(error, ...trace.EventOption) {}

// SetStatus implements trace.Span.
func (s reticentSpan) SetStatus(code codes.Code, _ string) { s.Span.SetStatus(code, "") }
