package audit

import (
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// usageFacts determine the status of a usage event. The status is derived
// at each read and never stored.
type usageFacts struct {
	recorded   int64
	validated  int64 // position of the verdict, 0 if missing
	rejected   bool
	aggregated int64 // the aggregator's checkpoint
	letters    []usageLetter
	failing    []int64 // sources of failures that are not dead letters yet
}

// usageLetter is a dead letter of a usage event.
type usageLetter struct {
	Stage    string `json:"stage"`
	Status   string `json:"status"`
	Topic    string `json:"topic"`    // of the failed event
	Consumer string `json:"consumer"` // the one that could not fold it; "" if no fold was involved
}

// parks reports whether the letter stands for the event itself, on its way over a
// topic: not for another payload, nor for a read model beside that way.
func (l *usageLetter) parks(topic events.Topic) bool {
	switch l.Stage {
	case events.StageIngestion:
		return false
	case events.StageAggregation:
		return l.Topic == topic.Name() && (l.Consumer == events.GroupValidator || l.Consumer == events.GroupAggregator)
	default:
		return l.Topic == topic.Name()
	}
}

func (f *usageFacts) status() string {
	on, source := events.TopicUsageRaw, f.recorded
	if f.validated > 0 {
		on, source = events.TopicUsageValidated, f.validated
	}
	at := make(map[string]string) // status of the letters that park it → their stage
	for i := range f.letters {
		if f.letters[i].parks(on) {
			at[f.letters[i].Status] = f.letters[i].Stage
		}
	}
	for _, position := range f.failing {
		if position == source {
			at[events.StatusFailed] = events.StagePublishing
		}
	}
	_, discarded := at[events.StatusDiscarded]
	_, retrying := at[events.StatusRetrying]
	failed, isFailed := at[events.StatusFailed]
	switch {
	case discarded:
		return projections.UsageRejected
	case isFailed && (failed != events.StageValidation || !f.rejected):
		return projections.UsageDeadLettered
	case f.validated > 0 && (retrying || f.validated > f.aggregated):
		return projections.UsageValidated
	case f.validated > 0:
		return projections.UsageAggregated
	case f.rejected && !retrying:
		return projections.UsageRejected
	default:
		return projections.UsagePending
	}
}

// usageStanding holds the inputs shared by the states of all of a tenant's events.
type usageStanding struct {
	head             int64
	aggregated       int64   // the aggregator's checkpoint
	letterGeneration int     // of the dead letters to read
	failing          []int64 // sources of failures that are not folded into dead letters yet
	lettersComplete  bool    // all of those failures are in failing
	passed           int64   // every event up to here has its verdict, and every yes is folded
}

// A checkpoint passes an event that failed in a fold or in publishing: it must not look
// counted while its dead letter is still to be folded. $3 bounds the scan if the dead
// letters are far behind.
var readUsageStanding = events.SQL(`
SELECT h.position, a.position, d.generation, failing_positions(h.partition, $2, d.position, $3::bigint),
       h.topic_positions[{usage.dead-letter}] <= d.position + $3::bigint
FROM log_heads h
CROSS JOIN LATERAL (
  SELECT c.position FROM projection_pointers p
  JOIN consumer_checkpoints c ON c.consumer = 'meterplex-usage-aggregator' AND c.generation = p.generation AND c.partition = h.partition
  WHERE p.live AND p.projection = '` + projections.ProjectionUsage +
	`' AND p.period_key = '' AND p.tenant_id IN ($2, '00000000-0000-0000-0000-000000000000')
  ORDER BY p.tenant_id DESC LIMIT 1) a
CROSS JOIN LATERAL (
  SELECT c.position, c.generation FROM projection_pointers p
  JOIN consumer_checkpoints c ON c.consumer = 'meterplex-dead-letter-handler' AND c.generation = p.generation AND c.partition = h.partition
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id IN ($2, '00000000-0000-0000-0000-000000000000')
  ORDER BY p.tenant_id DESC LIMIT 1) d
WHERE h.partition = $1`)

func usageStandingOf(tenant uuid.UUID, s *usageStanding) query.Statement {
	return query.Statement{
		SQL:  readUsageStanding,
		Args: []any{events.PartitionOf(tenant), tenant, int64(scannedRows)},
		Scan: query.One(&s.head, &s.aggregated, &s.letterGeneration, &s.failing, &s.lettersComplete),
	}
}

// scannedRows bounds how far behind the dead letters' checkpoint failures are looked for.
const scannedRows = 20_000
