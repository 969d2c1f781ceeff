package pgpipe_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// PostgreSQL truncates long names. Topics with a long prefix still get their own tables.
func TestEachTopicHasItsTables(t *testing.T) {
	for _, length := range []int{0, 40, 100} {
		owner, _ := database(t)
		cfg := pgpipe.Config{DB: owner, TopicPrefix: strings.Repeat("p", length)}
		must.OK(t, pgpipe.Ensure(t.Context(), cfg))
		if existing := number(t, owner, `SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'pipe\_%'`); int(
			existing) != 2*len(events.Topics()) {
			t.Errorf("with a prefix of %d letters %d topics have %d tables", length, len(events.Topics()), existing)
		}
	}
}

// An unlogged table would lose records that exist only in the pipe (usage.commands) in a crash.
// FindDangers checks each of the pipe's tables.
func TestUnloggedTablesOfThePipeAreFound(t *testing.T) {
	url, owner := migrated(t)
	cfg := pgpipe.Config{DB: owner, TopicPrefix: "Safe." + strings.Repeat("and.long", 8)}
	dangers := func() (found []string) {
		t.Helper()
		list, err := postgres.FindDangers(t.Context(), url, cfg.Tables()...)
		must.OK(t, err)
		for _, d := range list {
			if !d.Warns { // the tests' login creates the roles
				found = append(found, d.Name+": "+d.Found)
			}
		}
		return found
	}
	if found := dangers(); len(found) > 0 {
		t.Errorf("before the tables exist: %v", found)
	}
	must.OK(t, pgpipe.Ensure(t.Context(), cfg))
	rows, err := owner.QueryContext(t.Context(),
		`SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'pipe\_%' ORDER BY relname`)
	must.OK(t, err)
	defer rows.Close()
	var existing []string
	for rows.Next() {
		var name string
		must.OK(t, rows.Scan(&name))
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

// TestTrim checks that only old rows that every group has passed are deleted.
func TestTrim(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	age := func(by string) {
		exec(t, owner, "UPDATE pipe_usage_raw SET created_at = created_at - $1::interval", by)
	}
	left := func() int64 { return number(t, owner, "SELECT count(*) FROM pipe_usage_raw") }
	trim := func() {
		t.Helper()
		if _, err := pgpipe.Trim(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	rows := tier.Draws(t, 60, 1500)
	for i := range rows {
		publish(t, pub, i, 1)
	}
	slow := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "slow", MaxRecords: 10})
	held, _ := receive(t, slow)
	readAll(t, cfg, "fast", rows)
	age("2 hours")
	if trim(); left() != int64(rows) {
		t.Fatalf("%d rows are left; a group has not read them", left())
	}
	held.Ack()
	for n := 10; n < rows; {
		msg, records := receive(t, slow)
		n += len(records)
		msg.Ack()
	}
	for lag := int64(1); lag > 0; {
		lags, err := pgpipe.Lag(t.Context(), cfg, "slow")
		must.OK(t, err)
		lag = lags[events.TopicUsageRaw]
	}
	publish(t, pub, rows, 1)
	if trim(); left() != 1 {
		t.Errorf("%d rows are left, want only the new one", left())
	}
	if age("2 hours"); left() != 1 {
		t.Fatal("the last row was deleted")
	}
	exec(t, owner, "INSERT INTO pipe_offsets_usage_raw VALUES ('gone', 0, '0')")
	if trim(); left() != 1 {
		t.Error("a row that a group has not read was deleted before the retention")
	}
	age("8 days")
	if trim(); left() != 0 {
		t.Error("an abandoned group keeps rows for ever")
	}
}

func readAll(t testing.TB, cfg pgpipe.Config, group string, n int) {
	t.Helper()
	s, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: cfg, Group: group})
	must.OK(t, err)
	defer s.Close()
	messages, err := s.Subscribe(context.Background(), "usage.raw")
	must.OK(t, err)
	for seen := 0; seen < n; {
		msg, records := receive(t, messages)
		seen += len(records)
		msg.Ack()
	}
}
