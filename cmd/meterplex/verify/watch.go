package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// observation is an observation of all partitions at one moment.
type observation struct {
	heads       map[int16]seenHead
	checkpoints map[string]int64
	cursors     map[int16]lease
	relays      int64 // instances heard from recently
}

type seenHead struct {
	position, from, to                   int64 // the range (from, to] at the end of the first observation
	events, digest                       int64
	accepted, validated, rejected, epoch int64
}

type lease struct {
	position, furthest, fence int64
	owner                     *string
	live, heard               bool
}

// stretch is how many positions before the head are compared. Earlier positions exist in both
// passes, since positions are dense.
const stretch = 4_000

const (
	headsSQL = `SELECT h.partition, h.position, w.low, w.high, t.events, t.digest, h.accepted, h.validated, h.rejected, h.epoch FROM log_heads h
 CROSS JOIN LATERAL (SELECT coalesce(f.low, greatest(h.position - $2::bigint, 0)) AS low, coalesce(f.high, h.position) AS high
  FROM (SELECT) one LEFT JOIN unnest($3::smallint[], $4::bigint[], $5::bigint[]) AS f (partition, low, high) ON f.partition = h.partition) w
 CROSS JOIN LATERAL (SELECT count(*) AS events, coalesce(bit_xor(hashtextextended(concat_ws('/', l.position, l.event_id, l.tenant_id, l.dedupe_key, l.body), 0)), 0) AS digest
  FROM event_log_rows l WHERE l.partition = h.partition AND l.position > w.low AND l.position <= w.high) t
 WHERE h.partition = ANY ($1::smallint[])`
	positionsSQL = `SELECT c.consumer || ', generation ' || c.generation || ', in partition ' || c.partition, c.position
 FROM consumer_checkpoints c WHERE c.partition = ANY ($1::smallint[])`
	// An instance updates seen_at when it renews its leases, which also last 5 seconds.
	leasesSQL = `SELECT c.partition, c.position, c.furthest, c.fence, c.owner, c.lease_until > now(),
 EXISTS (SELECT FROM relay_instances i WHERE i.instance = c.owner AND i.seen_at > now() - interval '5 seconds')
 FROM relay_cursors c WHERE c.partition = ANY ($1::smallint[])`
	relaysSQL = `SELECT count(*) FROM relay_instances WHERE seen_at > now() - interval '5 seconds'`
)

// observe records the state of the partitions; with first, it uses the ranges of the first observation.
func (l *observation) observe(ctx context.Context, v *verifier, first *observation) error {
	l.heads, l.checkpoints, l.cursors = map[int16]seenHead{}, map[string]int64{}, map[int16]lease{}
	var of []int16
	var low, high []int64
	if first != nil {
		for p, h := range first.heads {
			of, low, high = append(of, p), append(low, h.from), append(high, h.to)
		}
	}
	err := v.snapshot(ctx, func(tx pgx.Tx) error {
		var p int16
		var h seenHead
		err := each(ctx, tx, headsSQL, []any{v.Config.Partitions, stretch, of, low, high},
			[]any{&p, &h.position, &h.from, &h.to, &h.events, &h.digest, &h.accepted, &h.validated, &h.rejected, &h.epoch}, func() error {
				l.heads[p] = h
				return nil
			})
		if err != nil {
			return err
		}
		var name string
		var n int64
		err = each(ctx, tx, positionsSQL, []any{v.Config.Partitions}, []any{&name, &n}, func() error {
			l.checkpoints[name] = n
			return nil
		})
		if err != nil {
			return err
		}
		var c lease
		err = each(ctx, tx, leasesSQL, []any{v.Config.Partitions}, []any{&p, &c.position, &c.furthest, &c.fence, &c.owner, &c.live, &c.heard}, func() error {
			l.cursors[p] = c
			c.owner = nil
			return nil
		})
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, relaysSQL).Scan(&l.relays)
	})
	if err == nil && len(l.cursors) != len(v.Config.Partitions) {
		err = fmt.Errorf("%d of %d partitions have a head and a cursor", len(l.cursors), len(v.Config.Partitions))
	}
	if err != nil {
		return fmt.Errorf("observe the partitions: %w", err)
	}
	return nil
}

// unchanged checks that rows seen before are unchanged and that no position decreased.
func (v *verifier) unchanged(before, after *observation) {
	for p, b := range before.heads {
		a := after.heads[p]
		v.still.n += b.events
		v.still.expect(a.events == b.events && a.digest == b.digest, "positions %d to %d of partition %d changed: %d events now, %d before", b.from+1, b.to, p, a.events, b.events)
		v.still.expect(a.position >= b.position && a.epoch >= b.epoch, "the head of partition %d decreased from %d to %d", p, b.position, a.position)
		v.still.expect(a.accepted >= b.accepted && a.validated >= b.validated && a.rejected >= b.rejected, "a counter of the head of partition %d decreased", p)
	}
	for name, was := range before.checkpoints {
		now, there := after.checkpoints[name]
		v.still.expect(!there || now >= was, "the checkpoint of %s decreased from %d to %d", name, was, now)
	}
	for p, b := range before.cursors {
		a := after.cursors[p]
		v.still.expect(a.position >= b.position || a.fence > b.fence && a.furthest >= b.position, "the relay's cursor of partition %d decreased from %d to %d under the same fence", p, b.position, a.position)
	}
	v.still.note("%d checkpoints", len(before.checkpoints))
	v.still.done = true
}

// leases checks that one live instance publishes each partition. A new owner has a new
// fence; between two owners there may be no owner for a moment.
func (v *verifier) leases(before, after *observation) {
	owners := map[string]bool{}
	for p, a := range after.cursors {
		v.relays.n++
		b := before.cursors[p]
		held := func(l lease) bool { return l.owner != nil && l.live && l.heard }
		if held(a) {
			owners[*a.owner] = true
		}
		v.relays.expect(a.fence >= b.fence, "the fence of partition %d decreased from %d to %d", p, b.fence, a.fence)
		v.relays.expect(a.owner == nil || b.owner == nil || *a.owner == *b.owner || a.fence > b.fence, "partition %d changed from %s to %s under one fence", p, text(b.owner), text(a.owner))
		if before.relays > 0 && after.relays > 0 {
			v.relays.expect(held(a) || held(b), "no live instance holds partition %d (%s)", p, text(a.owner))
		}
	}
	if after.relays == 0 {
		v.relays.note("no relay runs")
	} else {
		v.relays.note("%d relays live, %d of them hold partitions", after.relays, len(owners))
	}
	v.relays.done = true
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// sessionsSQL must run as the service's login: only that login sees the state and the type of
// its sessions, unless it is a member of pg_read_all_stats, which sees all.
const sessionsSQL = `SELECT pid, application_name, coalesce(state, ''), coalesce(extract(epoch FROM now() - state_change), 0)::float8
 FROM pg_stat_activity WHERE datname = current_database() AND coalesce(backend_type, 'client backend') = 'client backend' AND application_name LIKE 'meterplex%'`

var errHidden = errors.New("the state of the sessions is visible only to their own login: use the service's DATABASE_URL, or GRANT pg_read_all_stats")

func (v *verifier) sessions(ctx context.Context) error {
	var pid int
	var name, state string
	var seconds float64
	var hidden int64
	err := each(ctx, v.login, sessionsSQL, nil, []any{&pid, &name, &state, &seconds}, func() error {
		v.idle.n++
		since := time.Duration(seconds * float64(time.Second))
		switch {
		case state == "":
			hidden++
		case len(state) > 4 && state[:4] == "idle" && state != "idle" && since > v.Idle:
			v.idle.fault("session %d (%.60q) has been idle in a transaction for %s", pid, name, since.Round(time.Second))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the sessions: %w", err)
	}
	v.idle.add(hidden, "of another login, whose state is not shown")
	if hidden > 0 && hidden == v.idle.n {
		v.idle.incomplete(errHidden)
	}
	v.idle.done = true
	return nil
}
