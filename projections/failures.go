package projections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Codes of failures.
const (
	CodeFoldFailed   = "fold_failed"   // the fold returned an error
	CodeFoldPanicked = "fold_panicked" // the fold panicked
	CodeDataRefused  = "data_refused"  // the database refused what the fold made of the event
)

// maxReason bounds, in bytes, what a dead letter repeats of an error.
const maxReason = 500

// Try runs the fold of one event. A panic or an error becomes a Failure; a
// *domain.Error keeps its code.
func Try(e events.Envelope, fold func() error) (failure *Failure) {
	defer func() {
		if p := recover(); p != nil {
			failure = &Failure{Event: e, Code: CodeFoldPanicked, Reason: fmt.Sprint(p)}
		}
	}()
	err := fold()
	if err == nil {
		return nil
	}
	if refusal := (*domain.Error)(nil); errors.As(err, &refusal) {
		return &Failure{Event: e, Code: refusal.Code, Reason: refusal.Message}
	}
	return &Failure{Event: e, Code: CodeFoldFailed, Reason: err.Error()}
}

// panicked is a panic of a handler outside of Try.
type panicked struct{ value any }

func (p *panicked) Error() string { return fmt.Sprintf("the handler panicked: %v", p.value) }

// ofData reports whether an error comes from what the events say: then it would
// come again for ever, while any other passes with the outage that it is.
func ofData(err error) bool {
	if p := (*panicked)(nil); errors.As(err, &p) {
		return true
	}
	refused := (*pgconn.PgError)(nil)
	if !errors.As(err, &refused) || len(refused.Code) != 5 {
		return false
	}
	switch refused.Code[:2] {
	case "22", "23", "54", "P0": // data exception, integrity, limits such as that of an index row, raised
		return true
	}
	return false
}

// Whoever goes on after a fault appends in parts; the heads are taken first, in
// the order that everybody takes them in.
const lockHeads = `SELECT FROM log_heads WHERE partition = ANY ($1::smallint[]) ORDER BY partition FOR UPDATE`

func holdHeads(ctx context.Context, tx pgx.Tx, lanes []*lane) error {
	partitions := make([]int16, len(lanes))
	for i, l := range lanes {
		partitions[i] = l.partition
	}
	if _, err := tx.Exec(ctx, lockHeads, partitions); err != nil {
		return fmt.Errorf("lock heads: %w", err)
	}
	return nil
}

// folded is what became of a batch.
type folded struct {
	failed    []Failure
	followUps int
}

// fold gives the batch to the handler and appends what follows from it. Events
// that cannot be folded become dead letters and leave no other trace.
func (r *Runner) fold(ctx context.Context, tx pgx.Tx, batch []events.Envelope, lanes []*lane, careful bool) (folded, error) {
	if len(batch) == 0 {
		return folded{}, nil
	}
	attempt := r.take
	if careful {
		attempt = r.attempt
	}
	all, err := attempt(ctx, tx, batch, lanes)
	if err == nil {
		return all, r.foldAside(ctx, tx, batch, lanes, all.failed)
	}
	if !careful || !ofData(err) {
		return all, err
	}
	if err := holdHeads(ctx, tx, lanes); err != nil {
		return folded{}, err
	}
	if all, err = r.bisect(ctx, tx, batch, lanes, err); err != nil {
		return folded{}, err
	}
	return all, r.foldAside(ctx, tx, batch, lanes, all.failed)
}

// bisect finds the events that a batch failed for: halves that succeed stay.
func (r *Runner) bisect(ctx context.Context, tx pgx.Tx, batch []events.Envelope, lanes []*lane, cause error) (all folded, err error) {
	if len(batch) == 1 {
		all.failed = []Failure{{Event: batch[0], Code: codeOf(cause), Reason: cause.Error()}}
		letters := r.deadLetters(all.failed, lanes)
		all.followUps = len(letters)
		if _, err := r.Log.AppendTx(ctx, tx, letters); err != nil {
			return folded{}, fmt.Errorf("append a dead letter: %w", err)
		}
		return all, nil
	}
	for _, half := range [][]events.Envelope{batch[:len(batch)/2], batch[len(batch)/2:]} {
		part, err := r.attempt(ctx, tx, half, lanes)
		if err != nil && ofData(err) {
			part, err = r.bisect(ctx, tx, half, lanes, err)
		}
		if err != nil {
			return folded{}, err
		}
		all.failed = append(all.failed, part.failed...)
		all.followUps += part.followUps
	}
	return all, nil
}

func codeOf(err error) string {
	if p := (*panicked)(nil); errors.As(err, &p) {
		return CodeFoldPanicked
	}
	return CodeDataRefused
}

// attempt folds a batch behind a savepoint: all of it, or nothing and an error.
func (r *Runner) attempt(ctx context.Context, tx pgx.Tx, batch []events.Envelope, lanes []*lane) (folded, error) {
	point, err := tx.Begin(ctx)
	if err != nil {
		return folded{}, fmt.Errorf("set a savepoint: %w", err)
	}
	defer rollback(ctx, point)
	all, err := r.take(ctx, point, batch, lanes)
	if err != nil {
		return folded{}, err
	}
	if err := point.Commit(ctx); err != nil {
		return folded{}, fmt.Errorf("release a savepoint: %w", err)
	}
	return all, nil
}

// take folds a batch and appends what follows from it.
func (r *Runner) take(ctx context.Context, tx pgx.Tx, batch []events.Envelope, lanes []*lane) (folded, error) {
	result, err := r.applyServing(ctx, tx, batch, lanes)
	if err != nil {
		return folded{}, fmt.Errorf("apply: %w", err)
	}
	pending := append(result.FollowUps, r.deadLetters(result.Failed, lanes)...)
	if len(pending) > 0 {
		if _, err := r.Log.AppendTx(ctx, tx, pending); err != nil {
			return folded{}, fmt.Errorf("append what follows: %w", err)
		}
	}
	return folded{result.Failed, len(pending)}, nil
}

// applyServing feeds every generation that serves. What fails in one of them is in
// none: then all is done again without it.
func (r *Runner) applyServing(ctx context.Context, tx pgx.Tx, batch []events.Envelope, lanes []*lane) (Result, error) {
	serving := generationsOf(lanes, true)
	if len(serving) == 1 {
		return r.apply(ctx, tx, serving[0], serving[0].of(batch, lanes, nil))
	}
	var failed []Failure
	for {
		before := len(failed)
		point, err := tx.Begin(ctx)
		if err != nil {
			return Result{}, fmt.Errorf("set a savepoint: %w", err)
		}
		all := Result{}
		for _, g := range serving {
			one, err := r.apply(ctx, point, g, g.of(batch, lanes, failed))
			if err != nil {
				return Result{}, errors.Join(err, point.Rollback(context.WithoutCancel(ctx)))
			}
			all.FollowUps = append(all.FollowUps, one.FollowUps...)
			for _, f := range one.Failed {
				if !hasFailed(failed, f.Event.Position) {
					failed = append(failed, f)
				}
			}
		}
		if len(failed) == before {
			all.Failed = failed
			return all, point.Commit(ctx)
		}
		if err := point.Rollback(ctx); err != nil {
			return Result{}, fmt.Errorf("go back to a savepoint: %w", err)
		}
	}
}

// foldAside feeds the generations that nobody reads. One that cannot take what
// those that serve took is fed no longer.
func (r *Runner) foldAside(ctx context.Context, tx pgx.Tx, batch []events.Envelope, lanes []*lane, failed []Failure) error {
	for _, g := range generationsOf(lanes, false) {
		left := failed
		if !r.Consumer.Parks {
			left = nil // a rebuild mends what a read model could not fold
		}
		failure, err := applyAside(ctx, tx, &r.Consumer, g, g.of(batch, lanes, left), failedAt(failed))
		if err != nil {
			return fmt.Errorf("generation %d: %w", g.Number, err)
		}
		if failure == nil {
			continue
		}
		if err := r.part(ctx, tx, g, lanes, *failure); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) apply(ctx context.Context, tx pgx.Tx, g Generation, batch []events.Envelope) (Result, error) {
	return applyTo(ctx, tx, r.Consumer.Handler, g, batch)
}

func applyTo(ctx context.Context, tx pgx.Tx, h Handler, g Generation, batch []events.Envelope) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p}
		}
	}()
	return h.Apply(ctx, tx, g, batch)
}

// deadLetters makes the events that say what failed. What this very consumer said
// of a failure gets none: a letter about that would fail like it, for ever.
func (r *Runner) deadLetters(failed []Failure, lanes []*lane) []events.Pending {
	var pending []events.Pending
	for i := range failed {
		f := &failed[i]
		switch {
		case f.Event.Actor.ID == r.Consumer.Name && (f.Event.Subject == events.AggregationFailed || f.Event.Subject == events.DeadLetterClosed):
		case r.Consumer.Parks:
			pending = append(pending, r.park(f, lanes))
		default:
			pending = append(pending, r.discard(f, lanes)...)
		}
	}
	return pending
}

// park makes the dead letter of an event on its way to the aggregates. That of a
// retry goes on with the letter that is retried.
func (r *Runner) park(f *Failure, lanes []*lane) events.Pending {
	id := r.NewID()
	key := events.KeyEvent(id)
	deadLetter, attempt := retryOf(&f.Event)
	if deadLetter == uuid.Nil {
		deadLetter = id
	} else {
		key = events.KeyFailedAgain(deadLetter, attempt)
	}
	p := followUp(&f.Event, id, events.AggregationFailed, r.letter(f, deadLetter, attempt, lanes), r.Consumer.Name)
	p.DedupeKey, p.Counts.Parked = key, 1
	return p
}

// discard makes the dead letter of an event that a read model cannot fold, and its end.
func (r *Runner) discard(f *Failure, lanes []*lane) []events.Pending {
	id := r.NewID()
	why := "a read model cannot fold it; a rebuild of " + r.Consumer.Name + " mends it"
	return []events.Pending{
		followUp(&f.Event, id, events.AggregationFailed, r.letter(f, id, 0, lanes), r.Consumer.Name),
		closing(&f.Event, r.NewID(), events.Closed{DeadLetterID: id, Status: events.StatusDiscarded, Reason: why}, r.Consumer.Name),
	}
}

// letter says what failed. A subject that this binary does not know has its number
// for a name, and comes from the consumer's own topic.
func (r *Runner) letter(f *Failure, deadLetter uuid.UUID, attempt int, lanes []*lane) events.Failed {
	subject, topic := fmt.Sprintf("subject %d", f.Event.Subject), r.Consumer.Topic
	if info, ok := f.Event.Subject.Info(); ok {
		subject, topic = info.Name(), info.Topic
	}
	l := events.Failed{
		SourcePosition: f.Event.Position.Number, SourceEventID: f.Event.EventID, SourceSubject: subject,
		Topic: topic.Name(), KafkaPartition: f.Event.Position.Partition, KafkaOffset: offsetOf(lanes, f.Event.Position),
		Stage: events.StageAggregation, Code: f.Code, Reason: bounded(f.Reason), DeadLetterID: deadLetter, Attempt: attempt,
	}
	if json.Valid(f.Event.Payload) {
		l.Payload = f.Event.Payload
	}
	return l
}

// retryOf gives the dead letter that an event retries, and which attempt it is;
// Nil for an event that is no retry.
func retryOf(e *events.Envelope) (uuid.UUID, int) {
	var retry struct {
		DeadLetterID uuid.UUID `json:"deadLetterId"`
		Attempt      int       `json:"attempt"`
	}
	isRetry := e.Subject == events.UsageRetried || e.Subject == events.Reaggregated
	if !isRetry || json.Unmarshal(e.Payload, &retry) != nil {
		return uuid.Nil, 0
	}
	return retry.DeadLetterID, retry.Attempt
}

// closing says that nothing is left to do about a dead letter, once ever.
func closing(cause *events.Envelope, id uuid.UUID, end events.Closed, by string) events.Pending {
	p := followUp(cause, id, events.DeadLetterClosed, end, by)
	p.DedupeKey = events.KeyClosed(end.DeadLetterID)
	return p
}

// followUp makes an event that an event leads to. Its key is its own id, which is
// enough where it is appended with the step of a checkpoint: that happens once.
func followUp(cause *events.Envelope, id uuid.UUID, subject events.Subject, payload any, by string) events.Pending {
	var body []byte
	if verdict, ok := payload.(*events.Validated); ok {
		body = events.VerdictJSON(verdict)
	} else {
		body, _ = json.Marshal(payload) // our own structs, with payloads that were checked, never fail
	}
	return events.Pending{
		EventID: id, Subject: subject, TenantID: cause.TenantID, DedupeKey: events.KeyEvent(id),
		CorrelationID: cause.CorrelationID, CausationID: cause.EventID, Actor: events.Actor{Type: "service", ID: by},
		OccurredAt: cause.OccurredAt, Payload: body, Residency: cause.Residency,
	}
}

func bounded(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", ""), "")
}

// offsetOf finds where the pipe brought an event from, -1 where it did not.
func offsetOf(lanes []*lane, p events.Position) int64 {
	for _, l := range lanes {
		if l.partition != p.Partition {
			continue
		}
		for i := range l.items {
			if it := &l.items[i]; !it.head && it.place.Position == p {
				return it.offset
			}
		}
	}
	return -1
}

// report tells of what failed, after it is durable.
func (r *Runner) report(failed []Failure) {
	for i := range failed {
		f := &failed[i]
		r.Logger.Error("an event could not be folded", "consumer", r.Consumer.Name, "position", f.Event.Position.String(), "eventId", f.Event.EventID, "code", f.Code, "reason", bounded(f.Reason))
	}
}
