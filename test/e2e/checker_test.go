package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/verify"
)

// behindSQL returns the lag of the relay, in positions, and the consumers behind the log. Topics are
// numbered as in the head rows: 1 raw, 2 validated, 3 dead letters,
// 4 duplicates, 5 commands.
const behindSQL = `
SELECT (SELECT sum(h.position - c.position) FROM log_heads h JOIN relay_cursors c USING (partition))::bigint,
       (SELECT coalesce(string_agg(DISTINCT c.consumer, ' '), '') FROM consumer_checkpoints c JOIN log_heads h USING (partition)
         WHERE c.joined AND c.position < CASE c.consumer
           WHEN 'meterplex-usage-validator' THEN h.topic_positions[1]
           WHEN 'meterplex-usage-aggregator' THEN h.topic_positions[2]
           WHEN 'meterplex-dead-letter-handler' THEN h.topic_positions[3]
           WHEN 'meterplex-usage-refusals' THEN h.topic_positions[4]
           WHEN 'meterplex-command-handler' THEN h.topic_positions[5]
           ELSE h.position END)`

// holesSQL returns the partitions with a hole.
const holesSQL = `SELECT coalesce(string_agg(h.partition::text, ' '), '') FROM log_heads h
LEFT JOIN (SELECT partition, count(*) n FROM event_log_rows GROUP BY 1) l USING (partition) WHERE h.position <> coalesce(l.n, 0)`

// drain waits until the whole backlog is published and folded, and returns how long that took. A backlog behind a hole never drains: it
// fails at once.
func (w *deployment) drain() time.Duration {
	w.t.Helper()
	start := time.Now()
	var holes *string
	within(w.t, "the backlog drains", func(ctx context.Context) (bool, string) {
		var unpublished int64
		var behind string
		err := w.sql.QueryRow(ctx, behindSQL).Scan(&unpublished, &behind)
		if err == nil && holes == nil {
			err = w.sql.QueryRow(ctx, holesSQL).Scan(&holes)
		}
		if err != nil {
			return false, err.Error()
		}
		if *holes != "" {
			w.t.Fatalf("the positions of the partitions %s are not dense", *holes)
		}
		return unpublished == 0 && behind == "", fmt.Sprintf("%d unpublished, behind: %s", unpublished, behind)
	})
	return time.Since(start)
}

// finish drains the backlog, stops the instances, compares the answers that each tenant's clients got with the log, and proves
// that the log, the tables and the topics agree.
func (w *deployment) finish() {
	w.t.Helper()
	w.drain()
	// A connection that was dialled but never used delays a clean stop by 5 s.
	w.http.CloseIdleConnections()
	w.mu.Lock()
	running := w.instances
	w.mu.Unlock()
	for _, i := range running {
		if i.url() != "" || i.alive() {
			i.stop()
		}
	}
	acked := 0
	for _, x := range w.tenants {
		compareLedger(w, x)
		acked += x.ledger.acked()
	}
	if acked == 0 {
		w.t.Error("no event was accepted: the test proves nothing")
	}
	w.prove(w.pipe == "kafka")
}

// prove runs all checks of package verify that need no HTTP, and no topics unless wanted. They share no code with the service. A check that
// a busy server or broker did not answer in time runs again.
func (w *deployment) prove(topics bool) {
	w.t.Helper()
	cfg := verify.Config{DatabaseURL: w.db, NoTopics: "not read", TopicPrefix: w.prefix, Idle: patience, Progress: func(string) {},
		Now: time.Now}
	if topics {
		cfg.Kafka = []kgo.Opt{kgo.SeedBrokers(w.brokers().Brokers()...)}
	}
	open := func(c verify.Check) bool { return c.Looked && c.Holds == nil }
	checks, err := verify.Run(w.t.Context(), cfg)
	for range 3 {
		if err == nil && slices.ContainsFunc(checks, open) {
			checks, err = verify.Run(w.t.Context(), cfg)
		}
	}
	must.OK(w.t, err)
	for _, c := range checks {
		if c.Looked && (c.Holds == nil || !*c.Holds) {
			w.t.Errorf("verify: %s: %s", c.Name, c.Figures)
		}
	}
}

// row is a recorded event in the log.
type row struct {
	feature  string
	amount   int64
	position string
}

// recordedSQL is the tenant's recorded usage, without corrections, retractions, consumptions and commits.
const recordedSQL = `
SELECT payload ->> 'eventId', payload ->> 'feature', (payload ->> 'amount')::bigint, partition || '-' || position, dedupe_key
FROM (SELECT l.*, l.payload FROM event_log_rows l WHERE tenant_id = $1 AND subject IN (1, 8) OFFSET 0) l
WHERE coalesce(payload -> 'admitted' ->> 'by', 'enforce') = 'enforce'`

// recorded reads the tenant's recorded usage, by the producer's id.
func (w *deployment) recorded(x *tenant) map[string]row {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), recordedSQL, x.id)
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

// compareLedger checks that each acknowledged event is in the log once, with its content at its position, and that
// unsent and refused events are not.
func compareLedger(w *deployment, x *tenant) {
	w.t.Helper()
	rows := w.recorded(x)
	x.ledger.mu.Lock()
	defer x.ledger.mu.Unlock()
	for id, fates := range x.ledger.fates {
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
	for id := range rows {
		w.t.Errorf("%s is in the log but was never sent", id)
	}
}
