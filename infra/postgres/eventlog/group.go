package eventlog

import (
	"bytes"
	"context"
	"slices"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// member is an event of a group, with the destination of its answer.
type member struct {
	submitted *metering.Submitted
	placement *metering.Placement
	first     int // index of the first member with the same key; its own if it is the first
}

// group holds the events that one transaction appends.
type group struct {
	log        *Log
	subs       []*submission
	members    []member
	pending    []*events.Pending // of the members, in the same order
	partitions []int16
	mustProbe  bool              // in-batch conflicts and probes need a look-up in the log
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

// fill fills the group with submissions, reusing its memory.
func (g *group) fill(subs []*submission) {
	g.forget()
	n := rowsOf(subs)
	g.subs, g.members, g.pending, g.rows = subs, slices.Grow(g.members, n), slices.Grow(g.pending, n), slices.Grow(g.rows, n)
	g.firsts.Reset(n)
	for _, s := range subs {
		for i := range s.batch {
			sub := &s.batch[i]
			m := member{sub, &s.places[i], g.firsts.Of(g.pending, &sub.Pending, len(g.pending), !sub.ProbeOnly)}
			if sub.ProbeOnly {
				g.mustProbe = true
			}
			g.hasQuotas, g.hasTargets = g.hasQuotas || sub.Quota != nil, g.hasTargets || sub.Target != nil
			if sub.Inbox != "" {
				g.mustProbe = true
				g.inbox = append(g.inbox, &events.Pending{TenantID: sub.TenantID, DedupeKey: sub.Inbox})
			}
			if m.first < len(g.members) {
				g.mustProbe = g.mustProbe || !sameHash(codec.PayloadHash(&g.members[m.first].submitted.Pending),
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

func sameHash(a, b []byte) bool { return bytes.Equal(a, b) }

// deciding is the state of decide.
type deciding struct {
	group     *group
	places    *placer
	known     map[dedupe.Key]dedupe.Found
	origin    []int32
	quotas    *quotaRequests // nil without quota requests
	conflicts []conflict
	expired   int     // reservations that were ended to make room
	denied    []int   // the members of quota requests that are not granted, and of corrections that are refused
	targets   targets // nil without corrections
}

// place gives a member's event the next position.
func (d *deciding) place(m *member, origin int32) {
	r := d.places.place(&m.submitted.Pending, origin)
	d.group.rows = append(d.group.rows, r)
	*m.placement = metering.Placement{Status: metering.Appended, Position: r.Position}
	if d.targets != nil {
		d.note(m)
	}
}

// decide classifies every member and builds the rows to write. The locks of the heads
// keep the result of the probe true.
func (g *group) decide(ctx context.Context, conn server.Session, hs heads, origin []int32, quotas *quotaRequests, named targets,
	probing bool) error {
	d := &deciding{group: g, places: &placer{heads: hs, now: g.log.now()}, origin: origin, quotas: quotas, targets: named}
	if probing {
		var err error
		if d.known, err = dedupe.Probe(ctx, conn, append(g.pending[:len(g.pending):len(g.pending)], g.inbox...)); err != nil {
			return err
		}
	}
	g.rows, g.promoted, g.inlined, g.ours = g.rows[:0], nil, inlined{}, false
	g.settleInline(d.known)
	for i := 0; i < len(g.members); i++ {
		if g.members[i].submitted.Quota == nil {
			d.decideEvent(i)
			continue
		}
		last, err := d.decideQuotas(ctx, conn, i)
		if err != nil {
			return err
		}
		i = last
	}
	if err := d.checkDenied(ctx, conn, probing); err != nil {
		return err
	}
	return g.appendConflicts(ctx, conn, d.places, d.conflicts)
}

// decideEvent classifies a member that is no quota request.
func (d *deciding) decideEvent(i int) {
	g := d.group
	m := &g.members[i]
	f, ok := d.known[dedupe.KeyOf(&m.submitted.Pending)]
	first := g.firstOf(i)
	switch {
	case m.refusedBefore(d.known):
		g.promoteNext(i)
	case ok && f.EventID == m.submitted.EventID: // ours, of an unanswered commit
		g.foundOurs(m, f)
	case ok:
		d.conflicts = m.compare(f, d.origin[i], d.conflicts)
	case first != i:
		d.conflicts = m.compare(g.inGroup(first), d.origin[i], d.conflicts)
	case m.submitted.ProbeOnly && m.submitted.Refusal != nil:
		r := d.places.place(m.submitted.Refusal, d.origin[i])
		g.rows = append(g.rows, r)
		d.known[dedupe.KeyOf(m.submitted.Refusal)] = dedupe.Found{Position: r.Position, EventID: m.submitted.Refusal.EventID}
		*m.placement = metering.Placement{Status: metering.Refused, Position: r.Position}
		g.skipUnstored(i)
	case m.submitted.ProbeOnly:
		*m.placement = metering.Placement{Status: metering.Absent}
		g.skipUnstored(i)
	default:
		if m.submitted.Target != nil {
			if refusal := d.correct(m); refusal != nil {
				d.refuseTarget(i, refusal)
				return
			}
		}
		d.place(m, d.origin[i])
	}
}

// extend adds the events that the decided rows cause: follow-ups of the inline consumer, and crossings of thresholds.
func (g *group) extend(ctx context.Context, conn server.Session, hs heads, quotas *quotaRequests, checkpoints map[int16]int64) error {
	decided := len(g.rows)
	if err := g.foldInline(ctx, conn, hs, checkpoints); err != nil {
		return err
	}
	return g.appendCrossings(ctx, conn, hs, quotas, decided)
}

// foundOurs answers a member that an unanswered COMMIT stored.
func (g *group) foundOurs(m *member, f dedupe.Found) {
	g.ours = true
	*m.placement = metering.Placement{Status: metering.Appended, Position: f.Position}
}

// isDurable reports whether every event that an answer of the group rests on is known to be durable.
func (g *group) isDurable(hs heads) bool {
	for i := range g.members {
		at := g.members[i].placement.Position
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
		*m.placement = metering.Placement{Status: metering.Refused, Position: f.Position}
	}
	return ok
}

// promoteNext makes the next member with the same key the first occurrence, if member i was
// the first one.
func (g *group) promoteNext(i int) {
	if g.firstOf(i) != i {
		return
	}
	if g.promoted == nil {
		g.promoted = map[int]int{}
	}
	g.promoted[g.members[i].first] = -1
}

// skipUnstored does the same for a promoted member that is not stored.
func (g *group) skipUnstored(i int) {
	if g.promoted != nil {
		g.promoteNext(i)
	}
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
	return dedupe.Found{Position: m.placement.Position, EventID: m.submitted.EventID, Hash: codec.PayloadHash(&m.submitted.Pending)}
}

type conflict struct {
	pending events.Pending
	origin  int32
	place   *metering.Placement
}

func (m *member) compare(f dedupe.Found, origin int32, conflicts []conflict) []conflict {
	if sameHash(f.Hash, codec.PayloadHash(&m.submitted.Pending)) {
		*m.placement = metering.Placement{Status: metering.Duplicate, Position: f.Position}
		return conflicts
	}
	*m.placement = metering.Placement{Status: metering.Conflict, Position: f.Position}
	return append(conflicts, conflict{metering.ConflictOf(&m.submitted.Pending, f.Position, f.Hash), origin, m.placement})
}

// appendConflicts records each conflict once for each eventId and hash.
func (g *group) appendConflicts(ctx context.Context, conn server.Session, places *placer, conflicts []conflict) error {
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
		r := places.place(pending[i], conflicts[i].origin)
		g.rows = append(g.rows, r)
		known[key] = dedupe.Found{Position: r.Position}
	}
	return nil
}

// answer gives every submission its placements, or one error.
func (g *group) answer(err error) {
	for _, s := range g.subs {
		s.end(err)
	}
}

// end answers a submission, with its placements or an error.
func (s *submission) end(err error) {
	if err != nil {
		s.places = nil
	}
	s.settleHeld()
	s.load.remove(s)
	s.done <- err
}
