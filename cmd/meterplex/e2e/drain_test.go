package e2e

import (
	"context"
	"fmt"
	"time"
)

// behindSQL returns the lag of the relay, in positions, and the consumers behind the log. Topics are
// numbered as in the head rows: 1 raw, 2 validated, 3 dead letters, 5 commands.
const behindSQL = `
SELECT (SELECT sum(h.position - c.position) FROM log_heads h JOIN relay_cursors c USING (partition))::bigint,
       (SELECT coalesce(string_agg(DISTINCT c.consumer, ' '), '') FROM consumer_checkpoints c JOIN log_heads h USING (partition)
         WHERE c.joined AND c.position < CASE c.consumer
           WHEN 'meterplex-usage-validator' THEN h.topic_positions[1]
           WHEN 'meterplex-usage-aggregator' THEN h.topic_positions[2]
           WHEN 'meterplex-dead-letter-handler' THEN h.topic_positions[3]
           WHEN 'meterplex-command-handler' THEN h.topic_positions[5]
           ELSE h.position END)`

// drain waits until the whole backlog is published and folded, and returns how long that took.
func (w *deployment) drain() time.Duration {
	w.t.Helper()
	start := time.Now()
	within(w.t, "the backlog drains", func(ctx context.Context) (bool, string) {
		var unpublished int64
		var behind string
		if err := w.sql.QueryRow(ctx, behindSQL).Scan(&unpublished, &behind); err != nil {
			return false, err.Error()
		}
		return unpublished == 0 && behind == "", fmt.Sprintf("%d unpublished, behind: %s", unpublished, behind)
	})
	return time.Since(start)
}

// finish drains the backlog, stops the instances and runs all checks. If positions have a
// hole it fails at once: the backlog behind a hole never drains.
func (w *deployment) finish() {
	w.t.Helper()
	if w.checkRule(dense()) > 0 {
		w.t.FailNow()
	}
	took := w.drain()
	start := time.Now()
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
	stopped := time.Since(start)
	w.check()
	w.t.Logf("drained in %s, stopped in %s, checked in %s", took.Round(time.Millisecond), stopped.Round(time.Millisecond), (time.Since(start) - stopped).Round(time.Millisecond))
}
