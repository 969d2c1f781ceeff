package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// RequestRetry records the request to retry a tenant's dead letter.
func (d *DeadLetters) RequestRetry(ctx context.Context, req commands.Request, id, tenant uuid.UUID, reason string) (events.Position,
	error) {
	return commands.Change(d.changeOf(ctx, tenant), req, func(tx DeadLetterTx) (events.Position, error) {
		letter, err := deadLetter(tx, id, tenant)
		if err != nil {
			return events.Position{}, err
		}
		if refusal := letter.Retryable(); refusal != nil {
			return events.Position{}, refusal
		}
		return commands.AppendEvent(tx, &req, d.NewID(), d.now(), tenant, events.RetryRequested,
			events.Retry{DeadLetterID: id, Attempt: letter.Attempts + 1, Reason: reason})
	})
}

// ExecuteRetries executes RetryRequested events of one partition, in the transaction
// that advances past them. It appends the new events, then an outcome for each request: a
// DeadLetterRetried, which names the new event, or the refusal. The result holds an error
// for each request that cannot be read, and nil for the others.
func (d *DeadLetters) ExecuteRetries(tx DeadLetterTx, requests []events.Envelope) ([]error, error) {
	retries, faults := make([]events.Retry, len(requests)), make([]error, len(requests))
	var ids []uuid.UUID
	for i := range requests {
		if err := json.Unmarshal(requests[i].Payload, &retries[i]); err != nil {
			faults[i] = fmt.Errorf("decoding a retry request: %w", err)
			continue
		}
		ids = append(ids, retries[i].DeadLetterID)
	}
	letters, err := tx.DeadLetters(ids)
	if err != nil {
		return nil, err
	}
	sources, err := tx.Events(sourcesOf(letters))
	if err != nil {
		return nil, err
	}
	periods, err := periodsOf(tx, letters)
	if err != nil {
		return nil, err
	}
	outcomes := make([]retryOutcome, 0, len(requests))
	for i := range requests {
		if faults[i] != nil {
			continue
		}
		outcomes = append(outcomes, d.outcomeOf(&requests[i], retries[i], letters[retries[i].DeadLetterID], sources, periods))
	}
	return faults, d.append(tx, outcomes)
}

// retryOutcome is the decision on one request: refused, or the retry and its outcome.
type retryOutcome struct {
	request *events.Envelope
	refused *events.Refused
	retry   events.Pending
	done    events.RetryDone // without the position of the retry
}

// append appends the retries, then the outcomes, which name the positions of the retries.
func (d *DeadLetters) append(tx DeadLetterTx, outcomes []retryOutcome) error {
	var retries []events.Pending
	for i := range outcomes {
		if outcomes[i].refused == nil {
			retries = append(retries, outcomes[i].retry)
		}
	}
	positions, err := tx.Append(retries...)
	if err != nil {
		return err
	}
	ends := make([]events.Pending, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		var subject, payload = events.DeadLetterRetried, any(&o.done)
		if o.refused != nil {
			subject, payload = events.RetryRefused, o.refused
		} else {
			o.done.Position, positions = positions[0], positions[1:]
		}
		if ends[i], err = d.answer(o.request, subject, "", events.Counts{}, payload); err != nil {
			return err
		}
	}
	_, err = tx.Append(ends...)
	return err
}

// sourcesOf lists the numbers of the events that retries of the letters repeat.
func sourcesOf(letters map[uuid.UUID]*domain.DeadLetter) []int64 {
	var numbers []int64
	for _, l := range letters {
		if l.Retryable() == nil {
			numbers = append(numbers, l.Repeats())
		}
	}
	return numbers
}

// periodsOf returns the changes of the periods of the tenants whose verdicts are folded again.
func periodsOf(tx DeadLetterTx, letters map[uuid.UUID]*domain.DeadLetter) (map[uuid.UUID]domain.PeriodHistory, error) {
	var tenants []uuid.UUID
	for _, l := range letters {
		if l.SourceSubject.Topic() == events.TopicUsageValidated && l.Retryable() == nil && !slices.Contains(tenants, l.TenantID) {
			tenants = append(tenants, l.TenantID)
		}
	}
	if len(tenants) == 0 {
		return nil, nil
	}
	return tx.Periods(tenants)
}

// maxRefusal bounds the reason of a refusal in bytes: the error of a decoder may quote the stored event.
const maxRefusal = 500

// outcomeOf decides on one request. A retry whose stored event cannot be read or encoded is refused: execute reads no database, so that its
// errors repeat at each attempt, and the reason belongs to the dead letter.
func (d *DeadLetters) outcomeOf(request *events.Envelope, retry events.Retry, l *domain.DeadLetter, sources map[int64]events.Envelope,
	periods map[uuid.UUID]domain.PeriodHistory) retryOutcome {
	o, err := d.execute(request, retry, l, sources, periods)
	if err != nil {
		reason := "the stored event cannot be retried: " + err.Error()
		reason = strings.ToValidUTF8(strings.ReplaceAll(reason[:min(len(reason), maxRefusal)], "\x00", ""), "")
		o = retryOutcome{request: request, refused: &events.Refused{DeadLetterID: retry.DeadLetterID, Code: "dead_letter_not_retryable",
			Reason: reason}}
	}
	return o
}

// execute makes the event of one retry, or its refusal. After a retry the letter is
// RETRYING for the later requests of the same transaction.
func (d *DeadLetters) execute(request *events.Envelope, retry events.Retry, l *domain.DeadLetter, sources map[int64]events.Envelope,
	periods map[uuid.UUID]domain.PeriodHistory) (retryOutcome, error) {
	o := retryOutcome{request: request}
	refusal := noDeadLetter()
	switch {
	case l == nil:
	case retry.Attempt != 0 && retry.Attempt <= l.Attempts:
		refusal = domain.Refuse("dead_letter_not_retryable", "", "retry %d was made for another request", retry.Attempt)
	default:
		refusal = l.Retryable()
	}
	if refusal != nil {
		o.refused = &events.Refused{DeadLetterID: retry.DeadLetterID, Code: refusal.Code, Reason: refusal.Message}
		return o, nil
	}
	attempt := l.Attempts + 1
	subject, payload, counts, err := again(l, attempt, sources)
	if err != nil {
		return o, err
	}
	if o.retry, err = d.answer(request, subject, events.KeyRetry(l.ID, attempt), counts, payload); err != nil {
		return o, err
	}
	source := sources[l.Repeats()]
	o.retry.Repeats = &events.TracedEvent{Trace: source.CorrelationID, EventID: source.EventID}
	if again, ok := payload.(events.Reaggregate); ok {
		of := periods[l.TenantID]
		o.retry.Adjustment = adjustmentOf(&again.Validated, &of)
	}
	o.done = events.RetryDone{DeadLetterID: l.ID, Attempt: attempt, RetryEventID: o.retry.EventID}
	l.Attempts, l.Status = attempt, events.StatusRetrying
	return o, nil
}

// adjustmentOf returns the adjustment that the retried fold of a verdict is, since its period was frozen without the verdict; nil if the
// snapshot counts the verdict.
func adjustmentOf(v *events.Validated, periods *domain.PeriodHistory) *events.Adjustment {
	snapshot := periods.RetryAfterFreeze(v)
	if snapshot == 0 {
		return nil
	}
	return &events.Adjustment{PeriodKey: v.PeriodKey, Feature: v.Feature, Snapshot: snapshot, SubscriptionID: v.ValidatedSubscriptionID,
		Kind: events.AdjustmentRetry, Amount: big.NewInt(v.Amount), EventCount: v.Count, Recorded: v.RawPosition, SourceEventID: v.EventID}
}

// again makes the event that repeats the failed one. A retried rejection counts as
// accepted again; a parked event no longer counts as parked.
func again(l *domain.DeadLetter, attempt int, sources map[int64]events.Envelope) (events.Subject, any, events.Counts, error) {
	counts := events.Counts{Accepted: 1}
	if l.Parked {
		counts = events.Counts{Parked: -1}
	}
	source, ok := sources[l.Repeats()]
	if !ok {
		return 0, nil, counts, fmt.Errorf("position %d is not in the log", l.Repeats())
	}
	if l.SourceSubject.Topic() == events.TopicUsageValidated {
		v, err := codec.VerdictOf(&source)
		return events.Reaggregated, events.Reaggregate{DeadLetterID: l.ID, Attempt: attempt, Validated: v}, counts, err
	}
	return events.UsageRetried, events.Retried{RawPosition: l.RawPosition, DeadLetterID: l.ID, Attempt: attempt, Rejected: l.Rejected,
		Usage: source.Payload}, counts, nil
}

// answer makes an event caused by a request. Without a key, its own id is the key.
func (d *DeadLetters) answer(request *events.Envelope, subject events.Subject, key string, counts events.Counts,
	payload any) (events.Pending, error) {
	body, err := codec.EncodePayload(subject, payload)
	if err != nil {
		return events.Pending{}, err
	}
	id := d.NewID()
	if key == "" {
		key = events.KeyEvent(id)
	}
	return events.Pending{
		EventID: id, Subject: subject, TenantID: request.TenantID, DedupeKey: key, CorrelationID: request.CorrelationID,
		CausationID: request.EventID, Actor: events.Actor{Type: "service", ID: events.GroupCommands},
		OccurredAt: d.now(), Payload: body, Counts: counts, Residency: request.Residency,
	}, nil
}
