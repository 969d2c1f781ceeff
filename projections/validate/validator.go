// Package validate accepts or rejects each recorded usage event, by the tenant's
// subscription history up to the event's position.
package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"

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
	// Histories may be shared with the log, which decides requests in the same process.
	Histories *HistoryReader
}

var _ projections.Pure = (*Validator)(nil)

var errNotForValidator = errors.New("the validator takes recorded, admitted and retried usage, corrections and retractions only")

// decision is the verdict on an event, with the event's data.
type decision struct {
	Usage        events.Usage // of a correction, the members that usage has, too
	Origin       int64        // number of the recorded event
	DeadLetterID uuid.UUID    // Nil unless retried
	Attempt      int          // 0 unless retried
	Verdict      domain.Verdict
	Admitted     bool          // the verdict is that of the event's admission
	Refusal      *domain.Error // nil: yes
	// Ref is the eventId of the target of a correction or a retraction, "" for usage; Change is what it does to the target, as the
	// Number-th change.
	Ref    string
	Change *events.CorrectedUsage
	Number int
	Late   *events.Late // nil: the event is not after the cut of its period

	retry *domain.RetriedUsage // nil: the event is not retried
}

// decide decides recorded or retried usage by its tenant's history up to
// the event's own position: a retry gets a new verdict. That of admitted usage is its admission. A correction or a retraction is decided
// by its target, as it stands in the turn of the event; the target may be nil.
func decide(e *events.Envelope, h domain.TenantHistory, target func(ref string) *domain.Target) (decision, error) {
	d, body, err := newDecision(e)
	if err != nil {
		return d, err
	}
	var kind string
	if isCorrection(e.Subject, body) {
		err = d.correct(body, target)
		if kind = events.AdjustmentCorrection; d.Usage.Type == events.TypeRetraction {
			kind = events.AdjustmentRetraction
		}
	} else {
		kind, err = d.decideUsage(e, h.History, body)
	}
	if err == nil && d.Refusal == nil {
		d.Late, d.Refusal = h.DecideLate(d.Verdict.PeriodKey, kind, d.Origin, d.retry)
	}
	return d, err
}

// decideUsage decides usage, and returns the kind of the adjustment that it is if it is late.
func (d *decision) decideUsage(e *events.Envelope, h domain.History, body json.RawMessage) (kind string, err error) {
	var admission events.Admission
	if e.Subject == events.UsageRecorded {
		d.Usage, err = codec.UsageOf(body)
	} else {
		var admitted events.Admitted
		admitted, err = codec.AdmittedOf(body)
		d.Usage, admission = admitted.Usage, admitted.Admitted
	}
	if err != nil {
		return "", err
	}
	d.Usage.Timestamp = d.Usage.Timestamp.UTC()
	if admission.By == "" {
		d.Verdict, d.Refusal = domain.Decide(h, e.Position.Number, d.Usage.Feature, d.Usage.Timestamp)
		return events.AdjustmentLateUsage, nil
	}
	d.Admitted = true
	d.Verdict = domain.Verdict{SubscriptionID: admission.SubscriptionID, FeatureType: admission.FeatureType, PeriodKey: admission.PeriodKey,
		Grant: h.PricedGrantOf(e.Position.Number, d.Usage.Timestamp, admission.SubscriptionID, d.Usage.Feature)}
	if admission.By == events.ByCommit {
		return events.AdjustmentLateCommit, nil
	}
	return events.AdjustmentLateUsage, nil
}

// newDecision returns a decision without a verdict, and the recorded payload.
func newDecision(e *events.Envelope) (d decision, body json.RawMessage, err error) {
	d.Origin = e.Position.Number
	switch e.Subject {
	case events.UsageRecorded, events.UsageAdmitted, events.UsageCorrected, events.UsageRetracted:
		return d, e.Payload, nil
	case events.UsageRetried:
		var retried events.Retried
		if err := json.Unmarshal(e.Payload, &retried); err != nil {
			return d, nil, fmt.Errorf("read a retry: %w", err)
		}
		d.Origin, d.DeadLetterID, d.Attempt = retried.RawPosition, retried.DeadLetterID, retried.Attempt
		d.retry = &domain.RetriedUsage{Position: e.Position.Number, Rejected: retried.Rejected}
		return d, retried.Usage, nil
	}
	return d, nil, errNotForValidator
}

// Apply decides each event and appends its verdict.
func (v *Validator) Apply(ctx context.Context, tx pgx.Tx, _ projections.Generation, batch []events.Envelope) (projections.Result, error) {
	histories, err := v.Histories.read(ctx, tx.Query, tenantsOf(batch))
	if err != nil {
		return projections.Result{}, err
	}
	targets, err := readTargets(ctx, tx.Query, batch)
	if err != nil {
		return projections.Result{}, err
	}
	return v.decide(batch, histories, targets), nil
}

// decide returns the verdicts on a batch.
func (v *Validator) decide(batch []events.Envelope, histories map[uuid.UUID]history, targets *targets) projections.Result {
	result := projections.Result{FollowUps: make([]events.Pending, 0, len(batch))}
	for i := range batch {
		e := &batch[i]
		var d decision
		failure := projections.Try(*e, func() (err error) {
			h := histories[e.TenantID]
			if h.err != nil {
				return h.err
			}
			d, err = decide(e, h.TenantHistory, func(ref string) *domain.Target { return targets.of(e, ref) })
			return err
		})
		if failure != nil {
			result.Failed = append(result.Failed, *failure)
			continue
		}
		targets.decided(e, &d)
		result.FollowUps = v.appendVerdict(result.FollowUps, e, &d)
	}
	return result
}

func (v *Validator) appendVerdict(pending []events.Pending, e *events.Envelope, d *decision) []events.Pending {
	id := v.NewID()
	if d.Refusal != nil {
		return append(pending, rejected(e, d, id))
	}
	pending = append(pending, validated(e, d, id))
	if d.DeadLetterID == uuid.Nil {
		return pending
	}
	end := events.Closed{DeadLetterID: d.DeadLetterID, Status: events.StatusResolved}
	return append(pending, projections.Closing(e, v.NewID(), end, events.GroupValidator))
}

// validated returns an event keyed by the recorded position: a retry of usage
// validated meanwhile is a duplicate and is not counted.
func validated(e *events.Envelope, d *decision, id uuid.UUID) events.Pending {
	verdict := events.Validated{
		RawPosition: d.Origin, EventID: d.Usage.EventID, Feature: d.Usage.Feature,
		Amount: d.Usage.Amount, Count: 1, Timestamp: d.Usage.Timestamp,
		ValidatedSubscriptionID: d.Verdict.SubscriptionID, FeatureType: d.Verdict.FeatureType, PeriodKey: d.Verdict.PeriodKey,
		Grant:    d.Verdict.Grant,
		Admitted: d.Admitted, CorrectedUsage: d.Change, Late: d.Late,
	}
	if c := d.Change; c != nil {
		verdict.Amount, verdict.Count = c.After-c.Before, 0
		if c.Kind == events.TypeRetraction {
			verdict.Count = -1
		}
	}
	p := projections.FollowUp(e, id, events.UsageValidated, &verdict, events.GroupValidator)
	p.DedupeKey, p.OccurredAt, p.Counts.Validated = events.KeyValidated(d.Origin), d.Usage.Timestamp, 1
	if !d.Admitted && d.Verdict.FeatureType == domain.FeatureQuota {
		p.Account = &events.AccountChange{Feature: d.Usage.Feature, PeriodKey: d.Verdict.PeriodKey, Used: verdict.Amount}
	}
	if d.Change != nil {
		p.Correction = &events.AppliedCorrection{CorrectedUsage: d.Change, Number: d.Number, Cause: d.Origin}
	}
	if d.Late != nil {
		p.Adjustment = &events.Adjustment{PeriodKey: verdict.PeriodKey, Feature: verdict.Feature, Snapshot: d.Late.Snapshot,
			SubscriptionID: verdict.ValidatedSubscriptionID,
			Kind:           d.Late.Kind, Amount: big.NewInt(verdict.Amount), EventCount: verdict.Count, Recorded: verdict.RawPosition,
			SourceEventID: verdict.EventID}
	}
	return p
}

func rejected(e *events.Envelope, d *decision, id uuid.UUID) events.Pending {
	deadLetter := d.DeadLetterID
	if deadLetter == uuid.Nil {
		deadLetter = id
	}
	p := projections.FollowUp(e, id, events.UsageRejected, &events.Rejected{
		RawPosition: d.Origin, EventID: d.Usage.EventID, Feature: d.Usage.Feature,
		Code: d.Refusal.Code, Reason: d.Refusal.Message, DeadLetterID: deadLetter, Attempt: d.Attempt,
	}, events.GroupValidator)
	p.DedupeKey, p.OccurredAt, p.Counts.Rejected = events.KeyRejected(d.Origin, d.Attempt), d.Usage.Timestamp, 1
	return p
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

// Consumer turns recorded usage into verdicts.
func Consumer(newID func() uuid.UUID, histories *HistoryReader) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupValidator, Role: "validator", Topic: events.TopicUsageRaw,
		Handler: &Validator{NewID: newID, Histories: histories}, Parks: true, Hot: true,
		MaxPerPartition: projections.MaxWithFollowUps, MaxRecords: maxVerdicts,
	}
}

// maxVerdicts bounds the verdicts of one transaction over all partitions: appending
// them locks the heads, and ingest waits for the locks.
const maxVerdicts = 1000

// Statements returns the SQL of the validator that runs for each batch, in sessions that keep their
// plans: a plan must not depend on the tables' contents when it is made.
func Statements() map[string]string {
	return map[string]string{"histories": readHistories, "targets": readTargetsSQL}
}
