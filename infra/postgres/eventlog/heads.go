package eventlog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// head is a partition's head row while its lock is held.
type head struct {
	partition int16
	position  int64
	epoch     int32
	topics    []int64 // last position of each topic, [t-1] is topic t
	recorded  time.Time
	living    bool          // the server is in the life that the epoch began with
	counts    events.Counts // added by this transaction
}

// inlineStretch returns a stretch of the head's partition, with how far the catalogue and billing have come.
func (h *head) inlineStretch(s events.Stretch) events.InlineStretch {
	return events.InlineStretch{Stretch: s, Epoch: h.epoch, Catalogue: h.topics[events.TopicCatalogue-1],
		Billing: h.topics[events.TopicBilling-1]}
}

// heads are the locked head rows of one transaction, by partition.
type heads map[int16]*head

// stretches returns how far the catalogue and billing have come in each partition.
func (hs heads) stretches() (at []events.InlineStretch) {
	for p, h := range hs {
		at = append(at, h.inlineStretch(events.Stretch{Partition: p}))
	}
	return at
}

// lockHeadsSQL is a statement of its own: folded into the INSERT it would read a
// head that is older than the lock.
const lockHeadsSQL = `SELECT partition, position, epoch, topic_positions, recorded_at, is_server_life(timeline, started_at) FROM log_heads
 WHERE partition = ANY($1) ORDER BY partition FOR UPDATE`

// lockFreeHeadsSQL leaves out the heads that another session has locked.
const lockFreeHeadsSQL = lockHeadsSQL + ` SKIP LOCKED`

func scanHeads(rows pgx.Rows) (heads, error) {
	defer rows.Close()
	hs := heads{}
	for rows.Next() {
		h := &head{}
		if err := rows.Scan(&h.partition, &h.position, &h.epoch, &h.topics, &h.recorded, &h.living); err != nil {
			return nil, fmt.Errorf("reading a head: %w", err)
		}
		hs[h.partition] = h
	}
	return hs, rows.Err()
}

// ofAnotherLife lists the partitions whose epoch has to be raised first, ascending.
func (hs heads) ofAnotherLife() (partitions []int16) {
	for p, h := range hs {
		if !h.living {
			partitions = append(partitions, p)
		}
	}
	slices.Sort(partitions)
	return partitions
}

// How a transaction plans. By default sessions plan each statement again (see
// workerParams), which takes longer than moving the heads. There are always 32 heads,
// so that their plans never go stale. A probe reads the log, which grows.
const (
	keepPlansSQL = `SET LOCAL plan_cache_mode = force_generic_plan`
	planAnewSQL  = `SET LOCAL plan_cache_mode = force_custom_plan`
)

// LockedRead is a query that is sent after the locks of the heads, in the same round trip: it reads the state that
// the holder of the heads before has committed.
type LockedRead struct {
	server.Statement
	Scan func(pgx.Rows) error
}

// beginLocked starts a transaction, locks the heads and runs the reads in one round trip. It locks all of
// the heads, or with lockFreeHeadsSQL those that are free. A nil read is left out.
func beginLocked(ctx context.Context, conn server.Session, partitions []int16, planning, lock string, reads ...*LockedRead) (heads, error) {
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(planning)
	b.Queue(lock, partitions)
	reads = queueReads(b, reads)
	res := conn.SendBatch(ctx, b)
	defer res.Close()
	for range 2 {
		if _, err := res.Exec(); err != nil {
			return nil, fmt.Errorf("beginning a transaction: %w", err)
		}
	}
	rows, err := res.Query()
	if err != nil {
		return nil, fmt.Errorf("locking heads: %w", err)
	}
	hs, err := scanHeads(rows)
	if err == nil && lock == lockHeadsSQL && len(hs) != len(partitions) {
		err = fmt.Errorf("locking heads: %d rows for %d partitions", len(hs), len(partitions))
	}
	if err != nil {
		return nil, err
	}
	if err := scanReads(res, reads); err != nil {
		return nil, err
	}
	return hs, res.Close()
}

// queueReads adds the reads to a batch, and returns them without the nil ones.
func queueReads(b *pgx.Batch, reads []*LockedRead) []*LockedRead {
	reads = slices.DeleteFunc(reads, func(r *LockedRead) bool { return r == nil })
	for _, r := range reads {
		b.Queue(r.SQL, r.Args...)
	}
	return reads
}

func scanReads(from pgx.BatchResults, reads []*LockedRead) error {
	for _, r := range reads {
		rows, err := from.Query()
		if err == nil {
			err = r.Scan(rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Tx is a transaction that appends several times, or changes other tables, too. It knows the heads that it has locked.
type Tx struct {
	*postgres.BatchingTx
	heads heads
}

// In returns a transaction that has begun as one that knows its heads.
func In(tx pgx.Tx) *Tx { return &Tx{BatchingTx: &postgres.BatchingTx{Tx: tx}} }

// LockHeads locks heads inside a transaction that has begun, before it appends, and runs the reads in the same round trip. It fails if the
// epoch of a head has to be raised first; see InServerLife.
func (l *Log) LockHeads(ctx context.Context, tx *Tx, partitions []int16, reads ...*LockedRead) error {
	hs, err := tx.lock(ctx, partitions, reads...)
	if err != nil {
		return err
	}
	tx.moved(hs)
	return l.inNewLife(hs)
}

// lock returns a copy of the heads of partitions, which it locks unless they are, and reads under the locks. A nil read is left out.
func (tx *Tx) lock(ctx context.Context, partitions []int16, reads ...*LockedRead) (heads, error) {
	b, hs := &pgx.Batch{}, heads{}
	for _, p := range partitions {
		if h := tx.heads[p]; h != nil {
			hs[p] = h
		}
	}
	hs = hs.clone() // an append that fails gives positions, too
	locking := len(hs) < len(partitions)
	if locking {
		b.Queue(lockHeadsSQL, partitions)
	}
	reads = queueReads(b, reads)
	if b.Len() == 0 {
		return hs, nil
	}
	res := tx.SendBatch(ctx, b)
	defer res.Close()
	if locking {
		rows, err := res.Query()
		if err == nil {
			hs, err = scanHeads(rows)
		}
		if err != nil {
			return nil, fmt.Errorf("locking heads: %w", err)
		}
	}
	if err := scanReads(res, reads); err != nil {
		return nil, err
	}
	return hs, res.Close()
}

// moved notes heads as they are now, or will be once the queued statements have run.
func (tx *Tx) moved(hs heads) {
	if tx.heads == nil {
		tx.heads = heads{}
	}
	for p, h := range hs {
		h.counts = events.Counts{} // a statement adds them
		tx.heads[p] = h
	}
}

// sequencer gives events their positions after the heads. The events of a tenant are
// adjacent, so its partition is computed once for all of them.
type sequencer struct {
	heads  heads
	now    time.Time
	tenant uuid.UUID
	head   *head // of the tenant; nil at first
}

// next gives a pending event the next position of its partition.
func (s *sequencer) next(p *events.Pending, origin int32) server.Row {
	if s.head == nil || s.tenant != p.TenantID {
		s.tenant, s.head = p.TenantID, s.heads[events.PartitionOf(p.TenantID)]
	}
	h, topic := s.head, p.Subject.Topic()
	h.position++
	r := server.Row{
		Pending: p, Position: events.Position{Partition: h.partition, Number: h.position},
		Previous: h.topics[topic-1], Epoch: h.epoch, Origin: origin, Topic: topic,
	}
	h.topics[topic-1] = h.position
	if s.now.After(h.recorded) {
		h.recorded = s.now
	}
	r.Recorded = h.recorded
	if p.Reservation != nil {
		p.Reservation.SetPosition(h.position)
	}
	h.counts.Accepted += p.Counts.Accepted
	h.counts.Validated += p.Counts.Validated
	h.counts.Rejected += p.Counts.Rejected
	h.counts.Parked += p.Counts.Parked
	return r
}

const updateHeadsSQL = `UPDATE log_heads h SET position = u.position, topic_positions = u.topics::bigint[],
 recorded_at = u.recorded, accepted = h.accepted + u.accepted, validated = h.validated + u.validated,
 rejected = h.rejected + u.rejected, parked = h.parked + u.parked
 FROM unnest($1::smallint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
 AS u (partition, position, topics, recorded, accepted, validated, rejected, parked) WHERE h.partition = u.partition`

// updateArgs gives the parameters of updateHeadsSQL.
func (hs heads) updateArgs() []any {
	var (
		partitions                            []int16
		positions                             []int64
		topics                                []string
		recorded                              []time.Time
		accepted, validated, rejected, parked []int64
	)
	for _, h := range hs {
		partitions = append(partitions, h.partition)
		positions = append(positions, h.position)
		topics = append(topics, arrayText(h.topics))
		recorded = append(recorded, h.recorded)
		accepted = append(accepted, h.counts.Accepted)
		validated = append(validated, h.counts.Validated)
		rejected = append(rejected, h.counts.Rejected)
		parked = append(parked, h.counts.Parked)
	}
	return []any{partitions, positions, topics, recorded, accepted, validated, rejected, parked}
}

func arrayText(v []int64) string {
	b := []byte{'{'}
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, '}'))
}

// partitionsOf lists the partitions that the tenants of pending events live in, ascending.
func partitionsOf(pending []*events.Pending) []int16 {
	var ps []int16
	for i := range pending {
		if i > 0 && pending[i].TenantID == pending[i-1].TenantID {
			continue
		}
		if p := events.PartitionOf(pending[i].TenantID); !slices.Contains(ps, p) {
			ps = append(ps, p)
		}
	}
	slices.Sort(ps)
	return ps
}
