package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/erasures"
	"github.com/meterplex/meterplex/projections/state"
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
	n, names, err := count(ctx, s, `SELECT DISTINCT reason || ' at ' || to_char(raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"')
		FROM log_epochs
 WHERE reason IN ('promoted', 'restored', 'set_back') AND raised_at > now() - make_interval(secs => $1)`, livesWarning.Seconds())
	if err != nil || n == 0 {
		return OK, "the database server was neither promoted nor restored within a day", err
	}
	return Warning, "the database server was " + names, nil
}

// read reads parts of the state.
func (s *subject) read(ctx context.Context, parts ...state.Part) error {
	db, err := s.tables()
	if err != nil {
		return err
	}
	return state.Read(ctx, db, parts...)
}

func relayLeases(ctx context.Context, s *subject) (State, string, error) {
	var o state.Outbox
	err := s.read(ctx, &o)
	if err != nil || o.Totals.Unleased == 0 {
		return OK, "an instance holds each of the 32 partitions", err
	}
	var free []string
	for _, p := range o.Partitions {
		if !p.Leased {
			free = append(free, strconv.Itoa(int(p.Partition)))
		}
	}
	return Failure, fmt.Sprintf("%d of 32 partitions have no relay: %s …", o.Totals.Unleased, firstOf(free)), nil
}

// firstOf names up to three of some, as count does.
func firstOf(names []string) string {
	slices.Sort(names)
	return strings.Join(names[:min(3, len(names))], ", ")
}

func outbox(ctx context.Context, s *subject) (State, string, error) {
	var o state.Outbox
	err := s.read(ctx, &o)
	if err != nil || o.Totals.Unpublished == 0 {
		return OK, "all events were published", err
	}
	age := rounded(o.Totals.OldestUnpublishedSeconds)
	finding, last := fmt.Sprintf("%d events were never published, the oldest is %s old", o.Totals.Unpublished, age), ""
	for _, p := range o.Partitions {
		if p.Attempts > 0 && p.LastError != nil {
			last = max(last, *p.LastError)
		}
	}
	if last != "" {
		finding += "; the last error: " + last
	}
	return statusOf(age, unpublishedWarning, unpublishedFailure), finding, nil
}

func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
}

func withheldRecords(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT partition || '-' || position FROM withheld_records
		WHERE withheld_at > now() - interval '30 days'`)
	if err != nil || n == 0 {
		return OK, "no record was withheld within 30 days", err
	}
	return Warning, fmt.Sprintf("%d records could not be published within 30 days: %s", n, names), nil
}

func projectionLag(ctx context.Context, s *subject) (State, string, error) {
	var lags state.Lags
	if err := s.read(ctx, &lags); err != nil {
		return "", "", err
	}
	last := lags.Furthest()
	age := rounded(last.Seconds)
	if age <= lagWarning {
		return OK, "no consumer lags by more than " + lagWarning.String(), nil
	}
	return statusOf(age, lagWarning, lagFailure), fmt.Sprintf("%s lags by %d events and %s", last.Name, last.Positions, age), nil
}

func projectionState(ctx context.Context, s *subject) (State, string, error) {
	var generations state.Generations
	var last state.LastRebuilds
	err := s.read(ctx, &generations, &last)
	var names []string
	for _, g := range generations {
		if g.State == state.GenerationBroken {
			names = append(names, fmt.Sprintf("%s generation %d", g.Projection, g.Generation))
		}
	}
	for _, r := range last {
		if r.Differs != nil && *r.Differs > 0 {
			names = append(names, fmt.Sprintf("%s (%d differences)", r.Projection, *r.Differs))
		}
	}
	if err != nil || len(names) == 0 {
		return OK, "the rows of each projection are updated, and its last comparison found no difference", err
	}
	return Failure, "rows that are no longer updated, or differences from the log: " + firstOf(names), nil
}

func deadLetters(ctx context.Context, s *subject) (State, string, error) {
	letters := state.DeadLetters{Most: mostLetters}
	if err := s.read(ctx, &letters); err != nil {
		return "", "", err
	}
	var failed int64
	for _, of := range letters.Groups {
		if of.Status == "FAILED" {
			failed = min(failed+of.Count, mostLetters)
		}
	}
	if failed > failedLetters {
		return Warning, fmt.Sprintf("%d dead letters are FAILED", failed), nil
	}
	return OK, fmt.Sprintf("%d dead letters are FAILED", failed), nil
}

func sagas(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT kind || ' ' || key || ' is ' || state FROM sagas WHERE ended_at IS NULL AND state IN ('PARTIAL',
		'DRIFT')`)
	if err != nil || n == 0 {
		return OK, "no open background process is PARTIAL or DRIFT", err
	}
	return Warning, fmt.Sprintf("%d open background processes: %s", n, names), nil
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
	n, names, err := count(ctx, s, `SELECT t.id || ' is ' || t.status FROM tenants t WHERE t.id = ANY ($1::text[]::uuid[])
		AND NOT EXISTS (SELECT FROM erasures e WHERE e.tenant_id = t.id)`, tenants)
	if err != nil || n == 0 {
		return OK, "the database knows all erasures", err
	}
	return Failure, fmt.Sprintf("%d tenants whose personal data was erased have it again: %s", n, names), nil
}

func pushes(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s,
		`SELECT feature || ' ' || period_key || ' is ' || state FROM pushes WHERE state IN ('FAILED', 'UNKNOWN')`)
	if err != nil || n == 0 {
		return OK, "no Stripe delivery is FAILED or UNKNOWN", err
	}
	return Warning, fmt.Sprintf("%d Stripe deliveries: %s", n, names), nil
}

func webhooks(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s,
		`SELECT id::text || CASE status WHEN 'DISABLED' THEN ' is disabled' ELSE ' has failed since '
 || to_char(failing_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"') END FROM webhooks
 WHERE status = 'DISABLED' OR status = 'ENABLED' AND failing_since < now() - interval '1 day'`)
	if err != nil || n == 0 {
		return OK, "no webhook is disabled, or has failed for a day", err
	}
	return Warning, fmt.Sprintf("%d webhooks: %s", n, names), nil
}
