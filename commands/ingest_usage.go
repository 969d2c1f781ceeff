package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// IngestUsage takes a batch of usage into the log. The order of verdicts is
// fixed: shape, then dedupe, then policy, so that a retry of an accepted event is
// a duplicate for ever, whatever has changed since.
type IngestUsage struct {
	Log       UsageLog
	Histories Histories
	Now       Clock
	Ahead     time.Duration // how far ahead of the server a timestamp may be
	Behind    time.Duration // how far behind; keys with usage:backfill may go further
	NewID     func(now time.Time) uuid.UUID
	// Seen is told how many duplicates a batch held; nil: nobody is.
	Seen func(tenant uuid.UUID, duplicates int)
	kept sync.Pool // of *[]Submitted whose events are stored, for their memory
}

// Statuses of a verdict.
const (
	StatusAccepted  = "accepted"
	StatusDuplicate = "duplicate"
	StatusConflict  = "conflict"
	StatusRejected  = "rejected"
)

// EventVerdict answers one event of a batch.
type EventVerdict struct {
	Index    int
	EventID  string // "" where none could be read
	Status   string
	Code     string
	Reason   string
	Pointer  string           // the member at fault, where there is one
	Position *events.Position // of the event, or of the one that was there first
}

// Admit refuses a batch that has not been read yet, where Do would.
func (c *IngestUsage) Admit(by Caller) error { return c.Log.Admit(by.TenantID) }

// Do answers each item in its order. The error is ErrUnavailable: then nothing is
// known of the batch, and it should be sent again as it is.
func (c *IngestUsage) Do(ctx context.Context, by Caller, items []domain.BatchItem) ([]EventVerdict, error) {
	return c.do(ctx, by, items, nil)
}

// inbox is for usage that nobody waits for the answer of: what is refused is stored
// together with what is accepted.
type inbox struct {
	// pending gives the event that records the refusal of an item; of one that is not
	// refused it needs the key alone.
	pending func(i int, refusal *domain.Error) events.Pending
	barred  *domain.Error // refuses, as a matter of policy, whatever is new
}

// do is Do, with an inbox or without.
func (c *IngestUsage) do(ctx context.Context, by Caller, items []domain.BatchItem, in *inbox) ([]EventVerdict, error) {
	verdicts := make([]EventVerdict, len(items))
	refusals := make([]*domain.Error, len(items)) // of policy
	submitted := c.room(len(items))               // never grows: what is in it is pointed to
	index := make([]int, 0, len(items))
	policy := c.policy(by)
	by.Actor = by.actor()
	for i := range items {
		item := &items[i]
		verdicts[i] = EventVerdict{Index: item.Index, EventID: item.EventID}
		if item.Err != nil {
			verdicts[i].reject(item.Err)
			if in != nil {
				submitted, index = append(submitted, Submitted{Pending: in.pending(i, item.Err)}), append(index, i)
			}
			continue
		}
		refusal, err := policy.check(ctx, item.Event)
		if err != nil {
			return nil, err
		}
		if in != nil && in.barred != nil {
			refusal = in.barred
		}
		refusals[i] = inBody(refusal, item)
		submitted, index = append(submitted, Submitted{ProbeOnly: refusal != nil}), append(index, i)
		s := &submitted[len(submitted)-1]
		c.pending(&s.Pending, &by, item.Event, policy.now)
		if in != nil {
			s.claim(in.pending(i, refusals[i]))
		}
	}
	places, err := c.Log.Submit(ctx, by.TenantID, submitted)
	if err != nil {
		return nil, err // the log may be at work on them still
	}
	c.keep(submitted)
	duplicates := 0
	for n := range places {
		v := &verdicts[index[n]]
		if v.Status == StatusRejected { // by its shape; the refusal is stored
			v.Position = &places[n].Position
			continue
		}
		if err := v.place(&places[n], refusals[index[n]]); err != nil {
			return nil, err
		}
		if v.Status == StatusDuplicate {
			duplicates++
		}
	}
	if duplicates > 0 && c.Seen != nil {
		c.Seen(by.TenantID, duplicates)
	}
	return verdicts, nil
}

// manyEvents is from where on the memory of a batch is worth keeping for the next.
const manyEvents = 64

// room is for the events of a batch. What it had before stays until it is written over:
// the half of it at most.
func (c *IngestUsage) room(n int) []Submitted {
	if n >= manyEvents {
		if kept, ok := c.kept.Get().(*[]Submitted); ok && n <= cap(*kept) && cap(*kept) <= 2*n {
			return (*kept)[:0]
		}
	}
	return make([]Submitted, 0, n)
}

// keep takes the room of a batch back that is stored.
func (c *IngestUsage) keep(batch []Submitted) {
	if cap(batch) >= manyEvents {
		c.kept.Put(&batch)
	}
}

// claim names the inbox key of an event, and what is stored where it is refused.
func (s *Submitted) claim(refusal events.Pending) {
	s.Inbox = refusal.DedupeKey
	if s.ProbeOnly {
		s.Refusal = &refusal
	}
}

// inBody points to the member at fault from the top of the body, as refusals of
// shape do. A CloudEvent calls its members by other names: it gets no pointer.
func inBody(refusal *domain.Error, item *domain.BatchItem) *domain.Error {
	if refusal == nil || refusal.Pointer == "" {
		return refusal
	}
	at := *refusal
	at.Pointer = ""
	if item.Event.Source == "" {
		at.Pointer = fmt.Sprintf("/events/%d%s", item.Index, refusal.Pointer)
	}
	return &at
}

func (v *EventVerdict) reject(e *domain.Error) {
	v.Status, v.Code, v.Reason, v.Pointer = StatusRejected, e.Code, e.Message, e.Pointer
}

func (v *EventVerdict) place(p *Placement, refusal *domain.Error) error {
	switch p.Status {
	case Appended:
		v.Status = StatusAccepted
	case Duplicate:
		v.Status = StatusDuplicate
	case Conflict:
		v.Status, v.Code, v.Reason = StatusConflict, "payload_conflict", "eventId was first used with another payload"
	case Absent:
		if refusal == nil {
			return errors.New("the log did not store an event that nothing spoke against")
		}
		v.reject(refusal)
		return nil
	case Refused:
		if refusal == nil {
			refusal = refuse("refused_before", "", "an earlier delivery of the same message was refused")
		}
		v.reject(refusal)
	default:
		return fmt.Errorf("%w: the log gave no verdict", ErrUnavailable)
	}
	v.Position = &p.Position
	return nil
}

// pending fills in what is to be stored of an event.
func (c *IngestUsage) pending(p *events.Pending, by *Caller, e *domain.UsageEvent, now time.Time) {
	*p = events.Pending{
		EventID: c.NewID(now), Subject: events.UsageRecorded, TenantID: by.TenantID, DedupeKey: events.KeyUsage(e.EventID),
		Canonical: domain.CanonicalVersion, CorrelationID: correlation(by, e),
		Actor: by.Actor, OccurredAt: e.Timestamp, Body: e.Body, Replay: by.Replay, Residency: by.Residency,
		Counts: events.Counts{Accepted: 1},
	}
}

// correlation is the trace that the event was made in, where it names one
// (W3C Trace Context: version-traceid-parentid-flags), else that of the request.
func correlation(by *Caller, e *domain.UsageEvent) uuid.UUID {
	if e.TraceParent == "" {
		return by.CorrelationID
	}
	if parts := strings.Split(e.TraceParent, "-"); len(parts) == 4 {
		if trace, err := uuid.Parse(parts[1]); err == nil {
			return trace
		}
	}
	return by.CorrelationID
}

// policy is what is checked after shape and dedupe, for one batch.
type policy struct {
	c       *IngestUsage
	by      Caller
	now     time.Time
	behind  time.Duration
	history domain.History
	loaded  bool
	fresh   bool
}

func (c *IngestUsage) policy(by Caller) *policy {
	p := &policy{c: c, by: by, now: c.Now(), behind: c.Behind}
	if by.Has(ScopeUsageBackfill) {
		p.behind = -1
	}
	return p
}

// wholeLog is a position beyond all: ingest decides on what is known now.
const wholeLog = int64(^uint64(0) >> 1)

// check asks the validator's function. A cached yes is enough; a no is confirmed
// against the tables before it is answered.
func (p *policy) check(ctx context.Context, e *domain.UsageEvent) (*domain.Error, error) {
	if refusal := domain.CheckWindow(e.Timestamp, p.now, p.c.Ahead, p.behind); refusal != nil {
		return refusal, nil
	}
	if !p.loaded {
		h, err := p.c.Histories.Cached(ctx, p.by.TenantID)
		if err != nil {
			return nil, err
		}
		p.history, p.loaded = h, true
	}
	_, _, refusal := domain.Entitled(p.history, wholeLog, e.Feature, e.Timestamp)
	if refusal == nil || p.fresh {
		return refusal, nil
	}
	h, err := p.c.Histories.Fresh(ctx, p.by.TenantID)
	if err != nil {
		return nil, err
	}
	p.history, p.fresh = h, true
	_, _, refusal = domain.Entitled(p.history, wholeLog, e.Feature, e.Timestamp)
	return refusal, nil
}
