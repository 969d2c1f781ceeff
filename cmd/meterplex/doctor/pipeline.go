package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/erasures"
	"github.com/meterplex/meterplex/projections"
)

func service(ctx context.Context, s *subject) (State, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(s.ServiceURL, "/")+"/readyz", nil)
	if err != nil {
		return "", "", err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return Failure, "no answer at " + s.ServiceURL, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", "", err
	}
	var answer struct {
		Version, Detail string
		Dependencies    map[string]string
	}
	_ = json.Unmarshal(body, &answer) // another program may answer there
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable:
		return Failure, "not ready: " + answer.Detail, nil
	case resp.StatusCode != http.StatusOK || answer.Version == "":
		return Failure, fmt.Sprintf("%s answers %s: is it a Meterplex service?", s.ServiceURL, resp.Status), nil
	}
	for name, state := range answer.Dependencies {
		if state != "ok" {
			return Warning, "ready, but the dependency " + name + " " + state, nil
		}
	}
	return OK, "ready, version " + answer.Version, nil
}

func serverLives(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT DISTINCT reason || ' at ' || to_char(raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"') FROM log_epochs
 WHERE reason IN ('promoted', 'restored', 'set_back') AND raised_at > now() - make_interval(secs => $1)`, livesWarning.Seconds())
	if err != nil || n == 0 {
		return OK, "the database server was neither promoted nor restored within a day", err
	}
	return Warning, "the database server was " + names, nil
}

func relayLeases(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT partition::text FROM relay_cursors WHERE owner IS NULL OR lease_until < now()`)
	if err != nil || n == 0 {
		return OK, "an instance holds each of the 32 partitions", err
	}
	return Failure, fmt.Sprintf("%d of 32 partitions have no relay: %s …", n, names), nil
}

func outbox(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.tables()
	if err != nil {
		return "", "", err
	}
	var waiting int64
	var seconds float64
	var last string
	if err := db.QueryRow(ctx, `SELECT coalesce(sum(greatest(h.position - greatest(c.position, c.furthest), 0)), 0)::bigint,
 coalesce(max(extract(epoch FROM now() - l.recorded_at)), 0)::float8, coalesce(max(c.last_error) FILTER (WHERE c.attempts > 0), '')
 FROM log_heads h JOIN relay_cursors c USING (partition)
 LEFT JOIN event_log_rows l ON l.partition = h.partition AND l.position = greatest(c.position, c.furthest) + 1`).Scan(&waiting, &seconds, &last); err != nil {
		return "", "", err
	}
	age := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	if waiting == 0 {
		return OK, "all events were published", nil
	}
	finding := fmt.Sprintf("%d events were never published, the oldest is %s old", waiting, age)
	if last != "" {
		finding += "; the last error: " + last
	}
	return statusOf(age, unpublishedWarning, unpublishedFailure), finding, nil
}

func withheldRecords(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT partition || '-' || position FROM withheld_records WHERE withheld_at > now() - interval '30 days'`)
	if err != nil || n == 0 {
		return OK, "no record was withheld within 30 days", err
	}
	return Warning, fmt.Sprintf("%d records could not be published within 30 days: %s", n, names), nil
}

// backlog is the part of the log that a consumer has not applied.
type backlog struct {
	consumer string
	topic    events.Topic // 0: it reads the log itself
	events   int64
	age      time.Duration // of the oldest event
}

var backlogsSQL = `SELECT c.consumer, coalesce(min(t.topic), 0)::smallint, coalesce(sum(greatest(s.source - c.position, 0)), 0)::bigint, coalesce(max(extract(epoch FROM now() - n.recorded_at)), 0)::float8
 FROM (SELECT consumer, partition, min(position) AS position FROM consumer_checkpoints WHERE joined GROUP BY consumer, partition) c
 JOIN log_heads h USING (partition)
 CROSS JOIN LATERAL (SELECT ($1::jsonb ->> c.consumer)::int AS topic) t
 CROSS JOIN LATERAL (SELECT CASE WHEN t.topic IS NULL THEN h.position ELSE h.topic_positions[t.topic] END AS source) s
 CROSS JOIN LATERAL (SELECT ` + projections.FirstWaiting("c.partition", "c.position", "s.source", "t.topic") + ` AS recorded_at) n
 GROUP BY c.consumer ORDER BY c.consumer`

// backlogs returns the backlog of each consumer.
func (s *subject) backlogs(ctx context.Context) (list []backlog, err error) {
	db, err := s.tables()
	if err != nil {
		return nil, err
	}
	topics := map[string]int{}
	for _, t := range events.Topics() {
		if t.Consumer != "" && !t.Topic.Outside() {
			topics[t.Consumer] = int(t.Topic)
		}
	}
	rows, err := db.Query(ctx, backlogsSQL, topics)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b backlog, err error) {
		var seconds float64
		err = row.Scan(&b.consumer, &b.topic, &b.events, &seconds)
		b.age = time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
		return b, err
	})
}

func projectionLag(ctx context.Context, s *subject) (State, string, error) {
	list, err := s.backlogs(ctx)
	if err != nil {
		return "", "", err
	}
	last := slices.MaxFunc(append(list, backlog{}), func(a, b backlog) int { return cmp.Compare(a.age, b.age) })
	if last.age <= lagWarning {
		return OK, "no consumer is behind by more than " + lagWarning.String(), nil
	}
	return statusOf(last.age, lagWarning, lagFailure), fmt.Sprintf("%s is %d events and %s behind", last.consumer, last.events, last.age), nil
}

func projectionState(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT projection || ' generation ' || generation FROM projection_generations WHERE broken IS NOT NULL AND dropped_at IS NULL
 UNION ALL SELECT projection || ' (' || differs || ' differences)' FROM (SELECT DISTINCT ON (projection) projection, differs FROM projection_rebuilds WHERE differs IS NOT NULL
  ORDER BY projection, ended_at DESC, id DESC) last WHERE differs > 0`)
	if err != nil || n == 0 {
		return OK, "no generation is broken, and the last comparison of each projection found no difference", err
	}
	return Failure, fmt.Sprintf("broken generations, or differences from the log: %s", names), nil
}

func deadLetters(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.tables()
	if err != nil {
		return "", "", err
	}
	var failed int64
	if err := db.QueryRow(ctx, `SELECT count(*) FROM (SELECT FROM dead_letter_events WHERE generation = live_generation('`+projections.ProjectionDeadLetters+`', $1) AND status = 'FAILED' LIMIT 100000) d`,
		uuid.Nil).Scan(&failed); err != nil {
		return "", "", err
	}
	if failed > failedLetters {
		return Warning, fmt.Sprintf("%d dead letters are FAILED", failed), nil
	}
	return OK, fmt.Sprintf("%d dead letters are FAILED", failed), nil
}

func sagas(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT kind || ' ' || key || ' is ' || state FROM sagas WHERE ended_at IS NULL AND state IN ('PARTIAL', 'DRIFT')`)
	if err != nil || n == 0 {
		return OK, "no open saga is PARTIAL or DRIFT", err
	}
	return Warning, fmt.Sprintf("%d open sagas: %s", n, names), nil
}

// erased finds erasures of personal data that a restored database does not know.
func erased(ctx context.Context, s *subject) (State, string, error) {
	if s.Erasures == "" {
		return Skipped, "METERPLEX_ERASURES is not set", nil
	}
	list, err := erasures.Folder(s.Erasures).List()
	if err != nil {
		return Failure, err.Error(), nil
	}
	tenants := []string{}
	for _, e := range list {
		tenants = append(tenants, e.TenantID.String())
	}
	n, names, err := count(ctx, s, `SELECT t.id || ' is ' || t.status FROM tenants t WHERE t.id = ANY ($1::text[]::uuid[]) AND NOT EXISTS (SELECT FROM erasures e WHERE e.tenant_id = t.id)`, tenants)
	if err != nil || n == 0 {
		return OK, "the database knows all erasures", err
	}
	return Failure, fmt.Sprintf("%d tenants whose personal data was erased have it again: %s", n, names), nil
}

func pushes(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT feature || ' ' || period_key || ' is ' || state FROM pushes WHERE state IN ('FAILED', 'UNKNOWN')`)
	if err != nil || n == 0 {
		return OK, "no push is FAILED or UNKNOWN", err
	}
	return Warning, fmt.Sprintf("%d pushes: %s", n, names), nil
}

func webhooks(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT id::text || CASE status WHEN 'DISABLED' THEN ' is disabled' ELSE ' has failed since ' || to_char(failing_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"') END FROM webhooks
 WHERE status = 'DISABLED' OR status = 'ENABLED' AND failing_since < now() - interval '1 day'`)
	if err != nil || n == 0 {
		return OK, "no webhook is disabled, and none has failed for a day", err
	}
	return Warning, fmt.Sprintf("%d webhooks: %s", n, names), nil
}
