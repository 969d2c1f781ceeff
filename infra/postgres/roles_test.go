package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestEveryTableOfTenantsForcesRowLevelSecurity(t *testing.T) {
	pool, _ := openPool(t)
	rows, err := pool.Query(t.Context(), `SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
 WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
 AND has_table_privilege('meterplex_tenant', c.oid, 'SELECT')`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) != 0 {
		t.Fatalf("tenants may read tables without forced row level security: %v %v", names, err)
	}
}

func TestMigrateAgainChangesNothing(t *testing.T) {
	_, url := openPool(t)
	if n, err := Migrate(t.Context(), url); n != 0 || err != nil {
		t.Fatalf("%d migrations applied again, %v", n, err)
	}
}
