package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
)

// grantsTogether: an instance whose grant meets that of another one has its roles, too.
func grantsTogether(l *loginTrial) {
	l.create("postgres", `CREATE ROLE $W LOGIN PASSWORD 'p'`, `CREATE ROLE meterplex_worker NOLOGIN`)
	logins := Logins{Migrates: l.url("postgres"), Works: l.url("$W")}
	if err := GrantRoles(l.Context(), logins, slog.Default()); err == nil ||
		!strings.Contains(err.Error(), "meterplex_tenant are missing") {
		l.Errorf("without a role: %v", err)
	}
	l.exec(`CREATE ROLE meterplex_tenant NOLOGIN`)
	l.exec(`BEGIN`)
	l.exec(`GRANT meterplex_worker, meterplex_tenant TO $W`)
	granted := make(chan error, 1)
	go func() { granted <- GrantRoles(l.Context(), logins, slog.Default()) }()
	must.Until(l.T, "the grant waits for the other one", func() (waits bool) {
		l.exec(`SELECT pg_stat_clear_snapshot()`) // a transaction sees the activity of its first look
		err := l.root.QueryRow(l.Context(),
			`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'GRANT %')`).Scan(&waits)
		return err == nil && waits
	})
	l.exec(`COMMIT`)
	if err := <-granted; err != nil {
		l.Error(err)
	}
}

// memberships compares the dangers that are found with the statements that the server
// allows: of a role that is a member of a second one, which is a member of a third.
func memberships(l *loginTrial) {
	l.create("postgres", `CREATE ROLE w NOINHERIT`, `CREATE ROLE b NOINHERIT`, `CREATE ROLE o`,
		`CREATE ROLE $W LOGIN PASSWORD 'p' CREATEROLE`)
	if _, err := Migrate(l.Context(), l.url("postgres")); err != nil {
		l.Fatal(err)
	}
	l.exec(`GRANT DELETE ON event_log TO o`)
	l.exec(`ALTER ROLE o BYPASSRLS`)
	becomes, acts := 0, 0
	for _, first := range l.options() {
		for _, second := range l.options() {
			l.exec(`GRANT b TO w ` + first)
			l.exec(`GRANT o TO b ` + second)
			wantBecomes, wantActs := l.tries()
			found := l.found()
			gotBecomes, gotActs := slices.Contains(found, "bypassrls"), slices.Contains(found, "grants")
			if gotBecomes != wantBecomes || gotActs != wantActs {
				l.Errorf("w in b %s, b in o %s: becomes o %v, found %v; may delete %v, found %v", first, second, wantBecomes, gotBecomes,
					wantActs, gotActs)
			}
			if wantBecomes {
				becomes++
			}
			if wantActs {
				acts++
			}
			l.exec(`REVOKE b FROM w`)
			l.exec(`REVOKE o FROM b`)
		}
	}
	if all := len(l.options()) * len(l.options()); becomes == 0 || acts < becomes || l.major >= splitSetOption && (becomes == acts ||
		acts == all) {
		l.Errorf("of %d memberships %d let it become o, %d let it delete", all, becomes, acts)
	}
	l.exec(`ALTER ROLE w CREATEROLE`)
	if found := l.found(); slices.Contains(found, "owner") != (l.major < splitSetOption) {
		l.Errorf("with CREATEROLE it may do: %v", found)
	}
}

// options are those that a membership can have.
func (l *loginTrial) options() (all []string) {
	if l.major < splitSetOption {
		return []string{"", "WITH ADMIN OPTION"}
	}
	for n := range 8 {
		all = append(all, fmt.Sprintf("WITH ADMIN %v, INHERIT %v, SET %v", n&1 != 0, n&2 != 0, n&4 != 0))
	}
	return all
}

// tries has w try every way to become o, and to delete from the log.
func (l *loginTrial) tries() (becomes, acts bool) {
	l.Helper()
	set := ""
	if l.major >= splitSetOption {
		set = " WITH SET TRUE"
	}
	ways := []string{"GRANT b TO w" + set, "SET ROLE b", "GRANT o TO w" + set, "SET ROLE o"}
	for n := range 1 << len(ways) {
		taken := []string{"SET SESSION AUTHORIZATION w"}
		for i, way := range ways {
			if n&(1<<i) != 0 {
				taken = append(taken, way)
			}
		}
		tx, err := l.root.Begin(l.Context())
		must.OK(l, err)
		if _, err := tx.Exec(l.Context(), strings.Join(taken, ";"), pgx.QueryExecModeSimpleProtocol); err == nil {
			var role string
			var may bool
			must.OK(l, tx.QueryRow(l.Context(), `SELECT current_user, has_table_privilege('event_log', 'DELETE')`).Scan(&role, &may))
			becomes, acts = becomes || role == "o", acts || may
		}
		must.OK(l, tx.Rollback(context.Background()))
	}
	return becomes, acts
}

// found lists the dangers of w.
func (l *loginTrial) found() (words []string) {
	l.Helper()
	list, err := findDangers(l.Context(), l.url("$W"), "w", TenantRole)
	must.OK(l, err)
	for _, d := range list {
		if !d.Warns { // $W creates the roles
			words = append(words, d.Name)
		}
	}
	return words
}
