package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// maxTries is how often a record that alone is refused is tried before it is
// withheld.
const maxTries = 5

const (
	// maxReason keeps a broker's answer from becoming a payload.
	maxReason = 500
	// maxCopied is the largest payload that is copied into its dead letter, which
	// must not be refused for the same reason; the log has the payload anyway.
	maxCopied = 16 << 10
)

// errTaken says that another relay holds the partition.
var errTaken = errors.New("the lease was taken by another relay")

// withhold decides, durably, that an event's record is replaced. Only then may
// the stand-in be published, which happens in the ordinary way when the event is
// read again: were it published first, a crash in between could leave a stand-in
// on the topic for an event that no dead letter knows. It gives how long the
// partition rests.
func (s *Subscriber) withhold(ctx context.Context, sp span, position int64, cause error) time.Duration {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	e, err := s.one(ctx, sp.partition, position)
	if err == nil && e.Subject == events.PublishFailed {
		// Its letter would be refused like it, and so on: it waits as in an outage.
		s.complain(ctx, "a dead letter cannot be published and holds its partition", cause)
		return longestPause
	}
	late := false
	if err == nil {
		late, err = s.withholdTx(ctx, sp, &e, cause)
	}
	switch {
	case errors.Is(err, errTaken):
		s.held.forget(sp.partition, sp.fence)
		return 0
	case err != nil:
		s.complain(ctx, "an event that cannot be published is not withheld yet", err)
		return restAfterFault
	}
	what := "an event alone cannot be published; it is withheld and has a dead letter"
	if late {
		what = "an event alone cannot be published; it is withheld, which only readers from outside notice: its consumer has read it"
	}
	s.Logger.ErrorContext(ctx, what, "position", e.Position.String(), "error", cause)
	s.Observe.Withheld(e.Subject.Topic())
	s.held.with(sp, func(h *holding) { h.tries = 0 })
	return 0
}

func (s *Subscriber) one(ctx context.Context, partition int16, position int64) (events.Envelope, error) {
	list, err := s.Log.Read(ctx, partition, position-1, position, 1)
	if err != nil {
		return events.Envelope{}, err
	}
	if len(list) != 1 {
		return events.Envelope{}, fmt.Errorf("%s of the log is missing: %w", events.Position{Partition: partition, Number: position}, errHole)
	}
	return list[0], nil
}

// The cursor is locked after the consumer's checkpoint, which may be waited for: all
// of this relay's leases are renewed together, and would wait for the cursor. It is
// locked before any head. It stands before the event, since all that comes before it
// is published.
const holdCursorSQL = `SELECT FROM relay_cursors c JOIN log_heads h USING (partition)
 WHERE partition = $1 AND c.fence = $2 AND c.position = $3 AND is_server_life(h.timeline, h.started_at) ORDER BY c.partition FOR UPDATE OF c`

// The topic is the row's: this binary may not know the event's subject. The row is compared with
// the event, which was read before a failover may have lost it.
const (
	topicSQL    = `SELECT topic FROM event_log_rows WHERE partition = $1 AND position = $2 AND event_id = $3`
	withholdSQL = `INSERT INTO withheld_records (partition, position, topic, tenant_id, dead_letter_id, reason, late)
 VALUES ($1, $2, $3, $4, $5::uuid, $6, $5::uuid IS NULL) ON CONFLICT DO NOTHING`
)

func (s *Subscriber) withholdTx(ctx context.Context, sp span, e *events.Envelope, cause error) (late bool, err error) {
	err = pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		var topic events.Topic
		if err := tx.QueryRow(ctx, topicSQL, sp.partition, e.Position.Number, e.EventID).Scan(&topic); err != nil {
			return fmt.Errorf("reading an event's topic: %w", err)
		}
		if late, err = passed(ctx, tx, topic, e.Position); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, holdCursorSQL, sp.partition, sp.fence, e.Position.Number-1)
		if err != nil {
			return fmt.Errorf("holding a cursor: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return errTaken
		}
		id := s.NewID()
		letter, err := s.letter(e, id, cause)
		if err != nil {
			return err
		}
		named := &letter.DeadLetterID
		if late {
			named = nil
		}
		tag, err = tx.Exec(ctx, withholdSQL, sp.partition, e.Position.Number, topic, e.TenantID, named, letter.Reason)
		if err != nil {
			return fmt.Errorf("withholding a record: %w", err)
		}
		if late || tag.RowsAffected() == 0 { // or it was withheld by a commit that was not answered
			return nil
		}
		return s.park(ctx, tx, e, id, topic, letter)
	})
	return late, err
}

const holdCheckpointsSQL = `SELECT position FROM consumer_checkpoints
 WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation FOR UPDATE`

// passed holds the checkpoints of a topic's consumer and reports whether it is past
// a position: it reads the log where the pipe has gaps, and after the relay was moved
// back it is ahead. What it has passed is folded, or has its dead letter already. It
// stays so until the record is withheld, and is not given to it afterwards.
func passed(ctx context.Context, tx pgx.Tx, topic events.Topic, at events.Position) (bool, error) {
	i := slices.IndexFunc(events.Topics(), func(t events.TopicInfo) bool { return t.Topic == topic })
	if i < 0 || events.Topics()[i].Consumer == "" {
		return false, nil
	}
	rows, err := tx.Query(ctx, holdCheckpointsSQL, events.Topics()[i].Consumer, at.Partition)
	if err != nil {
		return false, fmt.Errorf("holding a checkpoint: %w", err)
	}
	stands, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return false, fmt.Errorf("holding a checkpoint: %w", err)
	}
	return len(stands) > 0 && slices.Min(stands) >= at.Number, nil
}

// park appends the dead letter. What was on its way to the aggregates is parked:
// it is in none of the identity's other terms any more.
func (s *Subscriber) park(ctx context.Context, tx pgx.Tx, e *events.Envelope, id uuid.UUID, topic events.Topic, letter events.Failed) error {
	letter.Topic = topic.Name()
	payload, err := json.Marshal(letter)
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
	if letter.Attempt > 0 { // whoever asks for the next retry finds by this key that this one is over
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

func (s *Subscriber) letter(e *events.Envelope, id uuid.UUID, cause error) (events.Failed, error) {
	letter := events.Failed{
		SourcePosition: e.Position.Number, SourceEventID: e.EventID, KafkaPartition: e.Position.Partition, KafkaOffset: -1,
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

// retryOf makes the letter of a retry say whose retry it was.
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
