package relay

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// maxTries is the number of tries before a permanently refused record is withheld.
const maxTries = 5

const (
	// maxReason bounds the part of a broker's error that is stored.
	maxReason = 500
	// maxCopied is the largest payload that is copied into its dead letter, which must not be refused for
	// the same reason. The log has the payload anyway.
	maxCopied = 16 << 10
)

// errLeaseLost says that another relay holds the partition.
var errLeaseLost = errors.New("another relay acquired the lease")

// withhold durably decides that an event's record is replaced. The replacement is published afterwards,
// in the normal way, when the event is read again: if it was published first, a crash in between could
// leave a replacement on the topic for an event without a dead letter. withhold returns how long the
// partition rests.
func (s *Subscriber) withhold(ctx context.Context, sp span, position int64, cause error) time.Duration {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	e, err := s.readOne(ctx, sp.partition, position)
	if err == nil && e.Subject == events.PublishFailed {
		// The dead letter of a dead letter would be refused as well, and so on. It is retried as in an
		// outage.
		s.logFault(ctx, "cannot publish a dead letter; its partition waits", cause)
		return pauses.Longest
	}
	late := false
	if err == nil {
		late, err = s.withholdTx(ctx, sp, &e, cause)
	}
	switch {
	case errors.Is(err, errLeaseLost):
		s.held.forget(sp.partition, sp.fence)
		return 0
	case err != nil:
		s.logFault(ctx, "cannot withhold an event that is refused; will retry", err)
		return restAfterFault
	}
	failure := "cannot publish a record: withheld, and a dead letter appended"
	if late {
		failure = "cannot publish a record: withheld without a dead letter; its consumer has passed the event, so only external " +
			"readers miss it"
	}
	s.Logger.ErrorContext(ctx, failure, "position", e.Position.String(), "trace", hex.EncodeToString(e.CorrelationID[:]), "error", cause)
	s.Observe.Withheld(e.Subject.Topic())
	s.held.update(sp, func(h *holding) { h.tries = 0 })
	return 0
}

func (s *Subscriber) readOne(ctx context.Context, partition int16, position int64) (events.Envelope, error) {
	list, err := s.Log.Read(ctx, partition, position-1, position, 1)
	if err != nil {
		return events.Envelope{}, err
	}
	if len(list) != 1 {
		return events.Envelope{}, fmt.Errorf("%s of the log is missing: %w", events.Position{Partition: partition, Number: position},
			errHole)
	}
	return list[0], nil
}

// lockCursorSQL locks the cursor after the consumer's checkpoint, because the checkpoint may be waited
// for, and the renewal of all leases of this relay would wait for the cursor. It locks it before any
// head. The cursor is directly before the event, since all earlier events are published.
const lockCursorSQL = `SELECT FROM relay_cursors c JOIN log_heads h USING (partition)
 WHERE partition = $1 AND c.fence = $2 AND c.position = $3 AND is_server_life(h.timeline, h.started_at) ORDER BY c.partition
 FOR UPDATE OF c`

// The topic comes from the row: this binary may not know the event's subject. The row is compared with
// the event, because a failover may have lost the event since it was read. The reason may quote the record: an archived
// tenant's is not stored, as in its dead letter.
const (
	topicSQL    = `SELECT topic FROM event_log_rows WHERE partition = $1 AND position = $2 AND event_id = $3`
	withholdSQL = `INSERT INTO withheld_records (partition, position, topic, tenant_id, dead_letter_id, reason, late)
 VALUES ($1, $2, $3, $4, $5::uuid, CASE WHEN EXISTS (SELECT FROM tenants t WHERE t.id = $4
 AND t.status = 'ARCHIVED') THEN 'erased' ELSE $6 END, $5::uuid IS NULL) ON CONFLICT DO NOTHING`
)

func (s *Subscriber) withholdTx(ctx context.Context, sp span, e *events.Envelope, cause error) (late bool, err error) {
	err = pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		var topic events.Topic
		if err := tx.QueryRow(ctx, topicSQL, sp.partition, e.Position.Number, e.EventID).Scan(&topic); err != nil {
			return fmt.Errorf("reading an event's topic: %w", err)
		}
		if late, err = consumerPassed(ctx, tx, topic, e.Position); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, lockCursorSQL, sp.partition, sp.fence, e.Position.Number-1)
		if err != nil {
			return fmt.Errorf("locking a cursor: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return errLeaseLost
		}
		id := s.NewID()
		letter, err := s.deadLetter(e, id, cause)
		if err != nil {
			return err
		}
		deadLetterID := &letter.DeadLetterID
		if late {
			deadLetterID = nil
		}
		tag, err = tx.Exec(ctx, withholdSQL, sp.partition, e.Position.Number, topic, e.TenantID, deadLetterID, letter.Reason)
		if err != nil {
			return fmt.Errorf("withholding a record: %w", err)
		}
		if late || tag.RowsAffected() == 0 { // tag: withheld before, by a commit without an answer
			return nil
		}
		return s.appendDeadLetter(ctx, tx, e, id, topic, letter)
	})
	return late, err
}

const lockCheckpointsSQL = `SELECT position FROM consumer_checkpoints
 WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation FOR UPDATE`

// consumerPassed locks the checkpoints of a topic's consumer and reports whether it has passed a position. A
// consumer can be ahead of the relay: it reads the log if the pipe has gaps, or the relay was moved back.
// An event that it passed is folded or has a dead letter already. The lock keeps the answer true until
// the record is withheld; afterwards the consumer is not given the event.
func consumerPassed(ctx context.Context, tx pgx.Tx, topic events.Topic, at events.Position) (bool, error) {
	i := slices.IndexFunc(events.Topics(), func(t events.TopicInfo) bool { return t.Topic == topic })
	if i < 0 || events.Topics()[i].Consumer == "" {
		return false, nil
	}
	rows, err := tx.Query(ctx, lockCheckpointsSQL, events.Topics()[i].Consumer, at.Partition)
	if err != nil {
		return false, fmt.Errorf("locking a checkpoint: %w", err)
	}
	positions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return false, fmt.Errorf("locking a checkpoint: %w", err)
	}
	return len(positions) > 0 && slices.Min(positions) >= at.Number, nil
}

// appendDeadLetter appends the dead letter. An event on its way to the aggregates is counted as parked, and in no
// other term of the identity.
func (s *Subscriber) appendDeadLetter(ctx context.Context, tx pgx.Tx, e *events.Envelope, id uuid.UUID, topic events.Topic,
	letter events.Failed) error {
	letter.Topic = topic.Name()
	payload, err := codec.EncodePayload(events.PublishFailed, letter)
	if err != nil {
		return fmt.Errorf("writing a dead letter: %w", err)
	}
	p := events.Pending{
		EventID: id, Subject: events.PublishFailed, TenantID: e.TenantID, DedupeKey: events.KeyEvent(id),
		CorrelationID: e.CorrelationID, CausationID: e.EventID, Actor: events.Actor{Type: "service", ID: "meterplex-relay"},
		OccurredAt: s.Now(), Payload: payload, Residency: e.Residency,
	}
	if topic == events.TopicUsageRaw || topic == events.TopicUsageValidated {
		p.Counts.Parked = 1
	}
	if letter.Attempt > 0 { // the command for the next retry learns by this key that this attempt has ended
		p.DedupeKey = events.KeyFailedAgain(letter.DeadLetterID, letter.Attempt)
	}
	if _, err := s.Appender.AppendTx(ctx, tx, []events.Pending{p}); err != nil {
		return fmt.Errorf("appending a dead letter: %w", err)
	}
	return nil
}

// Codes of dead letters of stage PUBLISHING.
const (
	codeRefused    = "publish_refused"
	codeUnregister = "subject_not_registered"
)

func (s *Subscriber) deadLetter(e *events.Envelope, id uuid.UUID, cause error) (events.Failed, error) {
	letter := events.Failed{
		SourcePosition: e.Position.Number, SourceEventID: e.EventID,
		Stage: events.StagePublishing, Code: codeRefused, Reason: bounded(cause.Error()), DeadLetterID: id,
	}
	if info, ok := e.Subject.Info(); ok {
		letter.SourceSubject = info.Name()
	} else {
		letter.SourceSubject, letter.Code = fmt.Sprintf("subject %d", e.Subject), codeUnregister
	}
	if len(e.Payload) <= maxCopied {
		letter.Payload = e.Payload
	}
	return letter, retryOf(e, &letter)
}

// retryOf copies the dead letter and attempt of a retry into its letter.
func retryOf(e *events.Envelope, letter *events.Failed) error {
	if e.Subject != events.UsageRetried && e.Subject != events.Reaggregated {
		return nil
	}
	var retry struct {
		DeadLetterID uuid.UUID `json:"deadLetterId"`
		Attempt      int       `json:"attempt"`
	}
	if err := json.Unmarshal(e.Payload, &retry); err != nil {
		return fmt.Errorf("reading the retry at %s: %w", e.Position, err)
	}
	letter.DeadLetterID, letter.Attempt = retry.DeadLetterID, retry.Attempt
	return nil
}

func bounded(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", ""), "")
}
