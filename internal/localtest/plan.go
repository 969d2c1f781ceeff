package localtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Plan returns the generic plan of a statement, as a session with kept plans would run it for any
// parameters.
func Plan(t testing.TB, conn *pgx.Conn, sql string) string {
	t.Helper()
	d, err := conn.Prepare(t.Context(), "planned", sql)
	if err != nil {
		t.Fatal(err)
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(d.ParamOIDs)), ", ")
	execute := "planned"
	if nulls != "" {
		execute = fmt.Sprintf("planned (%s)", nulls)
	}
	rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE "+execute, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Deallocate(t.Context(), "planned"); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// LogByKey reports whether a plan looks up rows of the log by their key, partition and position. A join by merging, e.g., would read all of
// them.
func LogByKey(plan string) bool {
	_, log, _ := strings.Cut(plan, "on event_log_rows")
	_, condition, _ := strings.Cut(log, "Index Cond: ")
	condition, _, _ = strings.Cut(condition, "\n")
	return strings.HasPrefix(condition, "((partition = ") && strings.Contains(condition, `"position" = `)
}
