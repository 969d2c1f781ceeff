package projectionstest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// Sized is a pipeline with a tenant whose log is too long to be read by one request.
type Sized struct {
	*Pipeline
	Tenant       uuid.UUID
	Partition    int16
	Subscription uuid.UUID
	Counted      *pgxpool.Pool // one session, so that the server's counters are those of one read
	Reads        *Reads
}

// Written describes a part of a tenant's log: events that are recorded in runs, each run
// followed by its verdicts. Event n is usage of features[n mod their number], named "e-n";
// every rejects-th is rejected.
type Written struct {
	From, Events, Run, Rejects int
	Features                   []string
	Vacuum                     bool
	Others                     int // so many other tenants, of other partitions, have the events instead
}

// writeTenant writes rows that equal the service's, column by column. $1 partition, $2 tenant,
// $3 subscription, $4 first event, $5 events, $6 run, $7 every how many is rejected, $8 features,
// $9 origin.
var writeTenant = events.SQL(`
WITH head AS (SELECT * FROM log_heads WHERE partition = $1 FOR UPDATE),
n AS (SELECT i, i - $4::int AS k, h.position + ((i - $4::int) / $6::int)::bigint * 2 * $6::int + (i - $4::int) % $6::int + 1 AS raw,
             $8::text[] AS features, i % $7::int = $7::int - 1 AS refused,
             timestamptz '2026-05-01Z' + make_interval(secs => i % 2600000) AS at, md5($2::text || i)::uuid AS id
      FROM head h, generate_series($4::int, $4::int + $5::int - 1) i),
rows AS (
  SELECT raw AS position, 1 AS topic, 1 AS subject, id, NULL::uuid AS cause, at, 'u/e-' || i AS key,
         '[' || 1 + i % 9 || ',"' || features[1 + i % cardinality(features)] || '"]' AS body FROM n
  UNION ALL
  SELECT raw + $6::int, CASE WHEN refused THEN 3 ELSE 2 END, CASE WHEN refused THEN 3 ELSE 2 END, md5(id::text)::uuid, id, at,
         CASE WHEN refused THEN 'x/' || raw || '/0' ELSE 'v/' || raw END,
         CASE WHEN refused THEN '{"rawPosition":' || raw || ',"eventId":"e-' || i || '","feature":"' ||
         features[1 + i % cardinality(features)]
           || '","code":"feature_not_found","reason":"r","deadLetterId":"' || md5(id::text)::uuid || '","attempt":0}'
         ELSE '[' || 1 + i % 9 || ',"' || features[1 + i % cardinality(features)] || '","e-' || i || '","' || $3::uuid || '","METERED","'
         || to_char(at, 'YYYY-MM') || '"]' END
  FROM n),
inserted AS (
  INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, causation_id, epoch, origin,
  partition, topic, subject, dedupe_key, body)
  SELECT r.position, coalesce(lag(r.position) OVER (PARTITION BY r.topic ORDER BY r.position),
  h.topic_positions[r.topic]), now(), r.at, r.id, $2::uuid, r.cause,
         h.epoch, $9::int, $1, r.topic, r.subject, r.key, r.body::json
  FROM rows r, head h ORDER BY r.position
  RETURNING position, topic, subject),
ends AS (SELECT max(position) AS head, max(position) FILTER (WHERE topic = 1) AS raw, max(position) FILTER (WHERE topic = 2) AS validated,
                max(position) FILTER (WHERE topic = 3) AS letters, count(*) FILTER (WHERE topic = 1) AS accepted,
                count(*) FILTER (WHERE topic = 2) AS yes, count(*) FILTER (WHERE topic = 3) AS no FROM inserted),
raised AS (
  UPDATE log_heads h SET position = e.head, accepted = h.accepted + e.accepted, validated = h.validated + e.yes,
    rejected = h.rejected + e.no,
    topic_positions = array_cat(ARRAY[e.raw, coalesce(e.validated, h.topic_positions[2]), coalesce(e.letters, h.topic_positions[3])],
    h.topic_positions[4:])
  FROM ends e WHERE h.partition = $1 RETURNING e.raw)
UPDATE consumer_checkpoints c SET position = r.raw FROM raised r WHERE c.partition = $1 AND c.consumer = 'meterplex-usage-validator'`)

// NewSized makes the fixture on a database of its own.
func NewSized(t testing.TB) *Sized {
	s := &Sized{Pipeline: NewPipeline(t), Tenant: NewID()}
	s.Partition = events.PartitionOf(s.Tenant)
	s.Aggregating.Consumer.Handler.(*usage.Handler).TotalsEvery = usage.DefaultTotalsEvery
	s.Subscription = s.Subscribe(s.Tenant, May, Grant("calls", domain.ResetMonthly)).ID
	var err error
	s.Counted, err = postgres.Open(t.Context(), postgres.Config{URL: s.URL, MaxConns: 1})
	s.Must(err)
	t.Cleanup(s.Counted.Close)
	s.Reads = NewReads(query.DB{Pool: s.Counted}, nil, func() time.Time { return s.Now })
	return s
}

// Write adds a part of the tenant's log, all of which the consumers have folded.
func (s *Sized) Write(w Written) {
	s.Helper()
	conn, err := pgx.Connect(context.Background(), s.URL)
	s.Must(err)
	defer conn.Close(context.Background())
	var origin int
	s.Must(conn.QueryRow(context.Background(), `SELECT min(id) FROM log_origins`).Scan(&origin))
	tenants := []uuid.UUID{s.Tenant}
	if w.Others > 0 {
		tenants = s.others(w.Others)
	}
	for _, tenant := range tenants {
		s.Must(Second(conn.Exec(context.Background(), writeTenant, events.PartitionOf(tenant), tenant, s.Subscription, w.From, w.Events,
			w.Run,
			w.Rejects, w.Features, origin)))
	}
	s.Drain(s.Aggregating, s.Lettering, s.Entitling, s.Summing)
	if w.Vacuum {
		s.Must(Second(conn.Exec(context.Background(), `VACUUM (ANALYZE) event_log_rows, dead_letter_events, usage_aggregates`)))
	}
	s.Must(conn.Close(context.Background()))
	s.EndSessions()
}

// others returns tenants of other partitions.
func (s *Sized) others(n int) (tenants []uuid.UUID) {
	for len(tenants) < n {
		if id := NewID(); events.PartitionOf(id) != s.Partition {
			tenants = append(tenants, id)
		}
	}
	return tenants
}

// EndSessions ends the sessions of the consumers. The server adds up what an idle session has read only
// some seconds later, or when the session ends: a read under way would seem to touch it.
func (s *Sized) EndSessions() {
	s.Helper()
	s.Pool.Reset()
	s.Until(func() (ended bool) {
		s.Must(s.Counted.QueryRow(context.Background(), `SELECT count(*) = 0 FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&ended))
		return ended
	})
}

// tenants' and operators' keys.
func (s *Sized) Viewers() map[string]query.Viewer {
	return map[string]query.Viewer{"tenant": TenantViewer(s.Tenant), "operator": Operator}
}

// readRows are the rows and index entries of tables that the server has read so far, whatever
// function read them.
const readRows = `
SELECT coalesce(sum(s.idx_tup_fetch + s.seq_tup_read), 0)::bigint + (SELECT coalesce(sum(i.idx_tup_read), 0)::bigint
FROM pg_stat_user_indexes i)
FROM pg_stat_user_tables s`

// touched counts the rows and index entries that a read touches.
func (s *Sized) touched(read func()) int64 {
	s.Helper()
	count := func() (n int64) {
		s.Must(pgx.BeginFunc(context.Background(), s.Counted, func(tx pgx.Tx) error {
			return Second(tx.Exec(context.Background(), `SELECT pg_stat_force_next_flush()`))
		}))
		s.Must(s.Counted.QueryRow(context.Background(), readRows).Scan(&n))
		return n
	}
	before := count()
	read()
	return count() - before
}

// AtMost requires that a read touches no more rows than its answer explains. What other sessions report late only
// adds to a count: the least of three decides.
func (s *Sized) AtMost(most int64, of string, read func()) {
	s.Helper()
	n := s.touched(read)
	for again := 0; n > most && again < 2; again++ {
		n = min(n, s.touched(read))
	}
	s.Logf("%s touches %d rows", of, n)
	if n > most {
		s.Errorf("%s touches %d rows, more than %d", of, n, most)
	}
}
