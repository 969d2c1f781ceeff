package pgpipe_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/tier"
)

// PostgreSQL truncates long names. Topics with a long prefix still get their own tables.
func TestEachTopicHasItsTables(t *testing.T) {
	for _, length := range []int{0, 40, 100} {
		owner, _ := database(t)
		cfg := pgpipe.Config{DB: owner, TopicPrefix: strings.Repeat("p", length)}
		if err := pgpipe.Ensure(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if existing := number(t, owner, `SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'pipe\_%'`); int(existing) != 2*len(events.Topics()) {
			t.Errorf("with a prefix of %d letters %d topics have %d tables", length, len(events.Topics()), existing)
		}
	}
}

// An unlogged table would lose records that exist only in the pipe (usage.commands) in a crash.
// FindDangers checks each of the pipe's tables.
func TestUnloggedTablesOfThePipeAreFound(t *testing.T) {
	tier.AtSize(t)
	url, owner := migrated(t)
	cfg := pgpipe.Config{DB: owner, TopicPrefix: "Safe." + strings.Repeat("and.long", 8)}
	dangers := func() (found []string) {
		t.Helper()
		list, err := postgres.FindDangers(t.Context(), url, cfg.Tables()...)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			found = append(found, d.Name+": "+d.Found)
		}
		return found
	}
	if found := dangers(); len(found) > 0 {
		t.Errorf("before the tables exist: %v", found)
	}
	if err := pgpipe.Ensure(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	rows, err := owner.QueryContext(t.Context(), `SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'pipe\_%' ORDER BY relname`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var existing []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		existing = append(existing, name)
	}
	if known := slices.Sorted(slices.Values(cfg.Tables())); rows.Err() != nil || len(existing) == 0 || !slices.Equal(known, existing) {
		t.Errorf("checked tables %v; existing tables %v, %v", known, existing, rows.Err())
	}
	for _, name := range existing {
		exec(t, owner, `ALTER TABLE `+name+` SET UNLOGGED`)
		if found := dangers(); !slices.Equal(found, []string{"unlogged: the table " + name + " is unlogged"}) {
			t.Errorf("%s: %v", name, found)
		}
		exec(t, owner, `ALTER TABLE `+name+` SET LOGGED`)
	}
	if found := dangers(); len(found) > 0 {
		t.Errorf("all tables logged again: %v", found)
	}
}
