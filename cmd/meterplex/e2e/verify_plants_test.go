package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/must"
)

// partitionOf is the log partition of a tenant.
func partitionOf(tenant string) int { return int(sha256.Sum256([]byte(tenant))[0] % 32) }

// number returns a number for a plant.
func (w *deployment) number(sql string, args ...any) (n int64) {
	w.t.Helper()
	if err := w.sql.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%v: %s", err, sql)
	}
	return n
}

// changed is a plant that sets columns of rows to other values.
func changed(check, table, where, set, unset string) planted {
	return planted{check: check, do: []string{`UPDATE ` + table + ` SET ` + set + where}, undo: []string{`UPDATE ` + table + ` SET ` + unset + where}}
}

// gone is a plant that deletes rows.
func gone(check, table, where string) planted {
	return planted{check: check, do: []string{`CREATE TABLE kept AS SELECT * FROM ` + table + where, `DELETE FROM ` + table + where},
		undo: []string{`INSERT INTO ` + table + ` SELECT * FROM kept`, `DROP TABLE kept`}}
}

// rewritten is a plant that sets a member of the payload of one row of the log.
func rewritten(check, where, member, value string) planted {
	return planted{check: check, do: []string{`CREATE TABLE kept AS SELECT body FROM event_log_rows` + where,
		fmt.Sprintf(`UPDATE event_log_rows SET body = jsonb_set(body::jsonb, '{%s}', '%s')::json%s`, member, value, where)},
		undo: []string{`UPDATE event_log_rows SET body = (SELECT body FROM kept)` + where, `DROP TABLE kept`}}
}

// atPosition selects one row of the log.
func atPosition(partition int, position int64) string {
	return fmt.Sprintf(` WHERE partition = %d AND position = %d`, partition, position)
}

// inLog returns an UPDATE of one row of the log.
func inLog(partition int, position int64, set string) string {
	return `UPDATE event_log_rows SET ` + set + atPosition(partition, position)
}

// plants returns at least one plant for each check of verify on the database and the topics.
func (w *deployment) plants(tenants []*tenant) []planted {
	p := partitionOf(tenants[0].id)
	only := []string{"--only", "database", "--partition", fmt.Sprint(p)}
	all := slices.Concat(w.plantsInLog(p), w.plantsInTables(p), w.plantsInLimits(p), w.plantsInCorrections(p), w.plantsInPeriods(p, tenants[0]), w.plantsInPushes(tenants[0]), w.plantsInRights())
	for n := range all {
		all[n].args = append(all[n].args, only...)
	}
	return slices.Concat(all, w.plantsInEndings(tenants[0], tenants[1]), w.plantsInTopics(tenants))
}

func (w *deployment) plantsInLog(p int) []planted {
	raw := w.number(`SELECT min(accepted::bigint) FROM (SELECT position::text AS accepted FROM event_log_rows WHERE partition = $1 AND subject = 1
 INTERSECT SELECT substr(dedupe_key, 3) FROM event_log_rows WHERE partition = $1 AND subject = 2 AND dedupe_key LIKE 'v/%'
 EXCEPT SELECT body ->> 'rawPosition' FROM event_log_rows WHERE partition = $1 AND subject IN (3, 4)) counted`, p)
	no := w.number(`SELECT min(position) FROM event_log_rows WHERE partition = $1 AND subject = 3`, p)
	conflict := w.number(`SELECT min(position) FROM event_log_rows WHERE partition = $1 AND subject = 4`, p)
	seen := w.number(`SELECT min(position) FROM event_log_rows WHERE partition = $1 AND subject = 5`, p)
	late := w.number(`SELECT max(position) FROM event_log_rows WHERE partition = $1 AND subject = 5`, p)
	head := fmt.Sprintf(` WHERE partition = %d`, p)
	return []planted{
		changed("P1 positions run from 1 to the head without a gap", "log_heads", head, "position = position + 1", "position = position - 1"),
		{check: "P10 events are in the order in which they were recorded", do: []string{inLog(p, raw, `recorded_at = recorded_at + interval '1 hour'`)}, undo: []string{inLog(p, raw, `recorded_at = recorded_at - interval '1 hour'`)}},
		{check: "P9 each event is in its tenant's partition and on its subject's topic",
			do:   []string{`CREATE TABLE kept AS SELECT tenant_id FROM event_log_rows` + head + fmt.Sprint(` AND position = `, seen), inLog(p, seen, `tenant_id = '00000000-0000-0000-0000-00000000000`+idInAnotherPartition(p)+`'`)},
			undo: []string{inLog(p, seen, `tenant_id = (SELECT tenant_id FROM kept)`), `DROP TABLE kept`}},
		{check: "P2 each dedupe key is stored once for a tenant",
			do: []string{`ALTER TABLE event_log DROP CONSTRAINT event_log_dedupe`, `CREATE TABLE kept AS SELECT dedupe_key FROM event_log_rows` + head + fmt.Sprint(` AND position = `, conflict),
				inLog(p, conflict, fmt.Sprintf(`dedupe_key = (SELECT dedupe_key FROM event_log_rows WHERE partition = %d AND position = %d)`, p, raw))},
			undo: []string{inLog(p, conflict, `dedupe_key = (SELECT dedupe_key FROM kept)`), `DROP TABLE kept`, `ALTER TABLE event_log ADD CONSTRAINT event_log_dedupe UNIQUE (partition, tenant_id, dedupe_key)`}},
		{check: "P4 stored hashes match the payloads", do: []string{inLog(p, raw, `hash = '\x01'::bytea || sha256('another')`)}, undo: []string{inLog(p, raw, `hash = NULL`)}},
		changed("P3 the counters of the heads match the rows", "log_heads", head, "accepted = accepted + 1", "accepted = accepted - 1"),
		{check: "P1 recorded events do not change and no position decreases", args: []string{"--watch", "1s"},
			do:     []string{`CREATE TABLE kept AS SELECT event_id FROM event_log_rows` + head + fmt.Sprint(` AND position = `, late)},
			during: inLog(p, late, `event_id = gen_random_uuid()`), undo: []string{inLog(p, late, `event_id = (SELECT event_id FROM kept)`), `DROP TABLE kept`}},
		rewritten("P3 each recorded event up to the validator's checkpoint has one verdict", atPosition(p, no), "rawPosition", fmt.Sprint(raw)),
		rewritten("P3 each verdict matches its recorded event", atPosition(p, raw), "0", "987654"),
	}
}

// idInAnotherPartition is the end of the id of a tenant in another partition.
func idInAnotherPartition(p int) string {
	for n := 1; ; n++ {
		if partitionOf(fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", n)) != p {
			return fmt.Sprint(n)
		}
	}
}

func (w *deployment) plantsInTables(p int) []planted {
	usage := fmt.Sprintf(` WHERE (tenant_id, feature) IN (SELECT tenant_id, feature FROM usage_aggregates WHERE generation = 1 AND partition = %d ORDER BY 1, 2 LIMIT 1) AND generation = 1`, p)
	letter := fmt.Sprintf(` WHERE id = (SELECT id FROM dead_letter_events WHERE generation = 1 AND partition = %d AND stage = 'INGESTION' LIMIT 1)`, p)
	counted := fmt.Sprintf(` WHERE generation = 1 AND partition = %d AND slot = -1`, p)
	commands := fmt.Sprintf(` WHERE consumer = 'meterplex-command-handler' AND partition = %d`, p)
	region := func(value string) string {
		return fmt.Sprintf(` WHERE generation = 1 AND partition = %d AND group_values = '{"region":"%s"}'`, p, value)
	}
	return []planted{
		changed("P1 no checkpoint is beyond the head", "consumer_checkpoints", commands, "position = position + 1000000", "position = position - 1000000"),
		{check: "P5 usage_aggregates equals the sum of the log up to its checkpoint", also: []string{"P8 each figure of a closed period is its frozen figure and its adjustments"}, do: []string{`UPDATE usage_aggregates SET amount = amount + 1` + usage}, undo: []string{`UPDATE usage_aggregates SET amount = amount - 1` + usage}},
		changed("P5 entitlement_usage equals the sum of the log up to its checkpoint", "entitlement_usage", usage, "used = used - 1", "used = used + 1"),
		changed("P5 usage_series equals the sum of the log up to its checkpoint, hour by hour", "usage_series", usage, "amount = amount + 1", "amount = amount - 1"),
		{check: "P5 usage_series equals the sum of the log up to its checkpoint, hour by hour", // from one group of an hour to another
			do:   []string{`UPDATE usage_series SET amount = amount + 1` + region("eu"), `UPDATE usage_series SET amount = amount - 1` + region("us")},
			undo: []string{`UPDATE usage_series SET amount = amount - 1` + region("eu"), `UPDATE usage_series SET amount = amount + 1` + region("us")}},
		{check: "P5 usage_series equals the sum of the log up to its checkpoint, hour by hour", // from a value to "other", as if it had come too late
			do: []string{`CREATE TABLE kept AS SELECT * FROM usage_series_values WHERE value = 'us'`, `DELETE FROM usage_series_values WHERE value = 'us'`,
				`UPDATE usage_series SET amount = amount + 2, event_count = event_count + 1` + region("other"), `UPDATE usage_series SET amount = amount - 2, event_count = event_count - 1` + region("us")},
			undo: []string{`INSERT INTO usage_series_values SELECT * FROM kept`, `DROP TABLE kept`,
				`UPDATE usage_series SET amount = amount - 2, event_count = event_count - 1` + region("other"), `UPDATE usage_series SET amount = amount + 2, event_count = event_count + 1` + region("us")}},
		{check: "P12 running totals equal the sums of the log up to their positions",
			do: []string{fmt.Sprintf(`INSERT INTO usage_running_totals SELECT generation, partition, tenant_id, feature, period_key, (SELECT min(position) FROM consumer_checkpoints WHERE generation = 1 AND partition = %d AND consumer = 'meterplex-usage-aggregator'), subscription_id, amount + 1, event_count, last_event_at FROM usage_aggregates`, p) + usage +
				` ON CONFLICT (generation, tenant_id, feature, period_key, position, subscription_id) DO UPDATE SET amount = excluded.amount`},
			undo: []string{`DELETE FROM usage_running_totals`}},
		changed("P3 consumed verdicts = applied + dead-lettered + withheld", "usage_aggregates", usage, "applied_count = applied_count - 1", "applied_count = applied_count + 1"),
		{check: "P3 dead letters and their states match the log", do: []string{`UPDATE dead_letter_events SET status = 'RESOLVED'` + letter}, undo: []string{`UPDATE dead_letter_events SET status = 'FAILED'` + fmt.Sprintf(` WHERE stage = 'INGESTION' AND partition = %d`, p)}},
		changed("P3 dead letters and their states match the log", "dead_letter_counts", counted, "failed = failed + 1", "failed = failed - 1"),
		{check: "P10 each partition is leased by one live relay", do: []string{`INSERT INTO relay_instances VALUES ('ghost', now() + interval '1 hour')`}, undo: []string{`DELETE FROM relay_instances`}},
		{check: "P5 each projection has one live generation for all tenants", do: []string{`UPDATE projection_pointers SET generation = 77 WHERE projection = 'usage_aggregates'`}, undo: []string{`UPDATE projection_pointers SET generation = 1 WHERE projection = 'usage_aggregates'`}},
	}
}

func (w *deployment) plantsInRights() []planted {
	return []planted{
		{check: "P9 row level security is forced on every table that tenants read", do: []string{`ALTER TABLE usage_aggregates NO FORCE ROW LEVEL SECURITY`}, undo: []string{`ALTER TABLE usage_aggregates FORCE ROW LEVEL SECURITY`}},
		{check: "P6 the roles of the service own no object and cannot alter the log", do: []string{`GRANT UPDATE ON event_log_rows TO meterplex_worker`}, undo: []string{`REVOKE UPDATE ON event_log_rows FROM meterplex_worker`}},
		{check: "no session of the service is idle in a transaction", args: []string{"--idle", "1ms"}, by: func() {
			cc, err := pgx.ParseConfig(w.db)
			if err == nil {
				cc.RuntimeParams["application_name"] = "meterplex"
				var c *pgx.Conn
				if c, err = pgx.ConnectConfig(w.t.Context(), cc); err == nil {
					_, err = c.Exec(w.t.Context(), "BEGIN")
					w.t.Cleanup(func() { _ = c.Close(context.Background()) })
				}
			}
			must.OK(w.t, err)
		}, undo: []string{`SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'meterplex'`}},
	}
}

// plantsInTopics uses a partition for each plant: no record can be removed again.
func (w *deployment) plantsInTopics(tenants []*tenant) (all []planted) {
	const topics, same, first = "P11 the topics hold the same events as the log", "P11 each record equals its event byte for byte", "P10 events of a tenant are first published in the order of the log"
	at := func(n int) (int, []string) {
		p := partitionOf(tenants[n].id)
		return p, []string{"--partition", fmt.Sprintf("%d,%d", p, p)} // named twice, checked once
	}
	p, args := at(0)
	head := fmt.Sprintf(` WHERE partition = %d`, p)
	all = append(all, planted{check: topics, args: args, do: []string{ // the event is in the log, and the relay's cursor is behind it
		`INSERT INTO event_log_rows SELECT h.position + 1, h.topic_positions[4], h.recorded_at, l.occurred_at, gen_random_uuid(), l.tenant_id, l.correlation_id, l.causation_id, h.epoch,
 l.origin, l.partition, l.topic, l.subject, 'e/planted', l.hash, l.body, l.replay
 FROM log_heads h JOIN event_log_rows l ON l.partition = h.partition AND l.position = h.topic_positions[4]` + strings.Replace(head, "partition", "h.partition", 1),
		`UPDATE log_heads SET position = position + 1, topic_positions[4] = position + 1` + head, `UPDATE relay_cursors SET position = position + 1` + head},
		undo: []string{`DELETE FROM event_log_rows WHERE dedupe_key = 'e/planted'`, `UPDATE relay_cursors SET position = position - 1` + head,
			`UPDATE log_heads h SET position = position - 1, topic_positions[4] = (SELECT max(position) FROM event_log_rows l WHERE l.partition = h.partition AND topic = 4)` + head}})
	p1, args := at(1)
	of := func(topic int) string { // the origin of the partition's first event on a topic
		return fmt.Sprintf(` WHERE o.id = (SELECT origin FROM event_log_rows WHERE partition = %d AND topic = %d ORDER BY position LIMIT 1)`, p1, topic)
	}
	another := `UPDATE log_origins o SET vocabulary = (SELECT hash FROM log_vocabularies WHERE hash <> o.vocabulary)` + of(6)
	all = append(all,
		planted{check: same, args: args, do: []string{another}, undo: []string{another}},
		planted{check: same, args: args, do: []string{`UPDATE log_origins o SET residency = 'elsewhere'` + of(1)}, undo: []string{`UPDATE log_origins o SET residency = 'unspecified'` + of(1)}},
		planted{check: same, args: args, do: []string{`UPDATE log_origins o SET via = 'console'` + of(1)}, undo: []string{`UPDATE log_origins o SET via = ''` + of(1)}})
	// Not a fault: the publications have expired.
	all = append(all, planted{args: args, do: []string{`DELETE FROM outbox_publications`}})
	all = append(all, planted{check: same, args: args, by: func() {
		w.produceCopy(p1, func(r *kgo.Record) { r.Value = bytes.Replace(r.Value, []byte(`"amount":`), []byte(`"amount":1`), 1) })
	}})
	p2, args := at(2)
	all = append(all, planted{check: first, args: args, by: func() { w.produceCopy(p2, func(r *kgo.Record) { w.deleteUpTo(r) }) }})
	p3, args := at(3)
	all = append(all, planted{check: topics, args: args, by: func() {
		w.produceCopy(p3, func(r *kgo.Record) {
			for n := range r.Headers {
				if r.Headers[n].Key == "mp-position" {
					r.Headers[n].Value = fmt.Appendf(nil, "%d-99999999", p3)
				}
			}
		})
	}})
	p4, args := at(4)
	cursor := fmt.Sprintf(` WHERE partition = %d`, p4)
	all = append(all, planted{check: first, args: args, by: func() { w.swap(p4) }, // below the relay's position before a rewind
		do: []string{`UPDATE relay_cursors SET furthest = position` + cursor}, undo: []string{`UPDATE relay_cursors SET furthest = 0` + cursor}})
	p5, args := at(5)
	return append(all, w.plantsOfStandIns(p5, args)...)
}

// plantsOfStandIns plants stand-ins for the partition's first event on usage.raw, which has
// its verdict: a stand-in for it is sound if it is late.
func (w *deployment) plantsOfStandIns(p int, args []string) []planted {
	of := fmt.Sprintf(` WHERE partition = %d`, p)
	again := func() {
		w.produceCopy(p, func(r *kgo.Record) {
			r.Value, r.Headers = nil, append(r.Headers, kgo.RecordHeader{Key: "mp-withheld", Value: []byte("1")})
		})
	}
	return []planted{
		{args: args, by: again, do: []string{`INSERT INTO withheld_records (partition, position, topic, tenant_id, reason, late)
 SELECT partition, position, topic, tenant_id, 'planted', true FROM event_log_rows` + of + ` AND topic = 1 ORDER BY position LIMIT 1`}},
		{check: "P3 each recorded event up to the validator's checkpoint has one verdict", args: append(args, "--only", "database"),
			do:   []string{`UPDATE withheld_records SET late = false, dead_letter_id = tenant_id` + of},
			undo: []string{`UPDATE withheld_records SET late = true, dead_letter_id = NULL` + of}},
		{check: "P11 each record equals its event byte for byte", args: args, do: []string{`DELETE FROM withheld_records` + of}},
	}
}

// swap deletes the first two records of usage.raw and produces them in reverse order.
func (w *deployment) swap(partition int) {
	w.t.Helper()
	var one, two *kgo.Record
	w.produceCopy(partition, func(r *kgo.Record) {
		first := *r
		one = &first
		w.deleteUpTo(r)
		w.produceCopy(partition, func(r *kgo.Record) {
			second := *r
			two = &second
			w.deleteUpTo(r)
		})
	})
	if one.Offset+1 != two.Offset {
		w.t.Fatalf("the first records are at %d and %d", one.Offset, two.Offset)
	}
}

// produceCopy produces a changed copy of the first record of usage.raw.
func (w *deployment) produceCopy(partition int, change func(*kgo.Record)) {
	w.t.Helper()
	topic := w.prefix + "usage.raw"
	c := w.kafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().AtStart()}}), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	fetched := c.PollRecords(w.t.Context(), 1)
	if err := fetched.Err(); err != nil || fetched.NumRecords() != 1 {
		w.t.Fatalf("read a record of %s/%d: %v", topic, partition, err)
	}
	first := fetched.Records()[0]
	r := &kgo.Record{Topic: topic, Partition: int32(partition), Key: first.Key, Value: first.Value, Headers: first.Headers, Offset: first.Offset}
	change(r)
	must.OK(w.t, c.ProduceSync(w.t.Context(), r).FirstErr())
}

// deleteUpTo deletes a record and those before it, as retention does.
func (w *deployment) deleteUpTo(r *kgo.Record) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	var upTo kadm.Offsets
	upTo.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.Offset + 1})
	answers, err := kadm.NewClient(c).DeleteRecords(w.t.Context(), upTo)
	if err == nil {
		err = answers.Error()
	}
	must.OK(w.t, err)
}

// trigger calls do when a text is written.
type trigger struct {
	io.Writer
	on   string
	once sync.Once
	do   func()
}

func (x *trigger) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(x.on)) {
		x.once.Do(x.do)
	}
	return x.Writer.Write(b)
}
