package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// final settles all open events and checks every invariant.
func (x *torture) final() {
	at := x.members[0].instance
	unknown, messages := x.unansweredEvents()
	x.unknown = unknown + messages
	x.checkInvariant("all messages are consumed", func() string {
		x.awaitConsumed()
		return fmt.Sprintf("%d messages", x.work.messages.Load()+x.work.poison.Load())
	})
	x.checkInvariant("events without an answer are settled by a retry", func() string {
		x.settleAll(at)
		return fmt.Sprintf("%d events of requests, %d of messages", unknown, messages)
	})
	x.checkInvariant("requests about limits without an answer are settled by a retry", func() string { return x.work.limits.settle(x.t.Context()) })
	x.checkInvariant("corrections without an answer are settled by a retry", func() string {
		x.work.corrections.settle(x.t.Context())
		return fmt.Sprintf("%d corrections and retractions", x.work.corrections.applied.Load())
	})
	x.checkInvariant("reservations that nobody ends expire", x.work.limits.awaitExpired)
	x.checkInvariant("the backlog drains", func() string { return "drained in " + x.drain().Round(time.Millisecond).String() })
	x.refill(at)
	x.checkInvariant("closes end, closed periods are reconciled, and no snapshot and no decision has changed", func() string { return x.work.periods.settle(x.t.Context()) })
	x.checkInvariant("a tenant that is offboarded during the faults is archived, with its manifest", x.work.endings.settleOffboarding)
	x.checkInvariant("the billing provider counts each push once, and in total what is delivered and billable", x.work.endings.settlePushes)
	x.checkInvariant("each webhook gets each event that it selects, signed, with one id and one body, and no other", x.work.endings.settleHooks)
	x.checkInvariant("the identity holds", x.identity)
	x.checkInvariant("corrected figures equal a model of the corrections", x.work.corrections.check)
	for _, projection := range []string{"usage_aggregates", "dead_letter_events", "entitlement_reads", "usage_series"} {
		x.checkInvariant("two rebuilds of "+projection+" are equal, and equal to the live rows, byte for byte", func() string { return x.rebuildTwice(at, projection) })
	}
	x.checkInvariant("accounts and reservations equal the log at each sample; no grant is above a HARD limit", x.work.limits.check)
	x.checkInvariant("meterplex verify --all runs every check, and all of them hold", func() string { return x.runVerify(at) })
	x.stopAll()
	x.checkInvariant("acknowledged events are in the log once; refused events are not", x.checkNoEventLost)
	x.checkInvariant("the clients' ledgers, the log, the verdicts and the figures have the same sums", func() string {
		sum := int64(0)
		for _, tenant := range x.tenants {
			x.checkSums(tenant)
			for _, l := range tenant.ledgers() {
				for _, s := range l.sums() {
					sum += s.amount
				}
			}
		}
		return fmt.Sprintf("%d units of %d tenants", sum, len(x.tenants))
	})
	for _, r := range rules() {
		x.checkInvariant(r.name, func() string { x.checkRule(r); return "" })
	}
	x.checkInvariant("each event of the log is on its topic, by id and tenant; repetitions are byte for byte the first; each first occurrence is behind the event before it", func() string {
		x.checkTopics()
		return fmt.Sprintf("%d events of the log", x.count(`SELECT count(*) FROM event_log_rows`))
	})
}

// refill fills deleted topics by the command of the runbook. Afterwards no record may be missing.
func (x *torture) refill(at *instance) {
	if x.goneUpTo == nil {
		return
	}
	x.checkInvariant("one command fills the deleted topics", func() string {
		done := x.cli(at, x.operator).replay("rewind", "--since", "168h")
		x.afterRefill()
		return fmt.Sprintf("%d partitions, drained in %s", len(done.Partitions), x.drain().Round(time.Millisecond))
	})
}

// checkInvariant prints the figures of an invariant. f reports its violations.
func (x *torture) checkInvariant(name string, f func() (figures string)) {
	x.t.Helper()
	start := time.Now()
	figures := f()
	x.t.Logf("%s: %s (%s)", name, figures, time.Since(start).Round(time.Millisecond))
}

// unansweredEvents counts the events whose last request had no answer; messages never have one.
func (x *torture) unansweredEvents() (requests, messages int) {
	for _, tenant := range x.tenants {
		for _, e := range tenant.ledger.unknown() {
			if strings.HasPrefix(e.EventID, messagePrefix) {
				messages++
			} else {
				requests++
			}
		}
	}
	return requests, messages
}

// settleAll sends events without a verdict again, and refused events that another instance
// may still store from an unanswered request.
func (x *torture) settleAll(at *instance) {
	x.settle(at, x.tenants...)
	for _, tenant := range x.tenants {
		c := &client{w: x.deployment, tenant: tenant, to: at.url}
		for open := tenant.ledger.uncertain(); len(open) > 0; open = open[min(len(open), 1000):] {
			if c.send(x.t.Context(), open[:min(len(open), 1000)]) == nil {
				x.t.Fatalf("%d events have no verdict", len(open))
			}
		}
	}
}

// dumps are queries for the live figures ($1 is 0) or one generation, as one checksum.
func dumps() map[string]string {
	return map[string]string{
		"usage_aggregates": `SELECT md5(coalesce(string_agg(d::text, E'\n' ORDER BY d::text COLLATE "C"), '')), count(*) FROM (
  SELECT tenant_id, feature, period_key, subscription_id, partition, amount, event_count, applied_count, period_start, period_end, last_event_at
  FROM usage_aggregates WHERE generation = CASE $1::int WHEN 0 THEN live_generation('usage_aggregates', tenant_id, period_key) ELSE $1 END) d`,
		"dead_letter_events": `SELECT md5(coalesce(string_agg((to_jsonb(d) - 'generation')::text, E'\n' ORDER BY d.id), '')), count(*)
  FROM dead_letter_events d WHERE generation = CASE $1::int WHEN 0 THEN live_generation('dead_letter_events', tenant_id) ELSE $1 END`,
		"entitlement_reads": `SELECT md5(coalesce(string_agg(d::text, E'\n' ORDER BY d::text COLLATE "C"), '')), count(*) FROM (
  SELECT tenant_id, feature, period_key, used::text, held::text FROM entitlement_usage
  WHERE generation = CASE $1::int WHEN 0 THEN live_generation('entitlement_reads', tenant_id) ELSE $1 END) d`,
		"usage_series": `SELECT md5(coalesce(string_agg(d::text, E'\n' ORDER BY d::text COLLATE "C"), '')), count(*) FROM (
  SELECT tenant_id, feature, hour, group_values, amount, event_count FROM usage_series
  WHERE generation = CASE $1::int WHEN 0 THEN live_generation('usage_series', tenant_id) ELSE $1 END) d`,
	}
}

// abandonRebuilds abandons the undecided rebuilds, also those that began without an answer: one blocks others, and closes wait for it.
func (x *torture) abandonRebuilds(ctx context.Context) {
	x.work.rebuild = rebuild{}
	var ids []string
	if err := x.sql.QueryRow(ctx, `SELECT coalesce(array_agg(id::text), '{}') FROM projection_rebuilds WHERE state IN ('FOLDING', 'CATCHING_UP', 'READY')`).Scan(&ids); err != nil {
		x.t.Fatal(err)
	}
	for _, id := range ids {
		_, _ = x.attempt(ctx, x.operator, http.MethodPost, "/api/v1/rebuilds/"+id+"/abandon", object{"reason": "the end"}, nil)
	}
}

func (x *torture) rebuildTwice(at *instance, projection string) string {
	ctx := x.t.Context()
	x.abandonRebuilds(ctx)
	dump := func(generation int) (sum string, rows int) {
		must.OK(x.t, x.sql.QueryRow(ctx, dumps()[projection], generation).Scan(&sum, &rows))
		return sum, rows
	}
	live, rows := dump(0)
	for range 2 {
		r := x.startRebuild(at, projection)
		x.ready(at, r.ID)
		if sum, n := dump(r.Generation); sum != live || n != rows {
			x.t.Errorf("generation %d of %s has %d rows, %s; the live one has %d, %s", r.Generation, projection, n, sum, rows, live)
		}
		x.ask(x.operator, http.MethodPost, at, "/api/v1/rebuilds/"+r.ID+"/abandon", object{"reason": "the end"}, nil, http.StatusAccepted)
	}
	return fmt.Sprintf("%d rows, md5 %s", rows, live)
}

// runVerify runs meterplex verify besides the tests' own checker; every check must run.
func (x *torture) runVerify(at *instance) string {
	p := x.verify(at, "--all")
	x.requireProven("meterplex verify --all", p)
	return fmt.Sprintf("exit code %d\n%s", p.code, p.String())
}

// stopAll stops the instances and checks that they leave no session or transaction behind.
func (x *torture) stopAll() {
	x.http.CloseIdleConnections()
	x.checkInvariant("instances stop with exit code 0", func() string {
		x.endAll(syscall.SIGTERM)
		return fmt.Sprintf("%d instances", len(x.members))
	})
	x.checkInvariant("no session, transaction or group member is left behind", func() string {
		sessions, prepared, members := 0, 0, 0
		if !x.becomesTrue(20*time.Second, func(ctx context.Context) bool {
			err := x.sql.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'meterplex'),
				(SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())`).Scan(&sessions, &prepared)
			members = x.deployment.members(ctx)
			return err == nil && sessions == 0 && prepared == 0 && members == 0
		}) {
			x.t.Errorf("%d sessions, %d prepared transactions and %d members of groups are left", sessions, prepared, members)
		}
		return ""
	})
	x.checkInvariant("no log contains a data race, a panic or a hole", func() string {
		lines := 0
		for _, m := range x.members {
			m.checkLogText()
			lines += m.lineCount()
		}
		return fmt.Sprintf("%d lines", lines)
	})
}

// checkNoEventLost compares each id ever sent with the log.
func (x *torture) checkNoEventLost() string {
	x.copyLog()
	events := 0
	for _, tenant := range x.tenants {
		x.checkLog(tenant)
		rows := x.usageBy(usageInCopy, tenant)
		for _, l := range tenant.ledgers() {
			for id, fates := range l.fates {
				accepted := 0
				for _, f := range fates {
					r, there := rows[id]
					if f.acked() && (!there || r.feature != f.Feature || r.amount != f.Amount) {
						x.lost++
					}
					accepted += f.accepted
				}
				x.doubled += max(0, accepted-1)
			}
			events += l.acked()
		}
		x.doubled += x.count(`SELECT count(*) - count(DISTINCT producer_id) FROM checker.log WHERE tenant_id = $1 AND subject IN (1, 8, 9, 19)`, tenant.id)
	}
	if events == 0 {
		x.t.Error("no event was accepted: the run proves nothing")
	}
	return fmt.Sprintf("%d events acknowledged, %d lost, %d doubled", events, x.lost, x.doubled)
}
