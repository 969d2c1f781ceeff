package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// observation is an observation of all partitions at one moment.
type observation struct {
	heads       map[int16]seenHead
	checkpoints map[string]int64
	cursors     map[int16]lease
	at          time.Time
	relays      int64 // instances heard from recently
	reported    int64 // of them since the first observation
}

type seenHead struct {
	position, from, to                   int64 // the range (from, to] at the end of the first observation
	events, digest                       int64
	accepted, validated, rejected, epoch int64
	erasures                             int64 // of personal data: the digest leaves out the parts that they change
}

type lease struct {
	position, furthest, fence int64
	owner                     *string
	live, heard               bool
}

// stretch is how many positions before the head are compared. Earlier positions exist in both
// passes, since positions are dense.
const stretch = 4_000

var headsSQL = `SELECT h.partition, h.position, w.low, w.high, t.events, t.digest, h.accepted, h.validated, h.rejected, h.epoch,
 cardinality(x.tenants) FROM log_heads h
 CROSS JOIN LATERAL (SELECT ARRAY(SELECT e.tenant_id FROM erasures e WHERE ` + fmt.Sprintf(isRequested, "h.partition") + `) AS tenants) x
 CROSS JOIN LATERAL (SELECT coalesce(f.low, greatest(h.position - $2::bigint, 0)) AS low, coalesce(f.high, h.position) AS high
  FROM (SELECT) one LEFT JOIN unnest($3::smallint[], $4::bigint[], $5::bigint[]) AS f (partition, low, high) ON f.partition = h.partition) w
 CROSS JOIN LATERAL (SELECT count(*) AS events, coalesce(bit_xor(hashtextextended(concat_ws('/', l.position, l.event_id, l.tenant_id,
   CASE WHEN l.tenant_id <> ALL (x.tenants) THEN l.dedupe_key || l.body END), 0)), 0) AS digest
  FROM event_log_rows l WHERE l.partition = h.partition AND l.position > w.low AND l.position <= w.high) t
 WHERE h.partition = ANY ($1::smallint[])`

const (
	positionsSQL = `SELECT c.consumer || ', generation ' || c.generation || ', in partition ' || c.partition, c.position
 FROM consumer_checkpoints c WHERE c.partition = ANY ($1::smallint[])`
	// An instance updates seen_at when it renews its leases, which also last 5 seconds.
	leasesSQL = `SELECT c.partition, c.position, c.furthest, c.fence, c.owner, c.lease_until > now(),
 EXISTS (SELECT FROM relay_instances i WHERE i.instance = c.owner AND i.seen_at > now() - interval '5 seconds')
 FROM relay_cursors c WHERE c.partition = ANY ($1::smallint[])`
	relaysSQL = `SELECT now(), count(*), count(*) FILTER (WHERE seen_at > $1) FROM relay_instances
 WHERE seen_at > now() - interval '5 seconds'`
)

// observe records the state of the partitions; with first, it uses the ranges of the first observation.
func (l *observation) observe(ctx context.Context, v *verifier, first *observation) error {
	l.heads, l.checkpoints, l.cursors = map[int16]seenHead{}, map[string]int64{}, map[int16]lease{}
	var of []int16
	var low, high []int64
	var since *time.Time
	if first != nil {
		since = &first.at
		for p, h := range first.heads {
			of, low, high = append(of, p), append(low, h.from), append(high, h.to)
		}
	}
	err := v.snapshot(ctx, func(tx pgx.Tx) error {
		var p int16
		var h seenHead
		err := each(ctx, tx, headsSQL, []any{v.Config.Partitions, stretch, of, low, high},
			[]any{&p, &h.position, &h.from, &h.to, &h.events, &h.digest, &h.accepted, &h.validated, &h.rejected, &h.epoch, &h.erasures},
			func() error {
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
		err = each(ctx, tx, leasesSQL, []any{v.Config.Partitions}, []any{&p, &c.position, &c.furthest, &c.fence, &c.owner, &c.live,
			&c.heard}, func() error {
			l.cursors[p] = c
			c.owner = nil
			return nil
		})
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, relaysSQL, since).Scan(&l.at, &l.relays, &l.reported)
	})
	if err == nil && len(l.cursors) != len(v.Config.Partitions) {
		err = fmt.Errorf("%d of %d partitions have a head and a cursor", len(l.cursors), len(v.Config.Partitions))
	}
	if err != nil {
		return fmt.Errorf("observe the partitions: %w", err)
	}
	return nil
}
