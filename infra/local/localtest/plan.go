package localtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Plan gives the plan that a session would run a statement by, whatever its
// parameters are: that of a session which keeps its plans.
func Plan(t testing.TB, conn *pgx.Conn, sql string) string {
	t.Helper()
	d, err := conn.Prepare(t.Context(), "planned", sql)
	if err != nil {
		t.Fatal(err)
	}
	nothing := strings.TrimSuffix(strings.Repeat("NULL, ", len(d.ParamOIDs)), ", ")
	execute := "planned"
	if nothing != "" {
		execute = fmt.Sprintf("planned (%s)", nothing)
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
