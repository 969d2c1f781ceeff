// Package metering records usage: events of requests and of messages, consumption and reservations within limits,
// and the end of reservations whose time is over.
package metering

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// IngestUsage appends batches of usage to the log. The order of checks is fixed:
// shape, then dedupe, then policy. So a retry of an accepted event is always a
// duplicate, whatever has changed since.
type IngestUsage struct {
	Log       UsageLog
	Histories Histories
	Now       commands.Clock
	Window    domain.TimestampWindow
	NewID     func(now time.Time) uuid.UUID
	// Seen counts duplicates and refusals; nil: no one does.
	Seen *UsageSeen
	kept sync.Pool // of *[]Submitted whose events are stored, to reuse the memory
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
	EventID  string // "" if it could not be read
	Status   string
	Code     string
	Reason   string
	Pointer  string           // the member at fault, if any
	Position *events.Position // of the event, or of the one that was stored first
}

// Admit refuses a batch before it is read, if Do would refuse it.
func (c *IngestUsage) Admit(by commands.Caller) error { return c.Log.Admit(by.TenantID) }

// Do returns a verdict for each item, in order. After ErrUnavailable the outcome is
// unknown, and the caller should send the same batch again. Any other error refuses the
// caller: its key or its tenant has ended, and no event is recorded.
func (c *IngestUsage) Do(ctx context.Context, by commands.Caller, items []intake.BatchItem) ([]EventVerdict, error) {
	return c.do(ctx, by, items, nil, false)
}

// DoStrict is Do, but records no event if one is refused: then the verdict on each other new event is CodeBatchRefused.
func (c *IngestUsage) DoStrict(ctx context.Context, by commands.Caller, items []intake.BatchItem) (verdicts []EventVerdict, recorded bool,
	err error) {
	verdicts, err = c.do(ctx, by, items, nil, true)
	recorded, refused := true, false
	for i := range verdicts {
		v := &verdicts[i]
		recorded = recorded && (v.Status == StatusAccepted || v.Status == StatusDuplicate)
		refused = refused || v.Status == StatusConflict || v.Status == StatusRejected && v.Code != CodeBatchRefused
	}
	if err == nil && !recorded && !refused {
		err = fmt.Errorf("%w: the log gave no verdict", commands.ErrUnavailable)
	}
	return verdicts, recorded, err
}

// CodeBatchRefused is the code of an event that is not recorded because another one of its batch is refused.
const CodeBatchRefused = "batch_refused"

func batchRefused() *domain.Error {
	return domain.Refuse(CodeBatchRefused, "",
		"not recorded, because another event of the batch is refused and the request prefers handling=strict")
}

// inbox is for usage without a response: refusals are stored together with the
// accepted events.
type inbox struct {
	// pending returns the event that records the refusal of an item. If the item is not
	// refused, only the event's key is used.
	pending func(i int, refusal *domain.Error) events.Pending
	barred  *domain.Error // if set, refuses all new events, as a policy
}

// ingested is a batch with its verdicts.
type ingested struct {
	items    []intake.BatchItem
	verdicts []EventVerdict
	index    []int  // of the items that are submitted
	in       *inbox // nil: refusals are returned only
}

// do is Do with an optional inbox, or DoStrict.
func (c *IngestUsage) do(ctx context.Context, by commands.Caller, items []intake.BatchItem, in *inbox, strict bool) ([]EventVerdict,
	error) {
	b := ingested{items, make([]EventVerdict, len(items)), make([]int, 0, len(items)), in}
	submitted := c.room(len(items)) // never grows: there are pointers into it
	policy := c.policy(by)
	by.Actor = by.ActsAs()
	malformed := strict && slices.ContainsFunc(items, func(item intake.BatchItem) bool { return item.Err != nil })
	for i := range items {
		item := &items[i]
		b.verdicts[i] = EventVerdict{Index: item.Index, EventID: item.EventID}
		if item.Err != nil {
			b.verdicts[i].reject(item.Err)
			if in != nil {
				submitted, b.index = append(submitted, Submitted{Pending: in.pending(i, item.Err)}), append(b.index, i)
			}
			continue
		}
		refusal, err := policy.check(ctx, item.Event)
		if err != nil {
			return nil, err
		}
		if in != nil && in.barred != nil {
			refusal = in.barred
		} else if refusal == nil && malformed {
			refusal = batchRefused()
		}
		submitted, b.index = append(submitted, Submitted{Refusal: refusal, Whole: strict}), append(b.index, i)
		s := &submitted[len(submitted)-1]
		c.pending(&s.Pending, &by, item.Event, policy.now)
		switch {
		case refusal != nil:
		case item.Event.CorrectionRef != "":
			s.Target = &CorrectionTarget{Ref: item.Event.CorrectionRef, Feature: item.Event.Feature,
				Retraction: item.Event.Type == events.TypeRetraction}
		case policy.enforced(item.Event.Feature): // the decision reads the grant under the lock
			s.enforce(item.Event)
		}
		if in != nil {
			s.record(in, i, item)
		}
	}
	if len(submitted) > 0 {
		submitted[0].Admission = by.Admission.OrNil()
	}
	outcomes, err := c.Log.Submit(ctx, by.TenantID, submitted)
	if err != nil {
		return nil, err // the log may be at work on them still
	}
	c.release(submitted)
	return b.verdicts, c.settle(&by, &b, outcomes)
}

// settle completes the verdicts with the outcomes of the submitted events.
func (c *IngestUsage) settle(by *commands.Caller, b *ingested, outcomes []Outcome) error {
	unrecorded := len(b.items) - len(outcomes) // duplicates and refusals
	for n := range outcomes {
		i := b.index[n]
		v := &b.verdicts[i]
		if v.Status == StatusRejected { // because of its shape; the refusal is stored
			v.Position = &outcomes[n].Position
			unrecorded++
			continue
		}
		if err := v.complete(&outcomes[n], inBody(outcomes[n].Refusal, &b.items[i])); err != nil {
			return err
		}
		if v.Status == StatusDuplicate || v.Status == StatusRejected {
			unrecorded++
		}
	}
	if unrecorded > 0 && c.Seen != nil {
		c.Seen.Seen(by, b.items, b.verdicts, b.in == nil)
	}
	return nil
}

// manyEvents is the least size of a batch whose memory is worth reusing.
const manyEvents = 64

// enforce makes recorded usage a quota request, which the limit of its feature may refuse. Its payload is compared with that of recorded
// usage, so that a repetition is a duplicate whatever the plan enforces by then.
func (s *Submitted) enforce(e *domain.UsageEvent) {
	sent, at := e.Payload(), e.Timestamp
	s.Subject, s.Sent, s.Payload = events.UsageAdmitted, sent, nil
	s.Quota = &QuotaRequest{LedgerRequest: domain.LedgerRequest{Kind: domain.Enforce, TenantID: s.TenantID, Feature: e.Feature,
		Amount: e.Amount, At: &at},
		Grant: func(p *events.Pending, d *domain.Decision) error {
			usage, err := codec.UsageOf(sent)
			if err != nil {
				return err
			}
			return admit(p, &events.Admitted{Usage: usage}, events.ByEnforce, d)
		}}
}

// room returns memory for the events of a batch. Events of an earlier batch stay in
// reused memory until they are overwritten: at most half of it.
func (c *IngestUsage) room(n int) []Submitted {
	if n >= manyEvents {
		if kept, ok := c.kept.Get().(*[]Submitted); ok && n <= cap(*kept) && cap(*kept) <= 2*n {
			return (*kept)[:0]
		}
	}
	return make([]Submitted, 0, n)
}

// release returns the memory of a stored batch to the pool.
func (c *IngestUsage) release(batch []Submitted) {
	if cap(batch) >= manyEvents {
		c.kept.Put(&batch)
	}
}

// record sets the inbox of an event. A refusal that is known is written before the lock of the head.
func (s *Submitted) record(in *inbox, i int, item *intake.BatchItem) {
	if s.Refusal == nil {
		s.Inbox = in.pending(i, nil).DedupeKey
		s.Refuse = func(refusal *domain.Error) events.Pending { return in.pending(i, inBody(refusal, item)) }
		return
	}
	refused := in.pending(i, inBody(s.Refusal, item))
	s.Inbox, s.Refuse = refused.DedupeKey, func(*domain.Error) events.Pending { return refused }
}

// inBody makes the pointer to the member at fault start at the body, as refusals of
// shape do. A CloudEvent gets no pointer, because its members have other names.
func inBody(refusal *domain.Error, item *intake.BatchItem) *domain.Error {
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

func (v *EventVerdict) complete(o *Outcome, refusal *domain.Error) error {
	switch o.Status {
	case Appended:
		v.Status = StatusAccepted
	case Duplicate:
		v.Status = StatusDuplicate
	case Conflict:
		v.Status, v.Code, v.Reason = StatusConflict, "payload_conflict", "eventId was first used with another payload"
		if o.Position.Number == 0 { // by an event of the same batch, which is not recorded
			return nil
		}
	case Absent:
		v.reject(batchRefused())
		return nil
	case Denied:
		v.reject(refusal)
		return nil
	case Refused:
		if refusal == nil {
			refusal = domain.Refuse("refused_before", "", "an earlier delivery of the same message was refused")
		}
		v.reject(refusal)
	default:
		return fmt.Errorf("%w: the log gave no verdict", commands.ErrUnavailable)
	}
	v.Position = &o.Position
	return nil
}

// pending fills in the event to store.
func (c *IngestUsage) pending(p *events.Pending, by *commands.Caller, e *domain.UsageEvent, now time.Time) {
	*p = events.Pending{
		EventID: c.NewID(now), Subject: e.Subject(), TenantID: by.TenantID, DedupeKey: events.KeyUsage(e.EventID),
		Canonical: strictjson.Version, CorrelationID: correlation(by, e),
		Actor: by.Actor, OccurredAt: e.Timestamp, Payload: e.Body, Replay: by.Replay, Residency: by.Residency,
		Counts: events.Counts{Accepted: 1},
	}
}

// correlation returns the trace that the event names, if any, else the trace of the request.
func correlation(by *commands.Caller, e *domain.UsageEvent) uuid.UUID {
	if trace, _, ok := events.ParseTraceParent(e.TraceParent); ok {
		return trace
	}
	return by.CorrelationID
}

// policy holds the checks after shape and dedupe, for one batch.
type policy struct {
	c        *IngestUsage
	by       commands.Caller
	now      time.Time
	backfill bool // the caller may send events of any age
	history  domain.TenantHistory
	loaded   bool
	fresh    bool
	grant    *domain.Grant // of the last event that is not refused
}

// enforced reports whether the last event that was checked is refused above its limit.
func (p *policy) enforced(feature string) bool {
	return domain.Enforced(p.history.Present(feature, p.grant))
}

func (c *IngestUsage) policy(by commands.Caller) *policy {
	return &policy{c: c, by: by, now: c.Now(), backfill: by.Has(commands.ScopeUsageBackfill)}
}

// check applies the validator's decision function. A cached acceptance is enough; a
// refusal is confirmed against the tables before it is returned.
func (p *policy) check(ctx context.Context, e *domain.UsageEvent) (*domain.Error, error) {
	if refusal := p.c.Window.Check(e.Timestamp, p.now, p.backfill); refusal != nil || e.CorrectionRef != "" {
		// a correction needs no subscription
		return refusal, nil
	}
	if !p.loaded {
		h, err := p.c.Histories.Cached(ctx, p.by.TenantID)
		if err != nil {
			return nil, err
		}
		p.history, p.loaded = h, true
	}
	refusal := p.accepts(e)
	if refusal == nil || p.fresh {
		return refusal, nil
	}
	h, err := p.c.Histories.Fresh(ctx, p.by.TenantID)
	if err != nil {
		return nil, err
	}
	p.history, p.fresh = h, true
	return p.accepts(e), nil
}

// accepts returns why the present history refuses usage; nil if it does not.
func (p *policy) accepts(e *domain.UsageEvent) (refusal *domain.Error) {
	const present = math.MaxInt64 // after every position
	_, p.grant, refusal = domain.Entitled(p.history.History, present, e.Feature, e.Timestamp)
	if refusal == nil && len(p.history.Changes) > 0 {
		refusal = p.history.RefuseLate(domain.PeriodKey(p.grant.ResetPeriod, e.Timestamp))
	}
	return refusal
}
