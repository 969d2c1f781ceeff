package e2e

import (
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
)

// check compares the clients' answers, the log, the aggregates, the dead letters and the
// topics. The backlog has drained and the service has stopped before.
func (w *deployment) check() {
	w.t.Helper()
	w.copyLog()
	events := 0
	for _, x := range w.tenants {
		w.checkLog(x)
		w.checkSums(x)
		events += x.ledger.acked()
	}
	for _, rule := range rules() {
		w.checkRule(rule)
	}
	if w.pipe == "kafka" {
		w.checkTopics()
	}
	if *fresh {
		w.verifyAtEnd()
	}
	if events == 0 {
		w.t.Error("no event was accepted: the test proves nothing")
	}
	w.t.Logf("checked %d events of %d tenants", events, len(w.tenants))
}

// copyLogSQL copies the log, with the members of payloads that the rules name as columns. The log computes
// and parses a payload for each mention of a member, which took most of the time of the rules. Without
// statistics PostgreSQL joins the rules' tables by nested loops.
const copyLogSQL = `
CREATE SCHEMA IF NOT EXISTS checker;
DROP TABLE IF EXISTS checker.log;
CREATE UNLOGGED TABLE checker.log AS
SELECT partition, position, previous_position, topic, subject, tenant_id, dedupe_key, event_id, causation_id, origin,
  CASE WHEN subject IN (1, 8, 9, 19) THEN payload ->> 'eventId' END producer_id, CASE WHEN subject IN (1, 8, 9, 19) THEN payload ->> 'feature' END feature,
  CASE WHEN subject IN (1, 8, 9) THEN (payload ->> 'amount')::bigint WHEN subject = 19 THEN 0 END amount, CASE WHEN subject IN (9, 19) THEN payload ->> 'correctionRef' END ref, CASE WHEN subject = 8 THEN payload -> 'admitted' ->> 'by' END admitted_by,
  CASE WHEN subject IN (2, 3) THEN (payload ->> 'rawPosition')::bigint END raw,
  CASE WHEN subject = 3 THEN (payload ->> 'attempt')::int END attempt, CASE WHEN subject = 3 THEN (payload ->> 'deadLetterId')::uuid END dead_letter_id
FROM (SELECT l.*, l.payload FROM event_log_rows l OFFSET 0) l;
CREATE INDEX ON checker.log (tenant_id);
SET LOCAL default_statistics_target = 10;
ANALYZE checker.log`

// copyLog copies the log to checker.log, after the service has stopped.
func (w *deployment) copyLog() {
	w.t.Helper()
	if _, err := w.sql.Exec(w.t.Context(), copyLogSQL); err != nil {
		w.t.Fatalf("copy the log: %v", err)
	}
}

// row is a recorded event in the log.
type row struct {
	feature  string
	amount   int64
	position string
}

// usageInLog is the tenant's recorded usage in the log, without corrections and retractions.
const usageInLog = `SELECT payload ->> 'eventId', payload ->> 'feature', (payload ->> 'amount')::bigint, partition || '-' || position, dedupe_key
FROM (SELECT l.*, l.payload FROM event_log_rows l WHERE tenant_id = $1 AND subject IN (1, 8) OFFSET 0) l`

// usageInCopy is the tenant's recorded usage in the copy of the log.
const usageInCopy = `SELECT producer_id, feature, amount, partition || '-' || position, dedupe_key FROM checker.log WHERE tenant_id = $1 AND subject IN (1, 8)`

// sentUsageInCopy leaves out consumptions and commits.
const sentUsageInCopy = usageInCopy + ` AND coalesce(admitted_by, 'enforce') = 'enforce'`

// recorded reads the tenant's recorded usage, by the producer's id.
func (w *deployment) recorded(x *tenant) map[string]row {
	w.t.Helper()
	return w.usageBy(usageInLog, x)
}

// usageBy is recorded, from the log or its copy.
func (w *deployment) usageBy(sql string, x *tenant) map[string]row {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), sql, x.id)
	must.OK(w.t, err)
	rows := map[string]row{}
	var id, key string
	var r row
	_, err = pgx.ForEachRow(found, []any{&id, &r.feature, &r.amount, &r.position, &key}, func() error {
		if _, twice := rows[id]; twice || key != "u/"+id {
			w.t.Errorf("tenant %s: %s is stored twice, or has the dedupe key %q", x.id, id, key)
		}
		rows[id] = r
		return nil
	})
	must.OK(w.t, err)
	return rows
}

// checkLog checks in the copy of the log that each acknowledged event is there with its content at its
// position, and that unsent and refused events are not.
func (w *deployment) checkLog(x *tenant) {
	w.t.Helper()
	sql := usageInCopy
	if len(x.asked.fates) == 0 {
		sql = sentUsageInCopy
	}
	rows := w.usageBy(sql, x)
	for _, l := range x.ledgers() {
		w.compareLog(l, rows)
	}
	for id := range rows {
		w.t.Errorf("%s is in the log but was never sent", id)
	}
}

// compareLog compares a ledger with the tenant's recorded usage, and deletes its ids from it.
func (w *deployment) compareLog(l *ledger, rows map[string]row) {
	w.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, fates := range l.fates {
		r, there := rows[id]
		explained := false
		for _, f := range fates {
			same := there && r.feature == f.Feature && r.amount == f.Amount
			explained = explained || same && (f.acked() || f.unsettled > 0)
			switch {
			case f.acked() && !same:
				w.t.Errorf("%s was acknowledged as %s %d, in the log: %+v (found: %v)", id, f.Feature, f.Amount, r, there)
			case f.acked() && f.position != r.position:
				w.t.Errorf("%s was acknowledged at %s, in the log at %s", id, f.position, r.position)
			case f.accepted > 1:
				w.t.Errorf("%s was accepted %d times", id, f.accepted)
			case f.conflicts > 0 && same:
				w.t.Errorf("%s was answered as a conflict and is in the log", id)
			}
		}
		if there && !explained {
			w.t.Errorf("%s is in the log as %+v, without an answer that explains it", id, r)
		}
		delete(rows, id)
	}
}

// countedSQL sums the tenant's validated usage by feature: of corrected usage the amount of the last validated correction, of retracted
// usage nothing.
const countedSQL = `
WITH valid AS MATERIALIZED (
  SELECT r.subject, r.producer_id, r.feature, r.amount, r.ref, v.position AS judged
  FROM checker.log r JOIN checker.log v ON v.partition = r.partition AND v.tenant_id = r.tenant_id AND v.dedupe_key = 'v/' || r.position
  WHERE r.tenant_id = $1 AND r.subject IN (1, 8, 9, 19)),
last AS MATERIALIZED (SELECT DISTINCT ON (ref) ref, subject, amount FROM valid WHERE ref IS NOT NULL ORDER BY ref, judged DESC)
SELECT u.feature, sum(coalesce(l.amount, u.amount))::bigint, count(*) FILTER (WHERE l.subject IS DISTINCT FROM 19)
FROM valid u LEFT JOIN last l ON l.ref = u.producer_id WHERE u.subject IN (1, 8) GROUP BY 1`

// checkSums checks that ledger, log, aggregates and entitlements have the same sums.
func (w *deployment) checkSums(x *tenant) {
	w.t.Helper()
	promised, of := x.ledger.sums(), ""
	if len(x.asked.fates) == 0 {
		of = ` AND coalesce(admitted_by, 'enforce') = 'enforce'`
	}
	for feature, t := range x.asked.sums() {
		promised[feature] = total{promised[feature].amount + t.amount, promised[feature].events + t.events}
	}
	recorded := w.sums(`SELECT feature, sum(amount)::bigint, count(*)
FROM checker.log WHERE tenant_id = $1 AND subject NOT IN (9, 19) AND dedupe_key >= 'u/' AND dedupe_key < 'u0'`+of+` GROUP BY 1`, x.id)
	if !maps.Equal(promised, recorded) {
		w.t.Errorf("tenant %s: acknowledged %v, in the log %v", x.id, promised, recorded)
	}
	counted := w.sums(countedSQL, x.id)
	aggregated := w.sums(`SELECT feature, sum(amount)::bigint, sum(event_count)::bigint FROM usage_aggregates WHERE generation = live_generation('usage_aggregates', tenant_id, period_key) AND tenant_id = $1 GROUP BY 1`, x.id)
	if !maps.Equal(counted, aggregated) {
		w.t.Errorf("tenant %s: validated %v, in the aggregates %v", x.id, counted, aggregated)
	}
	hours := w.sums(`SELECT feature, sum(amount)::bigint, sum(event_count)::bigint FROM usage_series WHERE generation = live_generation('usage_series', tenant_id) AND tenant_id = $1 GROUP BY 1`, x.id)
	if !maps.Equal(aggregated, hours) {
		w.t.Errorf("tenant %s: in the aggregates %v, in the series %v", x.id, aggregated, hours)
	}
	used := w.sums(`SELECT feature, sum(used)::bigint, 0 FROM entitlement_usage WHERE generation = live_generation('entitlement_reads', tenant_id) AND tenant_id = $1 GROUP BY 1`, x.id)
	for _, feature := range slices.Sorted(maps.Keys(counted)) {
		if used[feature].amount != counted[feature].amount {
			w.t.Errorf("tenant %s: %s was validated %d, entitlements say %d", x.id, feature, counted[feature].amount, used[feature].amount)
		}
	}
}

func (w *deployment) sums(sql string, args ...any) map[string]total {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), sql, args...)
	must.OK(w.t, err)
	sums := map[string]total{}
	var feature string
	var s total
	if _, err := pgx.ForEachRow(found, []any{&feature, &s.amount, &s.events}, func() error {
		sums[feature] = s
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return sums
}

// rule is a query that returns a text for each violation.
type rule struct{ name, sql string }

// dense is the rule that holds at every moment, without a drain.
func dense() rule {
	return rule{"positions are dense", `
SELECT format('partition %s: %s rows from %s to %s, head %s', h.partition, l.n, l.low, l.high, h.position)
FROM log_heads h LEFT JOIN (SELECT partition, count(*) n, min(position) low, max(position) high FROM event_log_rows GROUP BY 1) l USING (partition)
WHERE h.position <> coalesce(l.n, 0) OR coalesce(l.low, 1) <> 1 OR coalesce(l.high, 0) <> h.position`}
}

func rules() []rule {
	return []rule{
		dense(),
		{"each event names the one before it on its topic", `
SELECT format('%s-%s says %s, it is %s', partition, position, previous_position, before)
FROM (SELECT *, lag(position, 1, 0::bigint) OVER (PARTITION BY partition, topic ORDER BY position) before FROM checker.log) l
WHERE previous_position <> before LIMIT 10`},
		{"the head names the last of each topic", `
SELECT format('partition %s topic %s: %s, it is %s', h.partition, t.n, h.topic_positions[t.n], l.last)
FROM log_heads h CROSS JOIN generate_subscripts(h.topic_positions, 1) t (n)
LEFT JOIN (SELECT partition, topic, max(position) AS last FROM checker.log GROUP BY 1, 2) l ON l.partition = h.partition AND l.topic = t.n
WHERE h.topic_positions[t.n] <> coalesce(l.last, 0)`},
		{"a tenant lives in one partition", `
SELECT format('tenant %s is in %s partitions', tenant_id, count(DISTINCT partition)) FROM checker.log GROUP BY tenant_id HAVING count(DISTINCT partition) > 1`},
		{"each recorded event has one verdict at the end", `
SELECT format('%s-%s: %s yes, %s no', r.partition, r.position, count(v.subject) FILTER (WHERE v.subject = 2), count(v.subject) FILTER (WHERE v.subject = 3))
FROM checker.log r LEFT JOIN checker.log v ON v.partition = r.partition AND v.subject IN (2, 3) AND v.raw = r.position
WHERE r.subject IN (1, 8, 9, 19) GROUP BY r.partition, r.position
HAVING count(v.subject) FILTER (WHERE v.subject = 2) > 1 OR count(v.subject) = 0 LIMIT 10`},
		{"an event's origin is recorded", `
SELECT format('%s-%s has origin %s', l.partition, l.position, l.origin)
FROM checker.log l LEFT JOIN log_origins o ON o.id = l.origin WHERE o.id IS NULL LIMIT 10`},
		{"a verdict is of the tenant of its event", `
SELECT format('%s-%s is a verdict of tenant %s on %s, an event of tenant %s', v.partition, v.position, v.tenant_id, r.position, r.tenant_id)
FROM checker.log v JOIN checker.log r ON r.partition = v.partition AND r.position = v.raw
WHERE v.subject IN (2, 3) AND r.tenant_id <> v.tenant_id LIMIT 10`},
		{"first verdicts have the order of their events", `
SELECT format('%s-%s is on %s, the one before on %s', partition, position, raw, before) FROM (
  SELECT partition, position, raw, lag(raw, 1, 0::bigint) OVER (PARTITION BY partition ORDER BY position) before FROM (
    SELECT partition, position, raw FROM checker.log l
    WHERE subject = 2 AND NOT EXISTS (SELECT FROM checker.log c WHERE c.partition = l.partition AND c.event_id = l.causation_id AND c.subject = 6)
       OR subject = 3 AND attempt = 0) v) o
WHERE raw <= before LIMIT 10`},
		{"verdicts are applied once", `
SELECT format('partition %s: %s verdicts, %s applied', partition, v.n, a.n)
FROM (SELECT partition, count(*) n FROM checker.log WHERE subject = 2 GROUP BY 1) v
FULL JOIN (SELECT partition, sum(applied_count) n FROM usage_aggregates WHERE generation = live_generation('usage_aggregates', tenant_id, period_key) GROUP BY 1) a USING (partition)
WHERE v.n IS DISTINCT FROM a.n`},
		{"every rejection and conflict is a dead letter", `
SELECT format('%s of stage %s: in the log %s, as dead letter %s', id, coalesce(l.stage, d.stage), l.stage IS NOT NULL, d.stage IS NOT NULL)
FROM (SELECT DISTINCT CASE WHEN subject IN (4, 7) THEN event_id ELSE dead_letter_id END id,
             CASE WHEN subject IN (4, 7) THEN 'INGESTION' ELSE 'VALIDATION' END stage FROM checker.log r WHERE subject IN (3, 4, 7)) l
FULL JOIN (SELECT id, stage FROM dead_letter_events WHERE generation = live_generation('dead_letter_events', tenant_id)) d USING (id)
WHERE l.stage IS DISTINCT FROM d.stage LIMIT 10`},
		{"accepted = applied + rejected, counted in the head rows", `
SELECT format('partition %s: accepted %s, validated %s, rejected %s, parked %s; rows: %s recorded or retried, %s yes, %s no',
              h.partition, h.accepted, h.validated, h.rejected, h.parked, l.a, l.v, l.x)
FROM log_heads h LEFT JOIN (SELECT partition, count(*) FILTER (WHERE subject IN (1, 6, 8, 9, 19)) a, count(*) FILTER (WHERE subject = 2) v,
  count(*) FILTER (WHERE subject = 3) x FROM checker.log GROUP BY 1) l USING (partition)
WHERE h.accepted <> h.validated + h.rejected + h.parked OR (h.accepted, h.validated, h.rejected) <> (coalesce(l.a, 0), coalesce(l.v, 0), coalesce(l.x, 0))`},
	}
}

func (w *deployment) checkRule(r rule) (faults int) {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), r.sql)
	if err != nil {
		w.t.Fatal(fmt.Errorf("%s: %w", r.name, err))
	}
	broken, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(fmt.Errorf("%s: %w", r.name, err))
	}
	for _, what := range broken {
		w.t.Errorf("%s: %s", r.name, what)
	}
	return len(broken)
}
