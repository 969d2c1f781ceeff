package audit

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Receipt describes the processing of one usage event, step by step. A step that has
// not happened is null. PayloadHash is the SHA-256 in hex of Payload, which is
// canonical JSON by CanonicalVersion; of admitted usage, that of the members that the client sent. AsOfPosition is the position of the
// figures to which AGGREGATED refers. EffectiveAmount is the amount of validated usage after all its corrections; nil for a correction
// itself, whose Corrects is set once it is validated. Late is set if the event is behind the cut of its period; Adjustments are its own and
// those of its corrections; Frozen is nil until a close froze a figure that counts it.
type Receipt struct {
	EventID          string           `json:"eventId"`
	TenantID         uuid.UUID        `json:"tenantId"`
	Status           string           `json:"status"`
	Payload          json.RawMessage  `json:"payload"`
	PayloadHash      string           `json:"payloadHash"`
	CanonicalVersion int              `json:"canonicalVersion"`
	Recorded         RecordedStep     `json:"recorded"`
	Published        *PublishedStep   `json:"published"`
	Validated        *ValidatedStep   `json:"validated"`
	Rejected         *RejectedStep    `json:"rejected"`
	Aggregated       *AggregatedStep  `json:"aggregated"`
	Conflicts        []Conflict       `json:"conflicts"`
	Retries          []RetryStep      `json:"retries"`
	DeadLetters      []DeadLetterStep `json:"deadLetters"`
	Corrections      []CorrectionStep `json:"corrections"`
	EffectiveAmount  *int64           `json:"effectiveAmount"`
	Corrects         *CorrectsStep    `json:"corrects"`
	Late             *events.Late     `json:"late"`
	Adjustments      []AdjustmentStep `json:"adjustments"`
	Frozen           *FrozenStep      `json:"frozen"`
	AsOfPosition     events.Position  `json:"asOfPosition"`
}

// RecordedStep is the event's position in the log. LogEventID is the server's id of it.
type RecordedStep struct {
	At            time.Time       `json:"at"`
	Position      events.Position `json:"position"`
	LogEventID    uuid.UUID       `json:"logEventId"`
	CorrelationID *uuid.UUID      `json:"correlationId"`
}

// PublishedStep says where the event is on the broker. Offset and At are null if the pipe has no
// offsets, or if they have expired.
type PublishedStep struct {
	At        *time.Time `json:"at"`
	Topic     string     `json:"topic"`
	Partition int16      `json:"partition"`
	Offset    *int64     `json:"offset"`
	Expired   bool       `json:"expired" doc:"The record is older than the topic's retention: at and offset are no longer known."`
}

// ValidatedStep is the validator's acceptance, and its decision.
type ValidatedStep struct {
	At             time.Time       `json:"at"`
	Position       events.Position `json:"position"`
	SubscriptionID uuid.UUID       `json:"subscriptionId"`
	FeatureType    string          `json:"featureType"`
	PeriodKey      string          `json:"periodKey"`
	Amount         int64           `json:"amount"`
}

// RejectedStep is the validator's last rejection. Attempt is 0 for the first verdict.
type RejectedStep struct {
	At           time.Time       `json:"at"`
	Position     events.Position `json:"position"`
	Code         string          `json:"code"`
	Reason       string          `json:"reason"`
	Attempt      int             `json:"attempt"`
	DeadLetterID uuid.UUID       `json:"deadLetterId"`
}

// AggregatedStep names the row that counts the event. The time of its fold is not
// recorded for each event: no later than NoLaterThan.
type AggregatedStep struct {
	Feature        string    `json:"feature"`
	PeriodKey      string    `json:"periodKey"`
	SubscriptionID uuid.UUID `json:"subscriptionId"`
	NoLaterThan    time.Time `json:"noLaterThan"`
}

// RetryStep is a retry: a new event in the same pipeline.
type RetryStep struct {
	At           time.Time       `json:"at"`
	Position     events.Position `json:"position"`
	DeadLetterID uuid.UUID       `json:"deadLetterId"`
	Attempt      int             `json:"attempt"`
}

// DeadLetterStep is a dead letter of the event.
type DeadLetterStep struct {
	ID     uuid.UUID `json:"id"`
	Stage  string    `json:"stage"`
	Status string    `json:"status"`
	Code   string    `json:"code"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // of the last failure
}

// A rewind moves the relay's cursor back; furthest is the cursor before it: until a record is published again it is where
// it was. Each publication has a row in outbox_publications until it has expired (infra/relay). The bounds of its position
// are those of broker_place.
const readRecorded = `
SELECT l.position, l.recorded_at, l.event_id, l.correlation_id, l.payload, l.payload_hash,
       greatest(c.position, c.furthest) >= l.position, b.broker_offset, b.published_at,
       b.published_at IS NULL AND NOT EXISTS (
         SELECT FROM outbox_publications p WHERE p.partition = l.partition AND p.topic = l.topic
            AND p.from_position <= l.position AND p.from_position > l.position - 10000 AND p.to_position >= l.position)
FROM event_log l
JOIN relay_cursors c ON c.partition = l.partition
LEFT JOIN LATERAL broker_place(l.partition, l.topic, l.position) b ON greatest(c.position, c.furthest) >= l.position
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key = 'u/' || $3::text`

// An eventId can be a prefix of another: the payload decides.
const readEventConflicts = `
SELECT l.position, l.recorded_at, l.dedupe_key, l.payload ->> 'eventId', (l.payload ->> 'rawPosition')::bigint,
       l.payload ->> 'firstHash', l.payload ->> 'conflictHash'
FROM event_log l
WHERE l.partition = $1 AND l.tenant_id = $2
  AND l.dedupe_key > 'k/' || $3::text || '/' AND l.dedupe_key < 'k/' || $3::text || '0'
  AND l.payload ->> 'eventId' = $3::text
ORDER BY l.position
LIMIT 1000`

const readEventLetters = `
SELECT d.id, d.stage, d.status, d.code, d.reason, d.last_failed_at, d.topic, coalesce(d.details ->> 'consumer', '')
FROM (SELECT p.generation FROM projection_pointers p
      WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
      ORDER BY p.tenant_id DESC LIMIT 1) live
JOIN dead_letter_events d ON d.generation = live.generation
WHERE d.tenant_id = $1 AND d.producer_event_id = $2 AND d.stage <> 'INGESTION'
ORDER BY d.id
LIMIT 1000`

// receipt is a receipt under construction.
type receipt struct {
	Receipt
	partition int16
	found     bool
	facts     usageFacts
	verdict   events.Validated
	letters   map[string]bool // that are retried as steps of the event
	retried   []domain.RetriedUsage
	periods   domain.PeriodHistory // of the event's period
	stands    query.Standing

	correctionsLetters map[string][]usageLetter // by the eventIds of the corrections
}

// Receipt returns the receipt of a producer's event; ErrNotFound if the tenant has no
// event with this id.
func (r *Reads) Receipt(ctx context.Context, v query.Viewer, tenant uuid.UUID, eventID string, w query.Wait) (Receipt, error) {
	if !query.Storable(eventID) {
		return Receipt{}, query.ErrNotFound
	}
	if err := r.AwaitPassed(ctx, v, query.AggregatesSource(), tenant, w); err != nil {
		return Receipt{}, err
	}
	c := receipt{partition: events.PartitionOf(tenant), letters: map[string]bool{}}
	c.EventID, c.TenantID = eventID, tenant
	c.Conflicts, c.Retries, c.DeadLetters = []Conflict{}, []RetryStep{}, []DeadLetterStep{}
	c.Corrections, c.Adjustments = []CorrectionStep{}, []AdjustmentStep{}
	var common usageStanding
	err := r.Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		err := query.RunAll(ctx, tx,
			query.ReadStanding(query.AggregatesSource(), tenant, &c.stands),
			usageStandingOf(tenant, &common),
			query.New(readRecorded, []any{c.partition, tenant, eventID}, query.Each(c.scanRecorded)),
			query.New(readEventConflicts, []any{c.partition, tenant, eventID}, query.Each(c.scanConflict)),
			query.New(readEventLetters, []any{tenant, eventID}, query.Each(c.scanLetter)))
		if err != nil || !c.found {
			return err
		}
		raw := c.facts.recorded
		if err := query.RunAll(ctx, tx,
			keyed(tenant, c.partition, []string{events.KeyValidated(raw)}, []keyRange{rejectionsOf(raw)}, c.scanStep),
			query.New(readEventCorrections, []any{c.partition, tenant, raw}, query.Each(c.scanCorrection)),
			query.New(readEventAdjustments, []any{tenant, raw}, query.Each(c.scanAdjustment))); err != nil {
			return err
		}
		return query.RunAll(ctx, tx, keyed(tenant, c.partition, nil, c.retries(), c.scanStep), c.correctionLetters(),
			query.New(readChangesOfPeriod, []any{tenant, c.verdict.PeriodKey}, query.Each(c.scanPeriodChange)))
	})
	if err != nil {
		return Receipt{}, err
	}
	if !c.found {
		return Receipt{}, query.ErrNotFound
	}
	c.facts.aggregated, c.facts.failing = common.aggregated, common.failing
	c.conclude(w)
	return c.Receipt, nil
}

func (c *receipt) at(number int64) events.Position {
	return events.Position{Partition: c.partition, Number: number}
}

func (c *receipt) scanRecorded(rows pgx.Rows) error {
	var hash []byte
	var published bool
	step := PublishedStep{Topic: events.TopicUsageRaw.Name(), Partition: c.partition}
	err := rows.Scan(&c.facts.recorded, &c.Recorded.At, &c.Recorded.LogEventID, &c.Recorded.CorrelationID, &c.Payload, &hash,
		&published, &step.Offset, &step.At, &step.Expired)
	if err != nil {
		return err
	}
	c.found = true
	c.Recorded.Position = c.at(c.facts.recorded)
	if len(hash) > 1 {
		c.CanonicalVersion, c.PayloadHash = int(hash[0]), hex.EncodeToString(hash[1:])
	}
	if published {
		c.Published = &step
	}
	return nil
}

func (c *receipt) scanStep(rows pgx.Rows) error {
	var number int64
	var at time.Time
	var subject events.Subject
	var payload []byte
	if err := rows.Scan(&number, &at, &subject, &payload); err != nil {
		return err
	}
	switch subject {
	case events.UsageValidated:
		c.facts.validated = number
		err := json.Unmarshal(payload, &c.verdict)
		c.Validated = &ValidatedStep{at, c.at(number), c.verdict.ValidatedSubscriptionID, c.verdict.FeatureType, c.verdict.PeriodKey,
			c.verdict.Amount}
		return err
	case events.UsageRejected:
		var no events.Rejected
		err := json.Unmarshal(payload, &no)
		c.facts.rejected = true
		c.Rejected = &RejectedStep{at, c.at(number), no.Code, no.Reason, no.Attempt, no.DeadLetterID}
		c.letters[no.DeadLetterID.String()] = true
		return err
	case events.UsageRetried, events.Reaggregated: // both kinds of retry say this much
		var retry events.Retried
		err := json.Unmarshal(payload, &retry)
		c.Retries = append(c.Retries, RetryStep{at, c.at(number), retry.DeadLetterID, retry.Attempt})
		c.retried = append(c.retried, domain.RetriedUsage{Position: number, Rejected: retry.Rejected})
		return err
	}
	return nil // the requests and the ends of retries have keys in the same ranges
}

// retries returns the ranges of the event's retries.
func (c *receipt) retries() []keyRange {
	var ranges []keyRange
	for _, id := range slices.Sorted(maps.Keys(c.letters)) {
		ranges = append(ranges, retriesOf(id))
	}
	return ranges
}

func (c *receipt) scanConflict(rows pgx.Rows) error {
	conflict, _, err := scanConflict(rows, c.partition)
	c.Conflicts = append(c.Conflicts, conflict)
	return err
}

func (c *receipt) scanLetter(rows pgx.Rows) error {
	var d DeadLetterStep
	var l usageLetter
	err := rows.Scan(&d.ID, &d.Stage, &d.Status, &d.Code, &d.Reason, &d.At, &l.Topic, &l.Consumer)
	l.Stage, l.Status = d.Stage, d.Status
	c.letters[d.ID.String()] = true
	c.DeadLetters, c.facts.letters = append(c.DeadLetters, d), append(c.facts.letters, l)
	return err
}

func (c *receipt) conclude(w query.Wait) {
	c.AsOfPosition = c.stands.AsOf(c.TenantID, w)
	c.Status = c.facts.status()
	c.concludeCorrections()
	c.concludePeriods()
	if c.Status == projections.UsageAggregated {
		c.Aggregated = &AggregatedStep{c.verdict.Feature, c.verdict.PeriodKey, c.verdict.ValidatedSubscriptionID, c.stands.MovedAt}
	}
}
