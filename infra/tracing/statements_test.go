package tracing

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/codes"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// The spans of statements hold no parameter, no text of an error, no address and no password, also if statements fail.
func TestStatementsHoldNoValues(t *testing.T) {
	x := newTraced(t, 1, nil)
	target := localtest.Migrated(t, postgres.Migrate)
	u, err := url.Parse(target)
	must.OK(t, err)
	secret, _ := u.User.Password()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: target, ApplicationName: "canary", Tracer: x.Statements()})
	must.OK(t, err)
	defer pool.Close()
	must.Exec(t, pool, `SELECT 1`)
	if len(x.spans()) != 0 {
		t.Errorf("a statement without a trace has the spans %v", x.spans())
	}
	ctx, root := x.tracer.Start(context.Background(), "root")
	if _, err := pool.Exec(ctx, "SELECT\n  $1::text", "canary-parameter"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `SELECT $1::text::uuid`, "canary-fault"); err == nil {
		t.Fatal("a text is a UUID")
	}
	b := &pgx.Batch{}
	for range 100 {
		b.Queue(`SELECT $1::text`, "canary-batch")
	}
	must.OK(t, pool.SendBatch(ctx, b).Close())
	root.End()
	by := x.spans()
	if s := by["SELECT $1::text"]; len(s) != 1 || s[0].Parent.SpanID() != root.SpanContext().SpanID() {
		t.Errorf("the statement has the spans %v, among %v", s, by)
	}
	if s := by["SELECT $1::text::uuid"]; len(s) != 1 || s[0].Status.Code != codes.Error ||
		!strings.Contains(fmt.Sprint(s[0].Attributes), "22P02") {
		t.Errorf("the failed statement has the spans %+v", s)
	}
	if n := len(x.to.GetSpans()); n > 8 {
		t.Errorf("%d spans: a batch is one", n)
	}
	for _, s := range x.to.GetSpans() {
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, "canary") || secret != "" && strings.Contains(text, secret) {
			t.Errorf("a span holds a value: %s", text)
		}
	}
}
