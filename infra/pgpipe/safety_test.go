package pgpipe_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
)

// PostgreSQL cuts long names off: topics with a long prefix have tables of their own
// all the same.
func TestEachTopicHasItsTables(t *testing.T) {
	for _, length := range []int{0, 40, 100} {
		owner, _ := database(t)
		cfg := pgpipe.Config{DB: owner, TopicPrefix: strings.Repeat("p", length)}
		if err := pgpipe.Ensure(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if made := number(t, owner, `SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'pipe\_%'`); int(made) != 2*len(events.Topics()) {
			t.Errorf("with a prefix of %d letters %d topics have %d tables", length, len(events.Topics()), made)
		}
	}
}

// What comes by the pipe alone (usage.commands) is gone after a crash where its table
// is unlogged: each of the pipe's tables is looked at.
func TestUnloggedTablesOfThePipeAreFound(t *testing.T) {
	url, owner := migrated(t)
	cfg := pgpipe.Config{DB: owner, TopicPrefix: "Safe." + strings.Repeat("and.long", 8)}
	words := func() (found []string) {
		t.Helper()
		dangers, err := postgres.FindDangers(t.Context(), url, cfg.Tables()...)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dangers {
			found = append(found, d.Name+": "+d.Found)
		}
		return found
	}
	if found := words(); len(found) > 0 {
		t.Errorf("before there are any: %v", found)
	}
	if err := pgpipe.Ensure(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	rows, err := owner.QueryContext(t.Context(), `SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'pipe\_%' ORDER BY relname`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var made []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		made = append(made, name)
	}
	if known := slices.Sorted(slices.Values(cfg.Tables())); rows.Err() != nil || len(made) == 0 || !slices.Equal(known, made) {
		t.Errorf("looked at are %v; made are %v, %v", known, made, rows.Err())
	}
	for _, name := range made {
		exec(t, owner, `ALTER TABLE `+name+` SET UNLOGGED`)
		if found := words(); !slices.Equal(found, []string{"unlogged: the table " + name + " is unlogged"}) {
			t.Errorf("%s: %v", name, found)
		}
		exec(t, owner, `ALTER TABLE `+name+` SET LOGGED`)
	}
	if found := words(); len(found) > 0 {
		t.Errorf("all mended: %v", found)
	}
}
