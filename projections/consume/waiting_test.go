package consume_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// waitingLog has events of two topics in partition 3. Event n is of n seconds after 1970.
type waitingLog struct {
	*testing.T
	conn   *pgx.Conn
	topics []events.Topic
	last   [4]int64 // of each topic
}

func (w *waitingLog) append(topics ...events.Topic) {
	w.Helper()
	var previous []int64
	for i, topic := range topics {
		previous = append(previous, w.last[topic])
		w.last[topic] = int64(len(w.topics) + i + 1)
	}
	_, err := w.conn.Exec(
		w.Context(),
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
 SELECT $1 + r.n, r.previous, to_timestamp($1 + r.n), now(), gen_random_uuid(), gen_random_uuid(), 0, 1, 3, r.topic, 1, ($1 + r.n)::text,
 '{}'
 FROM unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY r (topic, previous, n)`,
		len(w.topics),
		topics,
		previous,
	)
	must.OK(w, err)
	w.topics = append(w.topics, topics...)
}

// first returns the number of the first event that waits, found by the statement, and the blocks that it read.
func (w *waitingLog) first(topic, after, upTo any) (n int64, blocks int) {
	w.Helper()
	sql := `SELECT coalesce(extract(epoch FROM n.recorded_at), 0)::bigint FROM (VALUES ($1::int, $2::bigint, $3::bigint)) v (topic, after,
		up_to) CROSS JOIN LATERAL (SELECT ` + projections.FirstWaiting(
		"3::smallint",
		"v.after",
		"v.up_to",
		"v.topic",
	) + ` AS recorded_at) n`
	must.OK(w, w.conn.QueryRow(w.Context(), sql, topic, after, upTo).Scan(&n))
	return n, localtest.Blocks(w, w.conn, sql, topic, after, upTo)
}

// wants requires the first event that waits behind a checkpoint.
func (w *waitingLog) wants(of string, after int64) {
	w.Helper()
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicUsageDeadLetter} {
		var want int64
		if i := slices.Index(w.topics[after:], topic); i >= 0 {
			want = after + int64(i) + 1
		}
		if n, blocks := w.first(topic, after, w.last[topic]); n != want || blocks > 2000 {
			w.Errorf("%s: the first event of %s behind %d is %d and not %d, by %d blocks", of, topic.Name(), after, n, want, blocks)
		}
	}
	if n, _ := w.first(nil, after, len(w.topics)); n != after+1 && int(after) < len(w.topics) {
		w.Errorf("%s: the first event of the log behind %d is %d", of, after, n)
	}
}

// The first event that waits is found wherever events of its topic lie, if those that are spread thinly are few; otherwise it is one that
// waits, too.
func TestTheFirstWaitingEventIsFound(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, localtest.Migrated(t, postgres.Migrate)))
	must.OK(t, err)
	defer conn.Close(t.Context())
	w := &waitingLog{T: t, conn: conn}
	random := rand.New(rand.NewPCG(1, 2))
	run := func(of events.Topic, n int) { w.append(slices.Repeat([]events.Topic{of}, n)...) }
	thin := func(n, of int) {
		for range n {
			run(events.TopicUsageRaw, of-1)
			run(events.TopicUsageDeadLetter, 1)
		}
	}
	for round := range tier.Draws(t, 2, 6) {
		run(events.TopicUsageRaw, random.IntN(5000)+1)
		thin(random.IntN(20), 20+random.IntN(50))
		run(events.TopicUsageDeadLetter, random.IntN(3000)+1)
		for range 12 {
			w.wants(fmt.Sprint("round ", round), random.Int64N(int64(len(w.topics))+1))
		}
		w.wants("before the first", 0)
		w.wants("the last is passed", int64(len(w.topics)))
	}
	passed := int64(len(w.topics))
	thin(50, 300)
	w.wants("50 thin ones", passed)
	thin(400, 100)
	if n, blocks := w.first(events.TopicUsageDeadLetter, passed, w.last[events.TopicUsageDeadLetter]); n <= passed ||
		w.topics[n-1] != events.TopicUsageDeadLetter ||
		blocks > 5000 {
		t.Errorf("of 450 thin ones behind %d it is %d, by %d blocks", passed, n, blocks)
	}
	if n, _ := w.first(events.TopicUsageRaw, len(w.topics), w.last[events.TopicUsageRaw]); n != 0 {
		t.Errorf("%d waits behind the end", n)
	}
}

// TestKeptPlansUseTheKeys: plans made while the tables are empty are kept when the
// tables have grown.
func TestKeptPlansUseTheKeys(t *testing.T) {
	tier.AtSize(t)
	w := NewDatabase(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: w.URL, KeepPlans: true})
	w.Must(err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	w.Must(err)
	defer conn.Release()
	for name, sql := range KeptStatements() {
		plan := localtest.Plan(t, conn.Conn(), sql)
		for _, bad := range []string{"Seq Scan", "Bitmap", "Hash Join", "Merge Join", "Materialize"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s: %s in\n%s", name, bad, plan)
			}
		}
		if lines := strings.Split(plan, "\n"); name == "targets" {
			for i, line := range lines {
				if strings.Contains(line, "Index") && strings.Contains(line, "Scan") &&
					(i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) {
					t.Errorf("%s: a whole index is read in\n%s", name, plan)
				}
			}
		}
		if name == "histories" && !strings.Contains(plan, "Index Cond: (tenant_id = ANY") {
			t.Errorf("histories are not read by the tenant:\n%s", plan)
		}
	}
}

// KeptStatements are those that sessions which keep their plans run for each batch.
func KeptStatements() map[string]string {
	all := map[string]string{}
	for _, some := range []map[string]string{consume.Statements(), validate.Statements(), usage.Statements(), entitlements.Statements(),
		series.Statements()} {
		maps.Copy(all, some)
	}
	return all
}
