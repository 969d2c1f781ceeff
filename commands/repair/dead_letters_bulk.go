package repair

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
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

// BulkRequest is a request to retry or discard the dead letters that match a filter.
type BulkRequest struct {
	Action string // events.BulkRetry or events.BulkDiscard
	Filter events.DeadLetterFilter
	Reason string
	DryRun bool
	// Expected, if set, is how many dead letters the caller expects the filter to match. The bulk changes exactly these, or none.
	Expected *int
}

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
// partition. If the call is interrupted, the events appended so far stay. A repeated
// call with the same Idempotency-Key continues with the dead letters of the first one
// and counts all of them; with another key it requests no dead letter twice.
// find may lag behind the log. If there are more than MaxBulk, it returns one more.
func (d *DeadLetters) Bulk(ctx context.Context, req commands.Request, wanted BulkRequest,
	find func(context.Context) ([]domain.DeadLetterRef, error)) (BulkResult, error) {
	if refusal := checkBulk(&wanted); refusal != nil {
		return BulkResult{}, refusal
	}
	refs, err := find(ctx)
	if err != nil {
		return BulkResult{}, err
	}
	b := &bulk{DeadLetters: d, req: req, wanted: wanted, result: BulkResult{Matched: len(refs)}}
	if wanted.DryRun {
		if refusal := wanted.refuses(refs); refusal != nil {
			return BulkResult{}, refusal
		}
		return b.run(ctx, refs)
	}
	answered, refs, err := b.begin(ctx, refs)
	if answered || err != nil {
		return b.result, err
	}
	if b.result, err = b.run(ctx, refs); err != nil || req.Idempotency.Key == "" {
		return b.result, halfDone(err)
	}
	return b.finish(ctx)
}

// halfDone keeps the refusal of one transaction from being returned as a refusal of
// the whole call, because the transactions before it are committed.
func halfDone(err error) error {
	var full *commands.Overloaded
	if errors.As(err, &full) {
		return fmt.Errorf("%w: the database was busy in the middle of a bulk", commands.ErrUnavailable)
	}
	return err
}

func checkBulk(wanted *BulkRequest) *domain.Error {
	switch {
	case wanted.Action != events.BulkRetry && wanted.Action != events.BulkDiscard:
		return domain.Refuse("action_invalid", "/action", "action must be one of %s, %s", events.BulkRetry, events.BulkDiscard)
	case wanted.Filter.Empty():
		return domain.Refuse("filter_empty", "/filter", "the filter is empty and would match every dead letter; set at least one member")
	case wanted.Reason != "" || wanted.Action == events.BulkDiscard && !wanted.DryRun:
		return reasonFault(wanted.Reason)
	}
	return nil
}

// refuses returns the reason against a bulk of the dead letters that its filter matches, nil if there is none.
func (wanted *BulkRequest) refuses(refs []domain.DeadLetterRef) *domain.Error {
	if n := len(refs); wanted.Expected != nil && n != *wanted.Expected {
		refusal := domain.Refuse("state_changed", "/expectedMatched",
			"the filter matches %s dead letters, not %d; no dead letter was changed", matchedText(n), *wanted.Expected)
		refusal.Current = &domain.Current{Matched: &n}
		return refusal
	}
	if len(refs) > MaxBulk {
		return domain.Refuse("bulk_too_large", "/filter",
			"the filter finds more than %d dead letters; narrow it, by tenantId, fingerprint or from and to", MaxBulk)
	}
	return nil
}

// matchedText returns a count of which no more than MaxBulk and one were read.
func matchedText(n int) string {
	if n > MaxBulk {
		return fmt.Sprintf("more than %d", MaxBulk)
	}
	return strconv.Itoa(n)
}

// bulk is a call of Bulk in progress.
type bulk struct {
	*DeadLetters
	req    commands.Request
	wanted BulkRequest
	result BulkResult
}

// begun is the key of the answer that is stored while a bulk is in progress. It cannot
// collide, because no caller's key contains a line feed.
func (b *bulk) begun() string { return b.req.Key() + "\nbegun" }

// begunBulk is the answer that is stored while a bulk is in progress. Selected holds its dead letters by their tenants: a bulk that
// continues after an interruption changes the same ones, also if its filter no longer matches those that it changed before.
type begunBulk struct {
	BulkResult
	Selected map[uuid.UUID]letterIDs `json:"selected"`
}

// letterIDs is stored as the base64 of its ids: 10,000 of them take 213 kB, as texts 390 kB.
type letterIDs []uuid.UUID

func (ids letterIDs) MarshalJSON() ([]byte, error) {
	all := make([]byte, 0, len(ids)*len(uuid.UUID{}))
	for _, id := range ids {
		all = append(all, id[:]...)
	}
	return json.Marshal(all)
}

func (ids *letterIDs) UnmarshalJSON(stored []byte) error {
	var all []byte
	if err := json.Unmarshal(stored, &all); err != nil {
		return err
	}
	for id := range slices.Chunk(all, len(uuid.UUID{})) {
		of, err := uuid.FromBytes(id)
		if err != nil {
			return err
		}
		*ids = append(*ids, of)
	}
	return nil
}

func selected(refs []domain.DeadLetterRef) map[uuid.UUID]letterIDs {
	of := map[uuid.UUID]letterIDs{}
	for _, ref := range refs {
		of[ref.TenantID] = append(of[ref.TenantID], ref.ID)
	}
	return of
}

func refsOf(selected map[uuid.UUID]letterIDs) (refs []domain.DeadLetterRef) {
	for tenant, ids := range selected {
		for _, id := range ids {
			refs = append(refs, domain.DeadLetterRef{ID: id, TenantID: tenant})
		}
	}
	return refs
}

// begin records the request for the bulk, and returns the dead letters to change. If the same key was used before, begin
// continues an unfinished bulk, and returns the stored answer of a finished one.
func (b *bulk) begin(ctx context.Context, found []domain.DeadLetterRef) (answered bool, refs []domain.DeadLetterRef, err error) {
	err = b.Store.ChangeDeadLetters(ctx, events.Platform, func(tx DeadLetterTx) (err error) {
		refs = found
		if answered, err = commands.Repeat(tx, b.req.Key(), &b.req.Idempotency, &b.result); answered || err != nil {
			return err
		}
		var before begunBulk
		if begun, err := commands.Repeat(tx, b.begun(), &b.req.Idempotency, &before); begun || err != nil {
			b.result, refs = before.BulkResult, refsOf(before.Selected)
			return err
		}
		if refusal := b.wanted.refuses(refs); refusal != nil {
			return refusal
		}
		b.result.BulkID = b.NewID()
		if _, err := commands.AppendEvent(tx, &commands.Request{By: b.req.By}, b.result.BulkID, b.now(), events.Platform,
			events.BulkRequested,
			events.Bulk{Action: b.wanted.Action, Filter: b.wanted.Filter, Reason: b.wanted.Reason, Matched: b.result.Matched}); err != nil {
			return err
		}
		return commands.Save(tx, b.begun(), &b.req.Idempotency, begunBulk{b.result, selected(refs)})
	})
	return answered, refs, err
}

// finish stores the answer, unless another call with the same key stored one first.
func (b *bulk) finish(ctx context.Context) (BulkResult, error) {
	result, err := commands.Change(b.changeOf(ctx, events.Platform), b.req, func(DeadLetterTx) (BulkResult, error) { return b.result, nil })
	return result, halfDone(err)
}

// run processes the dead letters, partition by partition.
func (b *bulk) run(ctx context.Context, refs []domain.DeadLetterRef) (BulkResult, error) {
	slices.SortFunc(refs, func(x, y domain.DeadLetterRef) int {
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
func (b *bulk) decidePartition(ctx context.Context, refs []domain.DeadLetterRef) (done []uuid.UUID, refused []*domain.Error, err error) {
	ids := make([]uuid.UUID, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	err = b.Store.ChangeDeadLetters(ctx, refs[0].TenantID, func(tx DeadLetterTx) error {
		done, refused = nil, nil // of an attempt that was rolled back
		letters, err := tx.DeadLetters(ids)
		if err != nil {
			return err
		}
		var pending []events.Pending
		var voided []domain.Closing
		for _, id := range ids {
			l := letters[id]
			refusal := b.refusal(l)
			if refusal != nil {
				refused = append(refused, refusal)
				continue
			}
			done = append(done, id)
			if b.wanted.DryRun || b.requested(l) {
				continue
			}
			p, err := b.make(l)
			if err != nil {
				return err
			}
			of, err := voidedBy(tx, &p)
			if err != nil {
				return err
			}
			pending, voided = append(pending, p), append(voided, of...)
		}
		at, err := commands.AppendAll(tx, pending...)
		if err != nil || len(voided) == 0 {
			return err
		}
		return billing.StartPushes(tx, b.NewID, voided, at[0])
	})
	return done, refused, err
}

// requested reports whether the bulk requested the dead letter before an interruption.
func (b *bulk) requested(l *domain.DeadLetter) bool {
	return b.result.BulkID != uuid.Nil && slices.Contains(l.AskedBy, b.result.BulkID)
}

// refusal returns the reason to refuse a dead letter, nil to accept it.
func (b *bulk) refusal(l *domain.DeadLetter) *domain.Error {
	switch {
	case l == nil:
		return noDeadLetter()
	case b.requested(l):
		return nil
	case b.wanted.Action == events.BulkDiscard:
		return l.Discardable()
	case l.Waiting && l.Status == events.StatusFailed:
		return domain.Refuse("retry_requested", "", "a bulk asked for a retry before, which is still to be executed")
	}
	return l.Retryable()
}

func (b *bulk) make(l *domain.DeadLetter) (events.Pending, error) {
	if b.wanted.Action == events.BulkDiscard {
		return b.discard(&b.req, l, b.result.BulkID, b.wanted.Reason)
	}
	return b.request(&b.req, l, b.result.BulkID, events.RetryRequested, events.KeyRequested(l.ID, l.Requests+1),
		events.Retry{DeadLetterID: l.ID, Attempt: l.Attempts + 1, Reason: b.wanted.Reason})
}
