package eventlog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/tables"
)

// Inline is a consumer of this process that folds events in the transaction that appends them: it writes
// only follow-ups and checkpoints. Events that it leaves reach it later, as from any other process.
type Inline interface {
	// Topic is the consumer's topic.
	Topic() events.Topic
	// Open returns those of some partitions whose events reach the consumer in this process.
	Open(partitions []int16) []int16
	// Lock returns the statement that locks the checkpoints of partitions without waiting for other sessions.
	// Its rows are the partitions and positions of the locked ones.
	Lock(partitions []int16) (sql string, args []any)
	// Fold returns the follow-ups of the events of stretches; not ok if one of the events has to be left. It may
	// query inside the transaction.
	Fold(ctx context.Context, query Query, stretches []events.InlineStretch, batch []events.Envelope) (followUps []events.Pending, ok bool,
		err error)
	// Move returns the statement that moves the locked checkpoints to the ends of the stretches.
	Move(stretches []events.InlineStretch) (sql string, args []any)
	// Folded reports that the transaction has committed, and how long it took.
	Folded(stretches []events.InlineStretch, batch []events.Envelope, followUps int, took time.Duration)
}

// Query runs a query in a transaction.
type Query = func(ctx context.Context, sql string, args ...any) (pgx.Rows, error)

const (
	// maxInline bounds the events of a group that are folded inline: the heads are locked meanwhile.
	maxInline = 500
	// maxInlineQueued is how many submissions may wait for the writer meanwhile.
	maxInlineQueued = 16
	// maxInlineBehind is by how many positions a checkpoint may be behind the head for the events between
	// them to be folded, too.
	maxInlineBehind = 500
)

// inlined holds the events that a group's transaction folds inline.
type inlined struct {
	stretches []events.InlineStretch
	batch     []events.Envelope
	followUps []events.Pending
}

// stretch returns the stretch of a partition, nil without one.
func (in *inlined) stretch(partition int16) *events.InlineStretch {
	for i := range in.stretches {
		if in.stretches[i].Partition == partition {
			return &in.stretches[i]
		}
	}
	return nil
}

// folded reports whether a row was folded inline.
func (g *group) folded(r *server.Row) bool {
	return len(g.inlined.stretches) > 0 && r.Topic == g.log.cfg.Inline.Topic() && g.inlined.stretch(r.Position.Partition) != nil
}

// lockInline returns the read that locks the checkpoints of the partitions of a group that may be folded
// inline, and the map of their positions that it fills; nil without such partitions. Under a backlog of submissions ingest goes first.
func (w *writer) lockInline(g *group, first bool) (*LockedRead, map[int16]int64) {
	by := w.log.cfg.Inline
	if by == nil || !first || len(g.members) > maxInline || len(w.queue)+len(w.carried) > maxInlineQueued {
		return nil, nil
	}
	open := by.Open(g.partitions)
	if len(open) == 0 {
		return nil, nil
	}
	sql, args := by.Lock(open)
	positions := map[int16]int64{}
	return &LockedRead{server.Statement{SQL: sql, Args: args}, func(rows pgx.Rows) error { return scanCheckpoints(rows, positions) }},
		positions
}

// moves returns the statements that finish the group: the move of the heads, and the other changes with its rows.
func (g *group) moves(hs heads) []server.Move {
	list := append(make([]server.Move, 0, 4),
		server.Move{Name: "move_heads", Statement: server.Statement{SQL: updateHeadsSQL, Args: hs.updateArgs()}})
	if len(g.inlined.stretches) > 0 {
		sql, args := g.log.cfg.Inline.Move(g.inlined.stretches)
		list = append(list, server.Move{Name: "move_checkpoints", Statement: server.Statement{SQL: sql, Args: args}})
	}
	return append(list, tables.Changes(g.rows)...)
}

// settleInline drops the events that an earlier attempt folded inline, unless that attempt was committed. The last
// of them is a member of the group, which no other transaction stores.
func (g *group) settleInline(known map[dedupe.Key]dedupe.Found) {
	n := len(g.unreported.batch)
	if n == 0 {
		return
	}
	last := &g.unreported.batch[n-1]
	if f, ok := known[dedupe.Key{Tenant: last.TenantID, Key: last.DedupeKey}]; !ok || f.EventID != last.EventID {
		g.unreported = inlined{}
	}
}

// reportInline reports the events that the group's commit folded, and how long the last attempt took.
func (g *group) reportInline(took time.Duration) {
	if in := &g.unreported; len(in.stretches) > 0 {
		g.log.cfg.Inline.Folded(in.stretches, in.batch, len(in.followUps), took)
	}
}

// scanCheckpoints reads the positions of locked checkpoints by partition.
func scanCheckpoints(rows pgx.Rows, positions map[int16]int64) error {
	clear(positions)
	var p int16
	var position int64
	_, err := pgx.ForEachRow(rows, []any{&p, &position}, func() error {
		if _, again := positions[p]; again {
			return fmt.Errorf("partition %d has several", p)
		}
		positions[p] = position
		return nil
	})
	if err != nil {
		return fmt.Errorf("locking the checkpoints of an inline consumer: %w", err)
	}
	return nil
}

// foldInline folds the rows of the group on the consumer's topic, and appends the follow-ups. It leaves a
// partition to the consumer unless its locked checkpoint is at, or shortly before, the first of its rows.
func (g *group) foldInline(ctx context.Context, conn server.Session, hs heads, checkpoints map[int16]int64) error {
	by := g.log.cfg.Inline
	if by == nil || len(checkpoints) == 0 {
		return nil
	}
	var in inlined
	for i := range g.rows {
		r := &g.rows[i]
		p := r.Position.Partition
		from, locked := checkpoints[p]
		if !locked || r.Topic != by.Topic() {
			continue
		}
		s := in.stretch(p)
		if s == nil {
			behind, ok, err := g.behind(ctx, conn, events.Stretch{Partition: p, After: from, UpTo: r.Previous})
			if err != nil {
				return err
			}
			if !ok {
				delete(checkpoints, p)
				continue
			}
			if in.batch == nil {
				in.batch = make([]events.Envelope, 0, len(behind)+len(g.rows)-i)
			}
			in.batch = append(in.batch, behind...)
			in.stretches = append(in.stretches, hs[p].inlineStretch(events.Stretch{Partition: p, After: from}))
			s = &in.stretches[len(in.stretches)-1]
		}
		s.UpTo = r.Position.Number
		in.batch = append(in.batch, *g.event(r))
	}
	if len(in.stretches) == 0 {
		return nil
	}
	followUps, ok, err := by.Fold(ctx, conn.Query, in.stretches, in.batch)
	if err != nil || !ok {
		return err
	}
	in.followUps = followUps
	return g.addFollowUps(ctx, hs, in)
}

// behind returns the events between a checkpoint and the first row of the group; not ok if they are too many or
// have to be left.
func (g *group) behind(ctx context.Context, conn server.Session, s events.Stretch) (list []events.Envelope, ok bool, err error) {
	if s.After >= s.UpTo || s.UpTo-s.After > maxInlineBehind {
		return nil, s.After == s.UpTo, nil
	}
	list, err = g.log.ReadIn(ctx, conn, s.Partition, s.After, s.UpTo, g.log.cfg.Inline.Topic(), maxInlineBehind)
	if err != nil || len(list) == 0 || list[len(list)-1].Position.Number != s.UpTo {
		return nil, false, err
	}
	return list, !slices.ContainsFunc(list, func(e events.Envelope) bool { return e.Withheld || e.WithheldLate }), nil
}

// addFollowUps leaves the group as it is if a follow-up has a new origin: it is numbered for the next group, since
// no group waits for that while it holds heads.
func (g *group) addFollowUps(ctx context.Context, hs heads, in inlined) error {
	origins, err := g.log.origins.KnownNumbers(ctx, len(in.followUps), func(i int) *events.Pending { return &in.followUps[i] })
	if err != nil || origins == nil {
		return err
	}
	sequence := &sequencer{heads: hs, now: g.log.now()}
	for i := range in.followUps {
		g.rows = append(g.rows, sequence.next(&in.followUps[i], origins[i]))
	}
	g.inlined, g.unreported = in, in
	return nil
}
