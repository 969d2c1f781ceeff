package consume

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// panicked is a panic of a handler outside Try.
type panicked struct{ value any }

func (p *panicked) Error() string { return fmt.Sprintf("the handler panicked: %v", p.value) }

// ofData reports whether the events' data caused the error. Such an error would repeat
// for ever; any other is an outage and passes.
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

// LockHeads locks the heads before the several appends that follow a fault, in the
// same order as every writer.
const LockHeads = `SELECT FROM log_heads WHERE partition = ANY ($1::smallint[]) ORDER BY partition FOR UPDATE`

func holdHeads(ctx context.Context, tx pgx.Tx, runs []*partitionRun) error {
	partitions := make([]int16, len(runs))
	for i, l := range runs {
		partitions[i] = l.partition
	}
	if _, err := tx.Exec(ctx, LockHeads, partitions); err != nil {
		return fmt.Errorf("lock heads: %w", err)
	}
	return nil
}

// bisect finds the events that made a batch fail; halves that succeed are kept.
func (r *Runner) bisect(ctx context.Context, tx pgx.Tx, batch []events.Envelope, runs []*partitionRun, cause error) (all folded,
	err error) {
	if len(batch) == 1 {
		all.failed = []projections.Failure{{Event: batch[0], Code: codeOf(cause), Reason: cause.Error()}}
		letters := r.deadLetters(all.failed)
		all.followUps = len(letters)
		if _, err := r.Log.AppendTx(ctx, tx, letters); err != nil {
			return folded{}, fmt.Errorf("append a dead letter: %w", err)
		}
		return all, nil
	}
	for _, half := range [][]events.Envelope{batch[:len(batch)/2], batch[len(batch)/2:]} {
		part, err := r.attempt(ctx, tx, half, runs)
		if err != nil && ofData(err) {
			part, err = r.bisect(ctx, tx, half, runs, err)
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
		return projections.CodeFoldPanicked
	}
	return projections.CodeDataRefused
}

// attempt folds a batch after a savepoint: all of it, or it returns an error.
func (r *Runner) attempt(ctx context.Context, tx pgx.Tx, batch []events.Envelope, runs []*partitionRun) (folded, error) {
	point, err := tx.Begin(ctx)
	if err != nil {
		return folded{}, fmt.Errorf("set a savepoint: %w", err)
	}
	defer rollback(ctx, point)
	all, err := r.foldAndAppend(ctx, point, batch, runs)
	if err != nil {
		return folded{}, err
	}
	if err := point.Commit(ctx); err != nil {
		return folded{}, fmt.Errorf("release a savepoint: %w", err)
	}
	return all, nil
}

// deadLetters returns the events that record the failures. A failed event about this
// consumer's own failures is skipped: its dead letter would fail the same way, forever.
func (r *Runner) deadLetters(failed []projections.Failure) []events.Pending {
	var pending []events.Pending
	for i := range failed {
		f := &failed[i]
		switch {
		case f.Event.Actor.ID == r.Consumer.Name && (f.Event.Subject == events.AggregationFailed ||
			f.Event.Subject == events.DeadLetterClosed):
		case r.Consumer.Parks:
			pending = append(pending, r.park(f))
		default:
			pending = append(pending, r.discard(f)...)
		}
	}
	return pending
}

// park returns the dead letter of an event that the aggregates could not fold. A failed
// retry continues the dead letter that it retried.
func (r *Runner) park(f *projections.Failure) events.Pending {
	id := r.NewID()
	key := events.KeyEvent(id)
	deadLetter, attempt := projections.RetryOf(&f.Event)
	if deadLetter == uuid.Nil {
		deadLetter = id
	} else {
		key = events.KeyFailedAgain(deadLetter, attempt)
	}
	p := projections.FollowUp(&f.Event, id, events.AggregationFailed, r.letter(f, deadLetter, attempt), r.Consumer.Name)
	p.DedupeKey, p.Counts.Parked = key, 1
	return p
}

// discard returns the dead letter of an event that a read model cannot fold, and its end.
func (r *Runner) discard(f *projections.Failure) []events.Pending {
	id := r.NewID()
	why := "a read model cannot fold it; a rebuild of " + r.Consumer.Name + " repairs it"
	return []events.Pending{
		projections.FollowUp(&f.Event, id, events.AggregationFailed, r.letter(f, id, 0), r.Consumer.Name),
		projections.Closing(&f.Event, r.NewID(), events.Closed{DeadLetterID: id, Status: events.StatusDiscarded, Reason: why},
			r.Consumer.Name),
	}
}

// letter describes the failure. A subject unknown to this binary is named by its number
// and attributed to the consumer's own topic.
func (r *Runner) letter(f *projections.Failure, deadLetter uuid.UUID, attempt int) events.Failed {
	subject, topic := fmt.Sprintf("subject %d", f.Event.Subject), r.Consumer.Topic
	if info, ok := f.Event.Subject.Info(); ok {
		subject, topic = info.Name(), info.Topic
	}
	l := events.Failed{
		SourcePosition: f.Event.Position.Number, SourceEventID: f.Event.EventID, SourceSubject: subject,
		Topic: topic.Name(),
		Stage: events.StageAggregation, Code: f.Code, Reason: projections.Bounded(f.Reason), DeadLetterID: deadLetter, Attempt: attempt,
	}
	if json.Valid(f.Event.Payload) {
		l.Payload = f.Event.Payload
	}
	return l
}

// report logs the failures, once they are durable.
func (r *Runner) report(failed []projections.Failure) {
	for i := range failed {
		f := &failed[i]
		r.Logger.Error("an event could not be applied", "consumer", r.Consumer.Name, "position", f.Event.Position.String(), "eventId",
			f.Event.EventID, "trace", hex.EncodeToString(f.Event.CorrelationID[:]), "code", f.Code, "reason", projections.Bounded(f.Reason))
	}
}
