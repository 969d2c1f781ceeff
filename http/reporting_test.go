package http_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// reported runs a statement as the role of reporting tools.
func (w *testService) reported(as, sql string) (got string, err error) {
	w.Helper()
	conn := w.superuser()
	_, err = conn.Exec(w.Context(), "SET ROLE "+as)
	w.must(err)
	err = conn.QueryRow(w.Context(), sql).Scan(&got)
	return got, err
}

// A sum over the view counts each event once, also while a rebuild holds the same rows, and names what it counts.
func TestP5_ReportingViewsCountLiveRowsOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.rejectionsAt(a, "gone", 1, time.Now())
	w.accept(a, event("e", map[string]any{"amount": 7}))
	w.fold()
	const sum, letters = `SELECT string_agg(format('%s %s %s %s', tenant, feature_name, plan, amount), ',') FROM reporting_usage`,
		`SELECT count(*)::text FROM reporting_dead_letters WHERE code = 'feature_not_found'`
	for _, table := range []string{"", "usage_aggregates", "dead_letter_events"} {
		if table != "" { // a rebuild
			var columns string
			w.must(w.pool.QueryRow(t.Context(), `SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE table_name = $1
				AND is_generated = 'NEVER' AND column_name <> 'generation'`, table).Scan(&columns))
			w.exec(fmt.Sprintf(`INSERT INTO %[1]s (generation, %[2]s) SELECT 2, %[2]s FROM %[1]s WHERE generation = 1`, table, columns))
		}
		if got, err := w.reported("meterplex_reporting", sum); err != nil || got != "A Calls basic 7" {
			t.Errorf("with two generations of %q: %q, %v", table, got, err)
		}
		if got, err := w.reported("meterplex_reporting", letters); err != nil || got != "1" {
			t.Errorf("with two generations of %q: %s dead letters, %v", table, got, err)
		}
	}
	for _, table := range []string{"usage_aggregates", "tenants", "api_keys", "event_log", "event_log_rows", "projection_pointers",
		"adjustments"} {
		if got, err := w.reported("meterplex_reporting", fmt.Sprintf(`SELECT count(*)::text FROM %s`, table)); err == nil {
			t.Errorf("the role reads %s rows of %s", got, table)
		}
	}
	for _, role := range []string{"meterplex_tenant", "meterplex_worker"} {
		if got, err := w.reported(role, sum); err == nil {
			t.Errorf("%s reads the view: %s", role, got)
		}
	}
}

// Each statement of the page runs, as the role and with its rights only.
func TestTheStatementsOfTheReportingPageRun(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, event("e", map[string]any{"amount": 7}), old("u", 10))
	w.closed(a)
	page, err := os.ReadFile("../docs/how-to/report-by-sql.md")
	w.must(err)
	blocks := strings.Split(string(page), "```sql\n")[1:]
	for i, want := range []string{"7", "10"} {
		sql, _, _ := strings.Cut(blocks[i], "```")
		if got, err := w.reported("meterplex_reporting", `SELECT sum(`+[]string{"amount", "billable"}[i]+`)::text FROM (`+sql+
			`) report`); err != nil || got != want {
			t.Errorf("%s: %s, %v", sql, got, err)
		}
	}
	if len(blocks) != 2 {
		t.Errorf("the page has %d statements", len(blocks))
	}
}
