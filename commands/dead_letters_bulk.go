package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

const (
	// MaxBulk bounds the dead letters of one call, so that it ends within a request's deadline.
	MaxBulk = 10_000
	// bulkPart bounds the events of one transaction, because ingest waits for the head meanwhile.
	bulkPart  = 200
	maxSample = 20
)

// BulkAsk is a request to retry or discard the dead letters that match a filter.
type BulkAsk struct {
	Action string // events.BulkRetry or events.BulkDiscard
	Filter events.DeadLetterFilter
	Reason string
	DryRun bool
}

// DeadLetterRef is a dead letter that matched a filter.
type DeadLetterRef struct{ ID, TenantID uuid.UUID }

// BulkRefusal counts the matched dead letters that were refused for one reason.
type BulkRefusal struct {
	Code   string `json:"code"`
	Count  int    `json:"count"`
	Reason string `json:"reason"`
}

// BulkResult is the outcome of a bulk, or of its dry run.
type BulkResult struct {
	BulkID  uuid.UUID     `json:"bulkId"` // Nil for a dry run
	Matched int           `json:"matched"`
	Done    int           `json:"done"` // discarded, or with a retry requested
	Refused []BulkRefusal `json:"refused"`
	Sample  []uuid.UUID   `json:"sample"` // ids of some that are done
}

// Bulk retries or discards the dead letters that find returns, at most MaxBulk. Each
// gets an event of its own, decided as for a single request, in transactions of one
// partition. If the call is interrupted, the events appended so far stay. Repeating
// the call, with the same Idempotency-Key or another, requests no dead letter twice.
// find may lag behind the log. If there are more than MaxBulk, it returns one more.
func (d *DeadLetters) Bulk(ctx context.Context, by Caller, once Once, ask BulkAsk, find func(context.Context) ([]DeadLetterRef, error)) (BulkResult, error) {
	if refusal := checkBulk(&ask); refusal != nil {
		return BulkResult{}, refusal
	}
	refs, err := find(ctx)
	if err != nil {
		return BulkResult{}, err
	}
	b := &bulk{DeadLetters: d, by: by, ask: ask, result: BulkResult{Matched: len(refs)}}
	if ask.DryRun {
		if refusal := tooMany(refs); refusal != nil {
			return BulkResult{}, refusal
		}
		return b.run(ctx, refs)
	}
	answered, err := b.begin(ctx, once, refs)
	if answered || err != nil {
		return b.result, err
	}
	if b.result, err = b.run(ctx, refs); err != nil || once.Key == "" {
		return b.result, halfDone(err)
	}
	return b.result, halfDone(b.finish(ctx, once))
}

// halfDone keeps the refusal of one transaction from being returned as a refusal of
// the whole call, because the transactions before it are committed.
func halfDone(err error) error {
	var full *Overloaded
	if errors.As(err, &full) {
		return fmt.Errorf("%w: the database was busy in the middle of a bulk", ErrUnavailable)
	}
	return err
}

func checkBulk(ask *BulkAsk) *domain.Error {
	switch {
	case ask.Action != events.BulkRetry && ask.Action != events.BulkDiscard:
		return refuse("action_invalid", "/action", "action must be one of %s, %s", events.BulkRetry, events.BulkDiscard)
	case ask.Filter.Empty():
		return refuse("filter_empty", "/filter", "the filter is empty and would match every dead letter; set at least one member")
	case ask.Reason != "" || ask.Action == events.BulkDiscard && !ask.DryRun:
		return reasonFault(ask.Reason)
	}
	return nil
}

func tooMany(refs []DeadLetterRef) *domain.Error {
	if len(refs) > MaxBulk {
		return refuse("bulk_too_large", "/filter", "the filter finds more than %d dead letters; narrow it, by tenantId, fingerprint or from and to", MaxBulk)
	}
	return nil
}

// bulk is a call of Bulk in progress.
type bulk struct {
	*DeadLetters
	by     Caller
	ask    BulkAsk
	result BulkResult
}

// begun is the key of the answer that is stored while a bulk is in progress. It cannot
// collide, because no caller's key contains a line feed.
func (b *bulk) begun(once Once) string { return b.key(once) + "\nbegun" }

func (b *bulk) key(once Once) string { return b.by.KeyID.String() + "/" + once.Key }

// begin records the request for the bulk. If the same key was used before, begin
// continues an unfinished bulk, and returns the stored answer of a finished one.
func (b *bulk) begin(ctx context.Context, once Once, refs []DeadLetterRef) (answered bool, err error) {
	err = b.Store.Change(ctx, events.Platform, func(tx Tx) error {
		for _, key := range []string{b.key(once), b.begun(once)} {
			if once.Key == "" {
				break
			}
			first, err := tx.Answer(key)
			if err != nil {
				return err
			}
			if first != nil {
				answered = key == b.key(once)
				return repeat(first, once, &b.result)
			}
		}
		if refusal := tooMany(refs); refusal != nil {
			return refusal
		}
		b.result.BulkID = b.NewID()
		if err := b.record(tx); err != nil || once.Key == "" {
			return err
		}
		return b.save(tx, b.begun(once), once)
	})
	return answered, err
}

func (b *bulk) record(tx Tx) error {
	body, err := events.EncodePayload(events.BulkRequested, events.Bulk{Action: b.ask.Action, Filter: b.ask.Filter, Reason: b.ask.Reason, Matched: b.result.Matched})
	if err != nil {
		return err
	}
	_, err = tx.Append(events.Pending{
		EventID: b.result.BulkID, Subject: events.BulkRequested, TenantID: events.Platform, DedupeKey: events.KeyEvent(b.result.BulkID),
		CorrelationID: b.by.CorrelationID, Actor: b.by.actor(), OccurredAt: b.now(), Payload: body,
	})
	return err
}

func (b *bulk) save(tx Tx, key string, once Once) error {
	body, err := json.Marshal(b.result)
	if err != nil {
		return fmt.Errorf("encoding an answer: %w", err)
	}
	return tx.SaveAnswer(key, Answer{once.RequestHash, body})
}

// finish stores the answer, unless another call with the same key stored one first.
func (b *bulk) finish(ctx context.Context, once Once) error {
	return b.Store.Change(ctx, events.Platform, func(tx Tx) error {
		first, err := tx.Answer(b.key(once))
		if err != nil {
			return err
		}
		if first != nil {
			return repeat(first, once, &b.result)
		}
		return b.save(tx, b.key(once), once)
	})
}

// run processes the dead letters, partition by partition.
func (b *bulk) run(ctx context.Context, refs []DeadLetterRef) (BulkResult, error) {
	slices.SortFunc(refs, func(x, y DeadLetterRef) int {
		return cmp.Or(cmp.Compare(events.PartitionOf(x.TenantID), events.PartitionOf(y.TenantID)), slices.Compare(x.ID[:], y.ID[:]))
	})
	tally := BulkResult{BulkID: b.result.BulkID, Matched: len(refs), Refused: []BulkRefusal{}, Sample: []uuid.UUID{}}
	for len(refs) > 0 {
		n := 1
		for n < min(len(refs), bulkPart) && events.PartitionOf(refs[n].TenantID) == events.PartitionOf(refs[0].TenantID) {
			n++
		}
		done, refused, err := b.decidePartition(ctx, refs[:n])
		if err != nil {
			return tally, err
		}
		tally.add(done, refused)
		refs = refs[n:]
	}
	slices.SortFunc(tally.Refused, func(x, y BulkRefusal) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Code, y.Code), cmp.Compare(x.Reason, y.Reason))
	})
	return tally, nil
}

func (r *BulkResult) add(done []uuid.UUID, refused []*domain.Error) {
	r.Done += len(done)
	r.Sample = append(r.Sample, done[:min(len(done), maxSample-len(r.Sample))]...)
	for _, no := range refused {
		at := slices.IndexFunc(r.Refused, func(b BulkRefusal) bool { return b.Code == no.Code && b.Reason == no.Message })
		if at < 0 {
			at = len(r.Refused)
			r.Refused = append(r.Refused, BulkRefusal{Code: no.Code, Reason: no.Message})
		}
		r.Refused[at].Count++
	}
}

// decidePartition decides on dead letters of one partition in one transaction.
func (b *bulk) decidePartition(ctx context.Context, refs []DeadLetterRef) (done []uuid.UUID, refused []*domain.Error, err error) {
	ids := make([]uuid.UUID, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	err = b.Store.Change(ctx, refs[0].TenantID, func(tx Tx) error {
		letters, err := tx.DeadLetters(ids)
		if err != nil {
			return err
		}
		var pending []events.Pending
		for _, id := range ids {
			l := letters[id]
			refusal := b.judge(l)
			if refusal != nil {
				refused = append(refused, refusal)
				continue
			}
			done = append(done, id)
			if b.ask.DryRun || b.asked(l) {
				continue
			}
			p, err := b.make(l)
			if err != nil {
				return err
			}
			pending = append(pending, p)
		}
		if err := underResidency(tx, pending); err != nil {
			return err
		}
		return tx.AppendAll(pending)
	})
	return done, refused, err
}

// asked reports whether the bulk requested the dead letter before an interruption.
func (b *bulk) asked(l *DeadLetter) bool {
	return b.result.BulkID != uuid.Nil && slices.Contains(l.AskedBy, b.result.BulkID)
}

// judge returns the reason to refuse a dead letter, nil to accept it.
func (b *bulk) judge(l *DeadLetter) *domain.Error {
	switch {
	case l == nil:
		return noDeadLetter()
	case b.asked(l):
		return nil
	case b.ask.Action == events.BulkDiscard:
		return discardable(l)
	case l.Waiting && l.Status == events.StatusFailed:
		return refuse("retry_requested", "", "a bulk asked for a retry before, which is still to be executed")
	}
	return retryable(l)
}

func (b *bulk) make(l *DeadLetter) (events.Pending, error) {
	if b.ask.Action == events.BulkDiscard {
		return b.discard(l, b.by, b.result.BulkID, b.ask.Reason)
	}
	return b.newRequest(l, b.by, b.result.BulkID, events.RetryRequested, events.KeyRequested(l.ID, l.Requests+1),
		events.Retry{DeadLetterID: l.ID, Attempt: l.Attempts + 1, Reason: b.ask.Reason})
}

// newRequest makes an event for a request about a dead letter.
func (d *DeadLetters) newRequest(l *DeadLetter, by Caller, cause uuid.UUID, subject events.Subject, key string, payload any) (events.Pending, error) {
	body, err := events.EncodePayload(subject, payload)
	if err != nil {
		return events.Pending{}, err
	}
	return events.Pending{
		EventID: d.NewID(), Subject: subject, TenantID: l.TenantID, DedupeKey: key, CorrelationID: by.CorrelationID,
		CausationID: cause, Actor: by.actor(), OccurredAt: d.now(), Payload: body,
	}, nil
}
