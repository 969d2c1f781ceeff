package state

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// DeadLetters are those that are FAILED or RETRYING, by status and stage. At most Most of each are counted.
type DeadLetters struct {
	Most   int64
	Groups []OpenLetters
}

// OpenLetters are dead letters of a status and a stage.
type OpenLetters struct {
	Status, Stage string
	Count         int64
	Oldest        *time.Time
}

// deadLettersSQL uses the index of open dead letters, which is ordered by status, stage and id. The id has the time of the first
// failure, so that the first one is the oldest.
const deadLettersSQL = `WITH live AS MATERIALIZED (
  SELECT p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters + `' AND p.tenant_id = '00000000-0000-0000-0000-000000000000')
 SELECT status, stage, (SELECT count(*) FROM (
  SELECT FROM dead_letter_events d
  WHERE d.generation = (SELECT generation FROM live) AND d.status = a.status AND d.status IN ('FAILED', 'RETRYING')
  AND d.stage = b.stage LIMIT $1) d),
 (SELECT d.first_failed_at FROM dead_letter_events d
  WHERE d.generation = (SELECT generation FROM live) AND d.status = a.status AND d.status IN ('FAILED', 'RETRYING')
  AND d.stage = b.stage ORDER BY d.id LIMIT 1)
 FROM unnest(ARRAY['FAILED', 'RETRYING']) AS a (status), unnest(ARRAY['INGESTION', 'PUBLISHING', 'VALIDATION', 'AGGREGATION']) AS b (stage)`

// Statement counts the open dead letters.
func (d *DeadLetters) Statement() query.Statement { return rows(&d.Groups, deadLettersSQL, d.Most) }

// atLeast raises counts that were not counted to their end to the counts of an earlier read.
func (d *DeadLetters) atLeast(before DeadLetters) {
	for i := range d.Groups {
		for _, b := range before.Groups {
			if one := &d.Groups[i]; one.Count == d.Most && b.Status == one.Status && b.Stage == one.Stage {
				one.Count = max(one.Count, b.Count)
			}
		}
	}
}

// OpenSagas are open sagas of a kind in a state.
type OpenSagas struct {
	Kind, State string
	Count       int64
	Since       time.Time // the earliest deadline, or start of those without
}

// Sagas are the open ones of all kinds, also of those that only a newer release knows.
type Sagas []OpenSagas

// sagasSQL uses the index of open sagas.
const sagasSQL = `SELECT kind, state, count(*), min(coalesce(deadline_at, created_at)) FROM sagas WHERE ended_at IS NULL GROUP BY kind,
	state`

// Statement counts the open sagas.
func (s *Sagas) Statement() query.Statement { return rows((*[]OpenSagas)(s), sagasSQL) }

// Pushes are those that the billing provider has not confirmed, and the meters whose totals there differ.
type Pushes struct {
	Pending, Unknown, Failed  int64
	OldestSeconds             float64
	FailedSince, UnknownSince *time.Time
	Differences               int64 // meters
}

// Open pushes are found by the index pushes_open, differences by push_comparisons_different. A meter has a row for each of its months.
// Months of which no push is compared any more are left out: their differences would stay for ever.
const pushesSQL = `SELECT count(*) FILTER (WHERE state = 'PENDING'), count(*) FILTER (WHERE state = 'UNKNOWN'),
	count(*) FILTER (WHERE state = 'FAILED'),
 greatest(coalesce(extract(epoch FROM clock_timestamp() - min(stored_at)), 0), 0)::float8, min(stored_at) FILTER (WHERE state = 'FAILED'),
 min(unknown_since) FILTER (WHERE state = 'UNKNOWN'),
 (SELECT count(*) FROM push_comparisons WHERE total <> delivered AND month >= to_char((now() - $1::interval) AT TIME ZONE 'UTC', 'YYYY-MM'))
 FROM pushes WHERE state <> 'DELIVERED'`

// Statement counts the open pushes.
func (p *Pushes) Statement() query.Statement { return row(p, pushesSQL, push.Oldest) }

// Webhooks are the queues of webhooks.
type Webhooks struct {
	Pending          int64   // deliveries, at most a million
	OldestDueSeconds float64 // the longest time for which a webhook with a due delivery waits for an instance
	Failing          int64   // enabled webhooks whose last request failed
}

// webhooksSQL uses the indexes of waiting deliveries and of due webhooks. It counts a million deliveries at most, since every instance
// asks each 2 s.
const webhooksSQL = `SELECT (SELECT count(*) FROM (SELECT FROM webhook_deliveries WHERE state = 'PENDING' LIMIT 1000000) d),
 (SELECT coalesce(extract(epoch FROM greatest(now() - min(next_at), '0')), 0)::float8 FROM webhooks WHERE status = 'ENABLED'
 AND next_at IS NOT NULL),
 (SELECT count(*) FROM webhooks WHERE status = 'ENABLED' AND failing_since IS NOT NULL)`

// Statement reads the queues of webhooks.
func (w *Webhooks) Statement() query.Statement { return row(w, webhooksSQL) }

// DisabledWebhooks are those that the service has disabled.
type DisabledWebhooks struct {
	Count  int64
	Since  *time.Time // of the oldest
	Tenant *uuid.UUID // of the oldest; nil: no webhook is disabled
}

// disabledSQL reads all webhooks: no index has the disabled ones.
const disabledSQL = `SELECT count(*), min(failing_since), (array_agg(tenant_id ORDER BY failing_since, id))[1] FROM webhooks
	WHERE status = 'DISABLED' AND reason = ANY ($1)`

// Statement counts the webhooks that the service has disabled.
func (d *DisabledWebhooks) Statement() query.Statement {
	return row(d, disabledSQL, []string{webhook.Gone, webhook.Failing})
}
