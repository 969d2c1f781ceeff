// Package validate accepts or rejects each recorded usage event, by the tenant's
// subscription history up to the event's position.
package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// Validator is the handler of usage.raw: it turns recorded usage into verdicts,
// which are its follow-ups. It writes no table.
type Validator struct {
	NewID func() uuid.UUID

	snapshots snapshots
	recent    recent
}

var _ projections.Pure = (*Validator)(nil)

var errNotForValidator = errors.New("the validator takes recorded and retried usage only")

// Judgement is the verdict on an event, with the event's data.
type Judgement struct {
	Usage        events.Usage
	Origin       int64     // number of the UsageRecorded event
	DeadLetterID uuid.UUID // Nil unless retried
	Attempt      int       // 0 unless retried
	Verdict      domain.Verdict
	Refusal      *domain.Error // nil: yes
}

// FoldJudgement judges recorded or retried usage by its tenant's history up to
// the event's own position: a retry gets a new verdict.
func FoldJudgement(e *events.Envelope, h domain.History) (Judgement, error) {
	j := Judgement{Origin: e.Position.Number}
	body := e.Payload
	switch e.Subject {
	case events.UsageRecorded:
	case events.UsageRetried:
		var retried events.Retried
		if err := json.Unmarshal(body, &retried); err != nil {
			return j, fmt.Errorf("read a retry: %w", err)
		}
		j.Origin, j.DeadLetterID, j.Attempt = retried.RawPosition, retried.DeadLetterID, retried.Attempt
		body = retried.Usage
	default:
		return j, errNotForValidator
	}
	usage, err := codec.UsageOf(body)
	if err != nil {
		return j, err
	}
	j.Usage = usage
	j.Usage.Timestamp = j.Usage.Timestamp.UTC()
	j.Verdict, j.Refusal = domain.Decide(h, e.Position.Number, j.Usage.Feature, j.Usage.Timestamp)
	return j, nil
}

// Apply judges each event and appends its verdict.
func (v *Validator) Apply(ctx context.Context, tx pgx.Tx, _ projections.Generation, batch []events.Envelope) (projections.Result, error) {
	histories, err := v.histories(ctx, tx.Query, tenantsOf(batch))
	if err != nil {
		return projections.Result{}, err
	}
	return v.judge(batch, histories), nil
}

// judge returns the verdicts on a batch.
func (v *Validator) judge(batch []events.Envelope, histories map[uuid.UUID]history) projections.Result {
	result := projections.Result{FollowUps: make([]events.Pending, 0, len(batch))}
	for i := range batch {
		e := &batch[i]
		var j Judgement
		failure := projections.Try(*e, func() (err error) {
			h := histories[e.TenantID]
			if h.err != nil {
				return h.err
			}
			j, err = FoldJudgement(e, h.History)
			return err
		})
		if failure != nil {
			result.Failed = append(result.Failed, *failure)
			continue
		}
		result.FollowUps = v.pronounce(result.FollowUps, e, &j)
	}
	return result
}

func (v *Validator) pronounce(pending []events.Pending, e *events.Envelope, j *Judgement) []events.Pending {
	id := v.NewID()
	if j.Refusal != nil {
		return append(pending, rejected(e, j, id))
	}
	pending = append(pending, validated(e, j, id))
	if j.DeadLetterID == uuid.Nil {
		return pending
	}
	end := events.Closed{DeadLetterID: j.DeadLetterID, Status: events.StatusResolved}
	return append(pending, projections.Closing(e, v.NewID(), end, events.GroupValidator))
}

// validated returns an event keyed by the recorded position: a retry of usage
// validated meanwhile is a duplicate and is not counted.
func validated(e *events.Envelope, j *Judgement, id uuid.UUID) events.Pending {
	p := projections.FollowUp(e, id, events.UsageValidated, &events.Validated{
		RawPosition: j.Origin, EventID: j.Usage.EventID, Feature: j.Usage.Feature,
		Amount: j.Usage.Amount, Count: 1, Timestamp: j.Usage.Timestamp,
		ValidatedSubscriptionID: j.Verdict.SubscriptionID, FeatureType: j.Verdict.FeatureType, PeriodKey: j.Verdict.PeriodKey,
	}, events.GroupValidator)
	p.DedupeKey, p.OccurredAt, p.Counts.Validated = events.KeyValidated(j.Origin), j.Usage.Timestamp, 1
	return p
}

func rejected(e *events.Envelope, j *Judgement, id uuid.UUID) events.Pending {
	deadLetter := j.DeadLetterID
	if deadLetter == uuid.Nil {
		deadLetter = id
	}
	p := projections.FollowUp(e, id, events.UsageRejected, &events.Rejected{
		RawPosition: j.Origin, EventID: j.Usage.EventID, Feature: j.Usage.Feature,
		Code: j.Refusal.Code, Reason: j.Refusal.Message, DeadLetterID: deadLetter, Attempt: j.Attempt,
	}, events.GroupValidator)
	p.DedupeKey, p.OccurredAt, p.Counts.Rejected = events.KeyRejected(j.Origin, j.Attempt), j.Usage.Timestamp, 1
	return p
}

const readHistories = `
SELECT tenant_id, from_position, effective_from, snapshot::text
FROM subscription_history
WHERE tenant_id = ANY ($1::uuid[])
ORDER BY tenant_id, from_position`

// history is a tenant's history; if err is set, only this tenant's events fail.
type history struct {
	domain.History
	err error
}

// tenantsOf lists the tenants of a batch, each once, in the order of their first events.
func tenantsOf(batch []events.Envelope) (tenants []uuid.UUID) {
	listed := make(map[uuid.UUID]bool)
	for i := range batch {
		if t := batch[i].TenantID; !listed[t] {
			listed[t], tenants = true, append(tenants, t)
		}
	}
	return tenants
}

// histories reads the subscription histories of tenants. Rows known at a position were
// committed before the event at that position, so all are visible.
func (v *Validator) histories(ctx context.Context, query projections.Query, tenants []uuid.UUID) (map[uuid.UUID]history, error) {
	histories := make(map[uuid.UUID]history, len(tenants))
	for _, t := range tenants {
		histories[t] = history{}
	}
	rows, err := query(ctx, readHistories, tenants)
	if err != nil {
		return nil, fmt.Errorf("read subscription histories: %w", err)
	}
	var tenant uuid.UUID
	var entry domain.HistoryEntry
	var snapshot *string
	_, err = pgx.ForEachRow(rows, []any{&tenant, &entry.FromPosition, &entry.EffectiveFrom, &snapshot}, func() error {
		h := histories[tenant]
		s, err := v.snapshots.decode(snapshot)
		h.History = append(h.History, domain.HistoryEntry{FromPosition: entry.FromPosition, EffectiveFrom: entry.EffectiveFrom, Subscription: s})
		h.err = errors.Join(h.err, err)
		histories[tenant] = h
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read subscription histories: %w", err)
	}
	return histories, nil
}

// maxSnapshots bounds the memory of the decoded snapshots: some 50 MB of small plans.
const maxSnapshots = 20_000

// snapshots caches decoded snapshots by their text, so that no change of the
// table can make an entry wrong.
type snapshots struct {
	mu    sync.Mutex
	known map[string]*domain.Subscription
}

func (c *snapshots) decode(text *string) (*domain.Subscription, error) {
	if text == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.known[*text]; ok {
		return s, nil
	}
	s := new(domain.Subscription)
	if err := json.Unmarshal([]byte(*text), s); err != nil {
		return nil, fmt.Errorf("read a subscription's snapshot: %w", err)
	}
	if c.known == nil || len(c.known) >= maxSnapshots {
		c.known = make(map[string]*domain.Subscription)
	}
	c.known[*text] = s
	return s, nil
}

// Consumer turns recorded usage into verdicts.
func Consumer(newID func() uuid.UUID) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupValidator, Role: "validator", Topic: events.TopicUsageRaw, Handler: &Validator{NewID: newID}, Parks: true, Hot: true,
		MaxPerPartition: projections.MaxWithFollowUps, MaxRecords: maxVerdicts,
	}
}

// maxVerdicts bounds the verdicts of one transaction over all partitions: appending
// them locks the heads, and ingest waits for the locks.
const maxVerdicts = 1000

// Statements returns the SQL of the validator that runs for each batch, in sessions that keep their
// plans: a plan must not depend on the tables' contents when it is made.
func Statements() map[string]string {
	return map[string]string{"histories": readHistories}
}
