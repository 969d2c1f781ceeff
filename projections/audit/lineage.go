package audit

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// LineageSpan is how many positions after an event are searched for effects one by one;
// later effects are found by their keys.
const LineageSpan = 20_000

// Bounds of a lineage: a graph that a person can still read.
const (
	maxLineage = 1000 // events
	maxLooks   = 16   // searched stretches
	maxCauses  = 100  // events upward
)

// LineageQuery asks for the causes and the effects of an event. Span 0 is LineageSpan.
type LineageQuery struct {
	Ref      EventRef
	TenantID *uuid.UUID
	Span     int64
}

// Lineage is an event with its causes and effects, by causationId: nodes
// in the order of the log, edges from cause to effect.
//
// A correction or a retraction has an edge from the usage that it names, which is its cause though causationId does not name it; so has
// the verdict on one that is not in the graph. Those that were applied to recorded usage are its effects.
//
// Effects are complete up to CompleteUpTo, and beyond it if keys identify them:
// verdicts, retries and their ends, however late, and failures of usage, once they are
// dead letters. Truncated means that the graph exceeds its bounds.
type Lineage struct {
	Root         uuid.UUID       `json:"root"`
	Nodes        []LineageNode   `json:"nodes"`
	Edges        []LineageEdge   `json:"edges"`
	CompleteUpTo events.Position `json:"completeUpTo"`
	Truncated    bool            `json:"truncated"`
}

// LineageNode is an event in a graph. Summary describes the event in a few words.
type LineageNode struct {
	EventID    uuid.UUID       `json:"eventId"`
	Position   events.Position `json:"position"`
	Subject    string          `json:"subject"`
	RecordedAt time.Time       `json:"recordedAt"`
	Summary    string          `json:"summary"`
}

// LineageEdge leads from a cause to its effect.
type LineageEdge struct {
	From uuid.UUID `json:"from"`
	To   uuid.UUID `json:"to"`
}

// Lineage returns causes and effects of an event; ErrNotFound in the same cases as Event.
func (r *Reads) Lineage(ctx context.Context, v query.Viewer, q LineageQuery) (Lineage, error) {
	var found Lineage
	err := r.Heavy().Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		root, err := readEvent(ctx, tx, q.Ref, q.TenantID)
		if err != nil {
			return err
		}
		l := lineage{tx: tx, root: root, span: cmp.Or(q.Span, LineageSpan), known: map[uuid.UUID]*events.Envelope{}}
		l.add(root)
		if err := l.effects(ctx); err != nil {
			return err
		}
		if err := l.causes(ctx); err != nil {
			return err
		}
		found = l.graph()
		return nil
	})
	return found, err
}

// lineage is a graph under construction.
type lineage struct {
	tx        pgx.Tx
	root      events.Envelope
	span      int64
	known     map[uuid.UUID]*events.Envelope
	effected  []*events.Envelope // the root and its effects, in the order in which they were found
	complete  int64
	truncated bool
}

// add stores an event and reports whether it is new.
func (l *lineage) add(e events.Envelope) bool {
	if l.known[e.EventID] != nil {
		return false
	}
	if len(l.known) >= maxLineage {
		l.truncated = true
		return false
	}
	l.known[e.EventID] = &e
	l.effected = append(l.effected, &e)
	return true
}

// causes follows the chain of causes. It runs last: only effects of the root are wanted,
// not those of its causes.
func (l *lineage) causes(ctx context.Context) error {
	at := &l.root
	for range maxCauses {
		if err := l.addTarget(ctx, at); err != nil {
			return err
		}
		if at.CausationID == uuid.Nil || l.known[at.CausationID] != nil {
			return nil
		}
		cause, err := l.causeOf(ctx, at)
		if err != nil || cause == nil {
			return err
		}
		l.known[cause.EventID] = cause
		at = cause
	}
	l.truncated = true
	return nil
}

// causeOf reads the event that caused another: by the references in the effect, else
// by its id, in the tenant's log, else in the platform's. nil: the viewer may not see it.
func (l *lineage) causeOf(ctx context.Context, e *events.Envelope) (*events.Envelope, error) {
	hints, err := l.matching(ctx, byID, hintsOf(e), e.CausationID)
	if err != nil {
		return nil, err
	}
	tenants := []uuid.UUID{e.TenantID}
	if e.TenantID != events.Platform {
		tenants = append(tenants, events.Platform)
	}
	for _, tenant := range tenants {
		if len(hints) > 0 {
			break
		}
		position, err := positionOf(ctx, l.tx, e.CausationID, &tenant)
		if err != nil {
			return nil, err
		}
		if position != nil {
			hints = append(hints, *position)
		}
	}
	list, err := readEvents(ctx, l.tx, hints)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// effects searches the positions after the root, and finds later effects by keys.
func (l *lineage) effects(ctx context.Context) error {
	partition := l.root.Position.Partition
	heads, err := readHeads(ctx, l.tx, []int16{partition})
	if err != nil {
		return err
	}
	head := heads[partition]
	l.complete = min(head, l.root.Position.Number+l.span)
	if err := l.findEffects(ctx, l.root.Position.Number, l.complete); err != nil {
		return err
	}
	looks := 1
	for asked := 0; asked < len(l.effected); {
		from := asked
		asked = len(l.effected)
		late, err := l.keyed(ctx, l.effected[from:])
		if err != nil {
			return err
		}
		for _, e := range late {
			if !l.add(e) || e.Position.Number+l.span <= l.complete {
				continue
			}
			if looks++; looks > maxLooks {
				l.truncated = true
				return nil
			}
			if err := l.findEffects(ctx, e.Position.Number, min(head, e.Position.Number+l.span)); err != nil {
				return err
			}
		}
	}
	return nil
}

const readCaused = `SELECT $1::smallint, c FROM caused_positions($1, $2, $3, $4, $5, $6) c`

// findEffects finds the effects in a stretch.
func (l *lineage) findEffects(ctx context.Context, after, upTo int64) error {
	var positions []events.Position
	args := []any{l.root.Position.Partition, l.root.TenantID, after, upTo, l.ids(), maxLineage + 1}
	err := query.Run(ctx, l.tx, query.New(readCaused, args, query.Into(&positions, scanPosition)))
	if err != nil {
		return err
	}
	list, err := readEvents(ctx, l.tx, positions)
	for _, e := range list {
		l.add(e)
	}
	return err
}

func (l *lineage) ids() []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(l.effected))
	for _, e := range l.effected {
		ids = append(ids, e.EventID)
	}
	return ids
}

func (l *lineage) graph() Lineage {
	g := Lineage{Root: l.root.EventID, Nodes: []LineageNode{}, Edges: []LineageEdge{}, Truncated: l.truncated,
		CompleteUpTo: events.Position{Partition: l.root.Position.Partition, Number: l.complete}}
	all := make([]*events.Envelope, 0, len(l.known))
	for _, e := range l.known {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *events.Envelope) int {
		return cmp.Or(a.RecordedAt.Compare(b.RecordedAt), cmp.Compare(a.Position.Partition, b.Position.Partition),
			cmp.Compare(a.Position.Number, b.Position.Number))
	})
	targets := l.targets()
	for _, e := range all {
		info, _ := e.Subject.Info()
		g.Nodes = append(g.Nodes, LineageNode{e.EventID, e.Position, info.Name(), e.RecordedAt.UTC(), summaryOf(e)})
		if l.known[e.CausationID] != nil {
			g.Edges = append(g.Edges, LineageEdge{e.CausationID, e.EventID})
		}
		if target, ok := targets[e.EventID]; ok {
			g.Edges = append(g.Edges, LineageEdge{target, e.EventID})
		}
	}
	return g
}
