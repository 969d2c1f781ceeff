package eventlog

import (
	"bytes"
	"context"
	"slices"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// member is an event of a group, with the destination of its answer.
type member struct {
	submitted *metering.Submitted
	outcome   *metering.Outcome
	first     int // index of the first member with the same key; its own if it is the first
}

// group holds the events that one transaction appends.
type group struct {
	log        *Log
	subs       []*submission
	members    []member
	pending    []*events.Pending // of the members, in the same order
	partitions []int16
	mustProbe  bool              // in-batch conflicts and known refusals need a look-up in the log
	inbox      []*events.Pending // keys that are looked up beside those of the members
	firsts     dedupe.Firsts
	promoted   map[int]int // from a refused first member to the next one with its key; -1: not found yet
	rows       []server.Row
	origin     []int32 // numbers of the origins of the members
	hasQuotas  bool    // some members are quota requests
	hasTargets bool    // some members are corrections or retractions
	inlined    inlined // the events that the transaction folds inline
	unreported inlined // the events that the group's commit folded inline, of this attempt or of one whose answer was lost
	ours       bool    // the log had members already: the answer of their COMMIT was lost
	sent       bool    // COMMIT was sent, and its outcome may be unknown
}

func newGroup(l *Log, subs []*submission) *group {
	g := &group{log: l}
	g.fill(subs)
	return g
}

// fill fills the group with submissions, reusing its memory. COMMIT may have been sent for them before.
func (g *group) fill(subs []*submission) {
	sent := g.sent
	g.forget()
	g.sent = sent
	n := rowsOf(subs)
	g.subs, g.members, g.pending, g.rows = subs, slices.Grow(g.members, n), slices.Grow(g.pending, n), slices.Grow(g.rows, n)
	g.firsts.Reset(n)
	for _, s := range subs {
		for i := range s.batch {
			sub := &s.batch[i]
			m := member{sub, &s.outcomes[i], g.firsts.Of(g.pending, &sub.Pending, len(g.pending), sub.Refusal == nil)}
			g.mustProbe = g.mustProbe || sub.Refusal != nil
			g.hasQuotas, g.hasTargets = g.hasQuotas || sub.Quota != nil, g.hasTargets || sub.Target != nil
			if sub.Inbox != "" {
				g.mustProbe = true
				g.inbox = append(g.inbox, &events.Pending{TenantID: sub.TenantID, DedupeKey: sub.Inbox})
			}
			if m.first < len(g.members) {
				g.mustProbe = g.mustProbe || !bytes.Equal(codec.PayloadHash(&g.members[m.first].submitted.Pending),
					codec.PayloadHash(&sub.Pending))
			}
			g.members = append(g.members, m)
			g.pending = append(g.pending, &sub.Pending)
		}
	}
	g.partitions = partitionsOf(g.pending)
}

// forget releases the contents of the group, but keeps the memory of its lists.
func (g *group) forget() {
	clear(g.members)
	clear(g.pending)
	clear(g.rows)
	*g = group{log: g.log, members: g.members[:0], pending: g.pending[:0], rows: g.rows[:0], origin: g.origin[:0], firsts: g.firsts}
}

// originsIn returns the numbers of the origins of all members, in an era of the cache. The
// submissions have them, unless the cache has started again since they were queued.
func (g *group) originsIn(ctx context.Context, era uint64) ([]int32, error) {
	g.origin = g.origin[:0]
	for _, s := range g.subs {
		if s.origins == nil || s.era != era {
			return g.log.originsOf(ctx, g.pending)
		}
		g.origin = append(g.origin, s.origins...)
	}
	return g.origin, nil
}

// deciding is the state of decide.
type deciding struct {
	group     *group
	sequence  *sequencer
	known     map[dedupe.Key]dedupe.Found
	origin    []int32
	quotas    *quotaRequests // nil without quota requests
	requests  []domain.LedgerRequest
	requested []int // the members of requests
	conflicts []conflict
	expired   int     // reservations that were ended to make room
	refused   []int   // the members that limits or targets refuse, and those that are refused with them
	targets   targets // nil without corrections
	noted     []notedTarget
}

// decide classifies every member and builds the rows to write. The locks of the heads
// keep the result of the probe true.
func (g *group) decide(ctx context.Context, conn server.Session, hs heads, origin []int32, quotas *quotaRequests, named targets,
	probing bool) error {
	d := &deciding{group: g, sequence: &sequencer{heads: hs, now: g.log.now()}, origin: origin, quotas: quotas, targets: named}
	if probing {
		var err error
		if d.known, err = dedupe.Probe(ctx, conn, append(g.pending[:len(g.pending):len(g.pending)], g.inbox...)); err != nil {
			return err
		}
	}
	g.rows, g.promoted, g.inlined, g.ours = g.rows[:0], nil, inlined{}, false
	g.settleInline(d.known)
	from := 0
	for _, s := range g.subs {
		n := 1
		if s.whole {
			n = len(s.batch)
		}
		for end := from + len(s.batch); from < end; from += n {
			if err := d.decide(ctx, conn, from, from+n); err != nil {
				return err
			}
		}
	}
	if err := d.checkRefused(ctx, conn, probing); err != nil {
		return err
	}
	return g.appendConflicts(ctx, conn, d.sequence, d.conflicts)
}

// decide decides members that are stored together or not at all: by their keys, then by the targets of corrections, then by limits.
func (d *deciding) decide(ctx context.Context, conn server.Session, from, to int) error {
	stored := true
	for k := from; k < to; k++ {
		stored = d.compare(k, from) && stored
	}
	if stored {
		var err error
		if stored, err = d.grant(ctx, conn, from, to); err != nil {
			return err
		}
	}
	for k := from; k < to; k++ {
		switch m := &d.group.members[k]; {
		case m.outcome.Status != metering.Unknown:
		case stored:
			d.add(k)
		default:
			*m.outcome = metering.Outcome{Status: metering.Absent}
			d.refuse(k)
		}
	}
	return nil
}

// compare compares a member with the events of its key, and reports whether the members from first on may be stored with it.
func (d *deciding) compare(k, first int) bool {
	g := d.group
	m := &g.members[k]
	*m.outcome = metering.Outcome{} // not that of an earlier attempt
	f, ok := d.known[dedupe.KeyOf(&m.submitted.Pending)]
	switch earlier := g.firstOf(k); {
	case m.refusedBefore(d.known):
		g.promoteNext(k)
	case ok && f.EventID == m.submitted.EventID: // of an unanswered COMMIT
		g.ours = true
		*m.outcome = metering.Outcome{Status: metering.Appended, Position: f.Position}
	case ok:
		d.compareWith(k, f)
	case earlier < first:
		d.compareWith(k, g.inGroup(earlier))
	case earlier < k: // one that is stored together with it, or not at all
		if !bytes.Equal(g.inGroup(earlier).Hash, codec.PayloadHash(&m.submitted.Pending)) {
			*m.outcome = metering.Outcome{Status: metering.Conflict}
		}
	case m.submitted.Refusal != nil:
		d.deny(k, m.submitted.Refusal)
	}
	status := m.outcome.Status
	return status == metering.Unknown || status == metering.Appended || status == metering.Duplicate
}

// add gives a member's event the next position, unless it repeats one that is stored together with it.
func (d *deciding) add(k int) {
	g := d.group
	m := &g.members[k]
	if first := g.firstOf(k); first != k {
		*m.outcome = metering.Outcome{Status: metering.Duplicate, Position: g.members[first].outcome.Position}
		return
	}
	r := d.sequence.next(&m.submitted.Pending, d.origin[k])
	g.rows = append(g.rows, r)
	*m.outcome = metering.Outcome{Status: metering.Appended, Position: r.Position}
}

// refuse notes a member that is not stored: it is not the first with its key.
func (d *deciding) refuse(k int) {
	d.group.promoteNext(k)
	d.refused = append(d.refused, k)
}

// extend adds the events that the decided rows cause: follow-ups of the inline consumer, and crossings of thresholds.
func (g *group) extend(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, checkpoints map[int16]int64) error {
	decided := len(g.rows)
	if err := g.foldInline(ctx, conn, hs, checkpoints); err != nil {
		return err
	}
	return g.appendCrossings(ctx, conn, hs, quotas, decided)
}

// isDurable reports whether every event that an answer of the group rests on is known to be durable.
func (g *group) isDurable(hs heads) bool {
	for i := range g.members {
		at := g.members[i].outcome.Position
		if at.Number > 0 && !g.log.durable.covers(hs[at.Partition], at) {
			return false
		}
	}
	return true
}

// refusedBefore answers an event whose refusal is in the log, by an earlier delivery, or
// in this group.
func (m *member) refusedBefore(known map[dedupe.Key]dedupe.Found) bool {
	if m.submitted.Inbox == "" {
		return false
	}
	f, ok := known[dedupe.Key{Tenant: m.submitted.TenantID, Key: m.submitted.Inbox}]
	if ok {
		*m.outcome = metering.Outcome{Status: metering.Refused, Position: f.Position, Refusal: m.submitted.Refusal}
	}
	return ok
}

// promoteNext makes the next member with the same key the first occurrence, if member i was
// the first one.
func (g *group) promoteNext(i int) {
	if m := &g.members[i]; g.firstOf(i) != i || m.first == i && m.submitted.Refusal != nil { // no later one names the latter
		return
	}
	if g.promoted == nil {
		g.promoted = map[int]int{}
	}
	g.promoted[g.members[i].first] = -1
}

// firstOf returns the first member with the key of member i that was not refused.
func (g *group) firstOf(i int) int {
	first := g.members[i].first
	next, replaced := g.promoted[first]
	switch {
	case !replaced:
		return first
	case next < 0:
		g.promoted[first] = i
		return i
	}
	return next
}

// inGroup returns the first member in the form that a probe returns for a later one.
func (g *group) inGroup(first int) dedupe.Found {
	m := &g.members[first]
	return dedupe.Found{Position: m.outcome.Position, EventID: m.submitted.EventID, Hash: codec.PayloadHash(&m.submitted.Pending)}
}

type conflict struct {
	pending events.Pending
	origin  int32
}

// compareWith compares a member with the first event of its key. Only conflicts of usage are recorded.
func (d *deciding) compareWith(k int, f dedupe.Found) {
	m := &d.group.members[k]
	if bytes.Equal(f.Hash, codec.PayloadHash(&m.submitted.Pending)) {
		*m.outcome = metering.Outcome{Status: metering.Duplicate, Position: f.Position}
		return
	}
	*m.outcome = metering.Outcome{Status: metering.Conflict, Position: f.Position}
	if m.submitted.Subject != events.ReservationHeld {
		d.conflicts = append(d.conflicts, conflict{metering.ConflictOf(&m.submitted.Pending, f.Position, f.Hash), d.origin[k]})
	}
}

// appendConflicts records each conflict once for each eventId and hash.
func (g *group) appendConflicts(ctx context.Context, conn server.Session, sequence *sequencer, conflicts []conflict) error {
	if len(conflicts) == 0 {
		return nil
	}
	pending := make([]*events.Pending, len(conflicts))
	for i := range conflicts {
		pending[i] = &conflicts[i].pending
	}
	known, err := dedupe.Probe(ctx, conn, pending)
	if err != nil {
		return err
	}
	for i := range conflicts {
		key := dedupe.KeyOf(pending[i])
		if _, ok := known[key]; ok {
			continue
		}
		pending[i].EventID = g.log.cfg.NewID()
		r := sequence.next(pending[i], conflicts[i].origin)
		g.rows = append(g.rows, r)
		known[key] = dedupe.Found{Position: r.Position}
	}
	return nil
}

// answer gives every submission its outcomes, or one error.
func (g *group) answer(err error) {
	for _, s := range g.subs {
		s.end(err)
	}
}

// end answers a submission, with its outcomes or an error.
func (s *submission) end(err error) {
	if err != nil {
		s.outcomes = nil
	}
	s.load.remove(s)
	s.done <- err
}
