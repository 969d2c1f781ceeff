package validate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// isCorrection reports whether a recorded payload is that of a correction or a retraction. A retry has a subject of its own.
func isCorrection(s events.Subject, payload json.RawMessage) bool {
	return s.IsCorrection() ||
		s == events.UsageRetried && (bytes.HasSuffix(payload, []byte(`"type":"correction"}`)) ||
			bytes.HasSuffix(payload, []byte(`"type":"retraction"}`)))
}

// correct decides a correction or a retraction. Its verdict is that on the target, with the target's time.
func (d *decision) correct(payload json.RawMessage, target func(ref string) *domain.Target) error {
	c, err := codec.CorrectionOf(payload)
	if err != nil {
		return err
	}
	d.Ref = c.CorrectionRef
	d.Usage = events.Usage{EventID: c.EventID, Feature: c.Feature, Timestamp: c.Timestamp.UTC(), Metadata: c.Metadata, Type: c.Type,
		Source: c.Source}
	if c.Amount != nil {
		d.Usage.Amount = *c.Amount
	}
	t := target(c.CorrectionRef)
	change, refusal := t.Correct(c.Type, c.CorrectionRef, c.Feature, d.Usage.Amount)
	if d.Refusal = refusal; refusal == nil {
		d.Change, d.Number = &change, t.Corrections+1
		d.Verdict, d.Usage.Timestamp = t.Verdict, t.Timestamp
	}
	return nil
}

// targets are the events that the corrections of a batch name, as they stand in the turn of each event. It is nil without corrections.
type targets struct {
	known  map[targetKey]*domain.Target // nil for an eventId that no earlier event has
	parked map[events.Position]bool     // the corrections whose target was parked before them
	done   map[events.Position]bool     // the retries of corrections that have a verdict already
}

type targetKey struct {
	tenant  uuid.UUID
	eventID string
}

// of returns the target of a correction as known at its position.
func (t *targets) of(e *events.Envelope, ref string) *domain.Target {
	if t == nil {
		return nil
	}
	target := t.known[targetKey{e.TenantID, ref}]
	if target != nil && t.parked[e.Position] {
		parked := *target
		parked.Counted = false
		return &parked
	}
	return target
}

// decided notes the verdict on an event of the batch: later corrections of the batch see it.
func (t *targets) decided(e *events.Envelope, d *decision) {
	if t == nil {
		return
	}
	switch {
	case t.done[e.Position]: // the log skips the verdict, whatever it is
		d.Refusal, d.Change = nil, nil
	case d.Change != nil:
		t.known[targetKey{e.TenantID, d.Ref}].Apply(d.Change)
	}
	key := targetKey{e.TenantID, d.Usage.EventID}
	known, named := t.known[key]
	if !named {
		return
	}
	if known == nil {
		known = &domain.Target{Position: d.Origin, EventID: d.Usage.EventID, Feature: d.Usage.Feature, IsUsage: d.Ref == ""}
		t.known[key] = known
	}
	if known.IsUsage && d.Refusal == nil && !known.Counted {
		known.Counted, known.Verdict, known.Timestamp, known.Amount = true, d.Verdict, d.Usage.Timestamp, d.Usage.Amount
	}
}

// readTargetsSQL reads the targets of corrections: each with the verdict on it, its last change, and whether it was parked before
// the correction. Only the validator, whose checkpoint is locked, writes verdicts and changes. An event is parked before a
// position if a dead letter before it names the verdict, and no end before it says that the verdict counts. A retry may find that its
// correction has a verdict: as EXISTS, a kept plan would hash the keys of the whole log for it.
var readTargetsSQL = events.SQL(`
SELECT g.partition, g.before, g.tenant_id, g.name, t.position, t.subject, 'u/' || g.name, t.occurred_at, t.body,
       'v/' || t.position, v.occurred_at, v.body, coalesce(c.n, 0), coalesce(c.kind, ''), coalesce(c.after, 0), v.position IS NOT NULL
       AND EXISTS (
  SELECT FROM event_log_rows f
  WHERE f.tenant_id = g.tenant_id AND ` + projections.UncountedVerdict("f") + `
    AND ` + projections.FailureSource("f") + ` = v.position::text
    AND f.partition = g.partition AND f.position < g.before
    AND NOT EXISTS (
      SELECT FROM event_log_rows e
      WHERE e.partition = g.partition AND e.tenant_id = g.tenant_id AND e.dedupe_key = 'r/' || f.event_id || '/closed'
        AND e.position < g.before AND e.body ->> 'status' = '` + events.StatusResolved + `')),
  g.before <> g.origin AND (
    SELECT true FROM event_log_rows l WHERE l.partition = g.partition AND l.tenant_id = g.tenant_id
    AND l.dedupe_key = 'v/' || g.origin LIMIT 1) IS NOT NULL
FROM unnest($1::smallint[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[]) AS g (partition, tenant_id, name, before, origin)
CROSS JOIN LATERAL (
  SELECT l.position, l.subject, l.occurred_at, l.body FROM event_log_rows l
  WHERE l.partition = g.partition AND l.tenant_id = g.tenant_id AND l.dedupe_key = 'u/' || g.name LIMIT 1) t
LEFT JOIN LATERAL (
  SELECT l.position, l.occurred_at, l.body FROM event_log_rows l
  WHERE l.partition = g.partition AND l.tenant_id = g.tenant_id AND l.dedupe_key = 'v/' || t.position LIMIT 1) v ON true
LEFT JOIN LATERAL (
  SELECT u.n, u.kind, u.after FROM usage_corrections u
  WHERE u.tenant_id = g.tenant_id AND u.target = t.position ORDER BY u.n DESC LIMIT 1) c ON true`)

// readTargets reads the targets of the corrections in a batch; nil without corrections.
func readTargets(ctx context.Context, query projections.Query, batch []events.Envelope) (*targets, error) {
	var partitions []int16
	var tenants []uuid.UUID
	var names []string
	var before, origins []int64
	found := &targets{map[targetKey]*domain.Target{}, map[events.Position]bool{}, map[events.Position]bool{}}
	for i := range batch {
		e := &batch[i]
		d, body, err := newDecision(e)
		if err != nil || !isCorrection(e.Subject, body) {
			continue // the fold reports the error
		}
		c, err := codec.CorrectionOf(body)
		if err != nil {
			continue
		}
		found.known[targetKey{e.TenantID, c.CorrectionRef}] = nil
		partitions, tenants = append(partitions, e.Position.Partition), append(tenants, e.TenantID)
		names, before, origins = append(names, c.CorrectionRef), append(before, e.Position.Number), append(origins, d.Origin)
	}
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := query(ctx, readTargetsSQL, partitions, tenants, names, before, origins)
	if err == nil {
		err = found.scan(rows)
	}
	if err != nil {
		return nil, fmt.Errorf("read the targets of corrections: %w", err)
	}
	return found, nil
}

func (t *targets) scan(rows pgx.Rows) error {
	var at events.Position
	var key targetKey
	var recorded, verdict events.Envelope
	var usedAt *time.Time
	var n int
	var kind string
	var after int64
	var parked, done bool
	_, err := pgx.ForEachRow(rows, []any{&at.Partition, &at.Number, &key.tenant, &key.eventID, &recorded.Position.Number, &recorded.Subject,
		&recorded.DedupeKey, &recorded.OccurredAt, (*[]byte)(&recorded.Payload), &verdict.DedupeKey, &usedAt, (*[]byte)(&verdict.Payload),
		&n, &kind, &after, &parked, &done}, func() error {
		t.parked[at], t.done[at] = parked, done
		if t.known[key] != nil {
			return nil
		}
		usage := codec.UsageInRow(recorded.Subject, recorded.DedupeKey, recorded.OccurredAt, recorded.Payload)
		target := &domain.Target{Position: recorded.Position.Number, EventID: key.eventID, Feature: usage.Feature, Corrections: n,
			IsUsage:   recorded.Subject == events.UsageRecorded || recorded.Subject == events.UsageAdmitted,
			Retracted: kind == events.TypeRetraction}
		t.known[key] = target
		if usedAt == nil {
			return nil
		}
		verdict.Subject, verdict.OccurredAt = events.UsageValidated, *usedAt
		v, err := codec.VerdictOf(&verdict)
		target.Counted, target.Timestamp, target.Amount = true, v.Timestamp.UTC(), v.Amount
		target.Verdict = domain.Verdict{SubscriptionID: v.ValidatedSubscriptionID, FeatureType: v.FeatureType, PeriodKey: v.PeriodKey,
			Grant: v.Grant}
		if n > 0 {
			target.Amount = after
		}
		return err
	})
	return err
}
