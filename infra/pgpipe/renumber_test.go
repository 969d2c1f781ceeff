package pgpipe_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
)

// restoreDump makes the pipe one that was restored from a dump: its transaction ids are of another server, which had issued more of them
// than this one. A restored row that was renumbered before keeps its id.
func restoreDump(t testing.TB, owner *sql.DB) {
	t.Helper()
	exec(t, owner, `UPDATE pipe_usage_raw SET transaction_id = (transaction_id::text::bigint + 5000000)::text::xid8
		WHERE transaction_id > '1'`)
	exec(t, owner, `UPDATE pipe_offsets_usage_raw
		SET last_processed_transaction_id = (last_processed_transaction_id::text::bigint + 5000000)::text::xid8
		WHERE last_processed_transaction_id > '1'`)
}

func renumber(t testing.TB, cfg pgpipe.Config) {
	t.Helper()
	must.OK(t, pgpipe.Renumber(t.Context(), cfg))
}

// readAs reads n records as a member of a group, which leaves after the last one.
func readAs(t testing.TB, cfg pgpipe.Config, group string, n int) string {
	t.Helper()
	s, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: cfg, Group: group})
	must.OK(t, err)
	defer s.Close() // commits the acknowledgement
	messages, err := s.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	return read(t, messages, n)
}

func lagOf(t testing.TB, cfg pgpipe.Config, group string) int64 {
	t.Helper()
	n, err := pgpipe.LagOf(t.Context(), cfg, group, events.TopicUsageRaw)
	must.OK(t, err)
	return n
}

// Rows that a dump brought are read once, in order, and before those of the new server: by each group from the first one that it had not
// passed. The database may be dumped and restored again.
func TestP1_RowsOfARestoredDumpAreRead(t *testing.T) {
	cfg, owner := config(t)
	p := newPublisher(t, cfg)
	defer p.Close()
	for _, value := range []string{"a", "b"} {
		send(t, p, value)
	}
	if got := readAs(t, cfg, "g", 2); got != "ab" {
		t.Fatalf("before the dump: read %s", got)
	}
	for _, value := range []string{"c", "d"} {
		send(t, p, value)
	}
	restoreDump(t, owner)
	send(t, p, "e") // before the first check
	renumber(t, cfg)
	send(t, p, "f")
	if lag := lagOf(t, cfg, "g"); lag != 4 {
		t.Fatalf("%d rows are to be read, want 4", lag)
	}
	if got := readAs(t, cfg, "g", 4); got != "cdef" {
		t.Errorf("read %s, want cdef", got)
	}
	if got := readAs(t, cfg, "late", 6); got != "abcdef" {
		t.Errorf("a new group read %s, want abcdef", got)
	}
	send(t, p, "g")
	renumber(t, cfg) // without a restore it changes no row
	restoreDump(t, owner)
	renumber(t, cfg)
	send(t, p, "h")
	for _, group := range []string{"g", "late"} {
		if lag := lagOf(t, cfg, group); lag != 2 {
			t.Fatalf("after the second restore %d rows are to be read by %s, want 2", lag, group)
		}
		if got := readAs(t, cfg, group, 2); got != "gh" {
			t.Errorf("after the second restore %s read %s, want gh", group, got)
		}
	}
	if got := readAs(t, cfg, "last", 8); got != "abcdefgh" {
		t.Errorf("after the second restore a new group read %s, want abcdefgh", got)
	}
}

// Rows that a group has not read are not deleted, before and after they get new transaction ids.
func TestTrimKeepsUnreadRowsOfARestoredDump(t *testing.T) {
	cfg, owner := config(t)
	p := newPublisher(t, cfg)
	defer p.Close()
	send(t, p, "a")
	readAs(t, cfg, "g", 1)
	send(t, p, "b")
	restoreDump(t, owner)
	send(t, p, "c")
	exec(t, owner, "UPDATE pipe_usage_raw SET created_at = created_at - interval '2 hours'")
	left := func() int64 { return number(t, owner, "SELECT count(*) FROM pipe_usage_raw") }
	trim := func() {
		t.Helper()
		if _, err := pgpipe.Trim(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	if trim(); left() != 3 {
		t.Errorf("before the rows were renumbered %d are left, want 3", left())
	}
	renumber(t, cfg)
	if trim(); left() != 2 {
		t.Fatalf("%d rows are left, want the 2 that the group has not read", left())
	}
	if got := readAs(t, cfg, "g", 2); got != "bc" {
		t.Errorf("read %s, want bc", got)
	}
	if trim(); left() != 0 {
		t.Errorf("%d rows are left that the group has read", left())
	}
}

// The old server's transaction ids may also be smaller than the new server's. Rows are given by their transaction ids, where f is an id
// that the new server has not issued; the value of a row is its place in the list, which is its offset. The last two rows are of the new
// server.
func TestP1_NoGroupLosesARowOfARestoredDump(t *testing.T) {
	for name, c := range map[string]struct {
		rows  []string // transaction ids
		group string   // its last row: transaction id and offset
		want  string
	}{
		"passed none":                            {[]string{"10", "20", "f1", "f2", "30", "40"}, "'0', 0", "123456"},
		"small id, new rows smaller":             {[]string{"50", "60", "f1", "f2", "30", "40"}, "'50', 1", "23456"},
		"small id, new rows greater":             {[]string{"10", "20", "f1", "f2", "30", "40"}, "'10', 1", "23456"},
		"great id":                               {[]string{"10", "20", "f1", "f2", "30", "40"}, "'f1', 3", "456"},
		"passed all":                             {[]string{"10", "20", "f1", "f2", "30", "40"}, "'f2', 4", "56"},
		"passed all, which are deleted":          {[]string{"", "", "", "", "30", "40"}, "'f2', 4", "56"},
		"passed rows of the new server":          {[]string{"10", "20", "f1", "f2", "30", "40"}, "'40', 6", "3456"},
		"a transaction that began earlier":       {[]string{"10", "f2", "f1", "f3", "30", "40"}, "'f1', 3", "23456"},
		"passed one that began later":            {[]string{"10", "f2", "f1", "f3", "30", "40"}, "'f2', 2", "456"},
		"only the place of another group is far": {[]string{"10", "20", "21", "22", "13", "14"}, "'20', 2", "3456"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, owner := config(t)
			p := newPublisher(t, cfg)
			defer p.Close()
			next := number(t, owner, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
			numbered := strings.NewReplacer("f", fmt.Sprint(next+1000))
			for i, id := range c.rows {
				send(t, p, fmt.Sprint(i+1))
				if id == "" {
					exec(t, owner, `DELETE FROM pipe_usage_raw WHERE "offset" = $1`, i+1)
					continue
				}
				exec(t, owner, `UPDATE pipe_usage_raw SET transaction_id = $2::text::xid8 WHERE "offset" = $1`, i+1, numbered.Replace(id))
			}
			exec(t, owner, fmt.Sprintf(`INSERT INTO pipe_offsets_usage_raw (consumer_group, last_processed_transaction_id, offset_acked)
				VALUES ('g', %s), ('other', '%d', 4)`,
				numbered.Replace(c.group), next+5_000_000))
			renumber(t, cfg)
			if lag := lagOf(t, cfg, "g"); int(lag) != len(c.want) {
				t.Fatalf("%d rows are to be read, want %s", lag, c.want)
			}
			if got := readAs(t, cfg, "g", len(c.want)); got != c.want {
				t.Errorf("read %s, want %s", got, c.want)
			}
		})
	}
}

// Several instances start at once on the restored database while others publish and read: no group loses a record.
func TestP1_InstancesRenumberARestoredDumpAtOnce(t *testing.T) {
	cfg, owner := config(t)
	p := newPublisher(t, cfg)
	defer p.Close()
	const old, more = 300, 60
	for i := range old {
		send(t, p, fmt.Sprintf("%03d ", i))
	}
	readAs(t, cfg, "g", 200)
	restoreDump(t, owner)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read := map[string]chan string{"g": make(chan string, 10_000), "fresh": make(chan string, 10_000)}
	var readers, others sync.WaitGroup
	for group, values := range read {
		s, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: cfg, Group: group, MaxRecords: 7})
		must.OK(t, err)
		defer s.Close()
		messages, err := s.Subscribe(ctx, "usage.raw")
		must.OK(t, err)
		readers.Go(func() { pass(messages, values) })
	}
	for range 4 {
		others.Go(func() {
			for range 3 {
				if err := pgpipe.Renumber(ctx, cfg); err != nil {
					t.Error(err)
				}
			}
		})
	}
	others.Go(func() {
		for i := range more {
			send(t, p, fmt.Sprintf("%03d ", old+i))
		}
	})
	others.Wait()
	for group, first := range map[string]int{"g": 200, "fresh": 0} {
		want := map[string]bool{}
		for i := first; i < old+more; i++ {
			want[fmt.Sprintf("%03d ", i)] = true
		}
		for end := time.After(testTimeout); len(want) > 0; {
			select {
			case value := <-read[group]:
				delete(want, value)
			case <-end:
				t.Fatalf("%s has not read %d records", group, len(want))
			}
		}
	}
	stop()
	readers.Wait()
}

// pass acknowledges all batches, and sends on the values of their records.
func pass(messages <-chan *message.Message, values chan<- string) {
	for msg := range messages {
		records, _ := watermill.Records(msg)
		for _, r := range records {
			values <- string(r.Value)
		}
		msg.Ack()
	}
}

func send(t testing.TB, p *pgpipe.Publisher, value string) {
	t.Helper()
	if err := pipetest.Publish(context.Background(), p,
		[]events.Record{{Topic: events.TopicUsageRaw, Partition: 3, Value: []byte(value)}}); err != nil {
		t.Fatal(err)
	}
}

// read reads n records and acknowledges them.
func read(t testing.TB, messages <-chan *message.Message, n int) (all string) {
	t.Helper()
	for n > 0 {
		msg, records := receive(t, messages)
		for _, r := range records {
			all += string(r.Value)
			n--
		}
		msg.Ack()
	}
	return all
}

// A group goes back to a time, and to the oldest row, while it reads. It never goes forward.
func TestAGroupIsRewoundWhileItReads(t *testing.T) {
	cfg, owner := config(t)
	p := newPublisher(t, cfg)
	defer p.Close()
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g"})
	for _, v := range []string{"a", "b", "c"} {
		send(t, p, v)
	}
	if got := read(t, messages, 3); got != "abc" {
		t.Fatalf("read %s", got)
	}
	back := func(from int64) []events.ReplayStep {
		t.Helper()
		for {
			steps, err := pgpipe.Rewind(t.Context(), cfg, "g", "usage.raw", from)
			must.OK(t, err)
			if len(steps) > 0 || from > 0 {
				return steps
			}
			time.Sleep(20 * time.Millisecond) // the acknowledgement is being committed
		}
	}
	back(-1)
	if got := read(t, messages, 3); got != "abc" {
		t.Errorf("from the start: %s", got)
	}
	if _, err := owner.Exec(`UPDATE "pipe_usage_raw" SET created_at = created_at - interval '1 hour' WHERE "offset" < (SELECT max("offset")
		FROM "pipe_usage_raw")`); err != nil {
		t.Fatal(err)
	}
	if steps := back(time.Now().Add(time.Hour).UnixMilli()); len(steps) != 0 {
		t.Errorf("went forward: %v", steps)
	}
	send(t, p, "d")
	if got := read(t, messages, 1); got != "d" {
		t.Errorf("next: %s", got)
	}
	for done := false; !done; time.Sleep(20 * time.Millisecond) {
		steps := back(time.Now().Add(-10 * time.Minute).UnixMilli())
		done = len(steps) > 0
	}
	if got := read(t, messages, 2); got != "cd" {
		t.Errorf("from ten minutes ago: %s", got)
	}
	if steps, err := pgpipe.Rewind(t.Context(), cfg, "nobody", "usage.raw", -1); err != nil || len(steps) != 0 {
		t.Errorf("a group that never read: %v %v", steps, err)
	}
}
