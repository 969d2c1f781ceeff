package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
)

var (
	lateTenant       = uuid.UUID{7}
	lateSubscription = uuid.UUID{1}
	lateTime         = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
)

// closedMay is the history of a tenant whose May is closed at 100 and frozen at 200. Late usage is adjusted from 120 to 150.
func closedMay() domain.TenantHistory {
	limit := domain.Grant{Entitlement: domain.Entitlement{Feature: "calls", ResetPeriod: domain.ResetMonthly}, Type: domain.FeatureQuota}
	return domain.TenantHistory{
		History: domain.History{{FromPosition: 1, Subscription: &domain.Subscription{ID: lateSubscription,
			Status: domain.SubscriptionActive, Entitlements: []domain.Grant{limit}}}},
		PeriodHistory: domain.PeriodHistory{
			Changes: []domain.PeriodChange{{Position: 100, PeriodKey: "2026-05", Snapshot: 1, Change: domain.PeriodCloseRequested},
				{Position: 200, PeriodKey: "2026-05", Snapshot: 1, Change: domain.PeriodClosed}},
			Policies: []domain.LatePolicy{{FromPosition: 120, LateUsage: events.LateUsageAdjust},
				{FromPosition: 150, LateUsage: events.LateUsageReject}},
		},
	}
}

// recorded returns an event of the log at a position, of usage of 5 calls in May.
func recorded(t *testing.T, position int64, subject events.Subject) events.Envelope {
	t.Helper()
	e := events.Envelope{EventID: uuid.UUID{byte(position)}, Subject: subject, TenantID: lateTenant,
		Position: events.Position{Partition: events.PartitionOf(lateTenant), Number: position}, OccurredAt: lateTime}
	var err error
	switch subject {
	case events.UsageRecorded:
		e.Payload = fmt.Appendf(nil, `{"amount":5,"eventId":"e%d","feature":"calls","timestamp":"2026-05-04T12:00:00Z","type":"usage"}`,
			position)
	case events.UsageCorrected:
		e.Payload = fmt.Appendf(nil,
			`{"amount":3,"correctionRef":"t","eventId":"e%d","feature":"calls","timestamp":"2026-06-04T12:00:00Z","type":"correction"}`,
			position)
	case events.UsageRetracted:
		e.Payload = fmt.Appendf(nil,
			`{"correctionRef":"t","eventId":"e%d","feature":"calls","timestamp":"2026-06-04T12:00:00Z","type":"retraction"}`, position)
	case events.UsageAdmitted:
		e.Payload, err = codec.AdmittedJSON(&events.Admitted{
			Usage: events.Usage{EventID: "e", Feature: "calls", Amount: 5, Timestamp: lateTime, Type: events.TypeUsage},
			Admitted: events.Admission{By: events.ByCommit, SubscriptionID: lateSubscription, FeatureType: domain.FeatureQuota,
				PeriodKey: "2026-05"}})
	}
	must.OK(t, err)
	return e
}

// retried returns the retry of an event.
func retried(t *testing.T, position int64, rejected bool, of events.Envelope) events.Envelope {
	t.Helper()
	e := of
	var err error
	e.Subject, e.Position.Number, e.EventID = events.UsageRetried, position, uuid.UUID{byte(position)}
	e.Payload, err = json.Marshal(events.Retried{RawPosition: of.Position.Number, DeadLetterID: uuid.UUID{99}, Attempt: 1,
		Rejected: rejected, Usage: of.Payload})
	must.OK(t, err)
	return e
}

// target is counted usage of 10 calls in May.
func target() *domain.Target {
	return &domain.Target{Position: 9, EventID: "t", Feature: "calls", IsUsage: true, Counted: true, Timestamp: lateTime, Amount: 10,
		Verdict: domain.Verdict{SubscriptionID: lateSubscription, FeatureType: domain.FeatureQuota, PeriodKey: "2026-05"}}
}

// The verdict is made long after the freeze: it is late by the position of its cause, and refused by the policy as known there.
func TestP8_AVerdictIsLateByItsCause(t *testing.T) {
	commit := recorded(t, 130, events.UsageAdmitted)
	enforced := commit
	enforced.Payload = json.RawMessage(
		`{"admitted":{"by":"enforce","featureType":"QUOTA","held":null,"limit":null,"periodKey":"2026-05","subscriptionId":"` +
			lateSubscription.String() +
			`","used":null},"amount":5,"eventId":"e","feature":"calls","timestamp":"2026-05-04T12:00:00Z","type":"usage"}`)
	refusedEnforced := enforced
	refusedEnforced.Position.Number = 160
	usage := func(position int64) events.Envelope { return recorded(t, position, events.UsageRecorded) }
	for name, c := range map[string]struct {
		e      events.Envelope
		kind   string // "": the verdict is not late
		code   string // of the rejection
		amount int64
		count  int64
	}{
		"before the cut":                    {usage(99), "", "", 5, 1},
		"behind it, before ADJUST":          {usage(101), "", "period_closed", 0, 0},
		"behind it, under ADJUST":           {usage(130), events.AdjustmentLateUsage, "", 5, 1},
		"under REJECT again":                {usage(151), "", "period_closed", 0, 0},
		"a commit":                          {commit, events.AdjustmentLateCommit, "", 5, 1},
		"admitted under ADJUST":             {enforced, events.AdjustmentLateUsage, "", 5, 1},
		"admitted by an older policy":       {refusedEnforced, "", "period_closed", 0, 0},
		"a correction before the cut":       {recorded(t, 99, events.UsageCorrected), "", "", -7, 0},
		"a correction":                      {recorded(t, 160, events.UsageCorrected), events.AdjustmentCorrection, "", -7, 0},
		"a retraction":                      {recorded(t, 160, events.UsageRetracted), events.AdjustmentRetraction, "", -10, -1},
		"rejected, retried before the cut":  {retried(t, 99, true, usage(90)), "", "", 5, 1},
		"rejected, retried behind it":       {retried(t, 160, true, usage(90)), events.AdjustmentRetry, "", 5, 1},
		"rejected late, retried":            {retried(t, 160, true, usage(110)), events.AdjustmentRetry, "", 5, 1},
		"parked, retried before the freeze": {retried(t, 160, false, usage(90)), "", "", 5, 1},
		"parked, retried after the freeze":  {retried(t, 201, false, usage(90)), events.AdjustmentRetry, "", 5, 1},
		"parked behind the cut, retried":    {retried(t, 160, false, usage(151)), events.AdjustmentRetry, "", 5, 1},
		"a correction, retried": {retried(t, 160, true, recorded(t, 90, events.UsageCorrected)), events.AdjustmentCorrection, "",
			-7, 0},
		"a parked correction, retried": {retried(t, 160, false, recorded(t, 90, events.UsageCorrected)), "", "", -7, 0},
		"a parked retraction after the freeze": {retried(t, 201, false, recorded(t, 90, events.UsageRetracted)),
			events.AdjustmentRetraction, "",
			-10, -1},
	} {
		origin := c.e.Position.Number
		if c.e.Subject == events.UsageRetried {
			var r events.Retried
			must.OK(t, json.Unmarshal(c.e.Payload, &r))
			origin = r.RawPosition
		}
		ids := 0
		v := &Validator{NewID: func() uuid.UUID { ids++; return uuid.UUID{200, byte(ids)} }}
		known := &targets{known: map[targetKey]*domain.Target{{lateTenant, "t"}: target()}, parked: map[events.Position]bool{},
			done: map[events.Position]bool{}}
		result := v.decide([]events.Envelope{c.e}, map[uuid.UUID]history{lateTenant: {TenantHistory: closedMay()}}, known)
		if len(result.Failed) > 0 || len(result.FollowUps) == 0 {
			t.Fatalf("%s: %+v", name, result)
		}
		p := result.FollowUps[0]
		if c.code != "" {
			var rejected events.Rejected
			if err := json.Unmarshal(p.Payload, &rejected); err != nil || p.Subject != events.UsageRejected || rejected.Code != c.code ||
				p.Adjustment != nil {
				t.Errorf("%s: %d %s, adjustment %+v", name, p.Subject, p.Payload, p.Adjustment)
			}
			continue
		}
		checkVerdict(t, name, &p, origin, c.kind, c.amount, c.count)
	}
}

// checkVerdict checks a verdict in May, and its adjustment of the first snapshot, if the verdict is late.
func checkVerdict(t *testing.T, name string, p *events.Pending, origin int64, kind string, amount, count int64) {
	t.Helper()
	verdict, err := codec.VerdictOf(&events.Envelope{Subject: p.Subject, DedupeKey: p.DedupeKey, OccurredAt: p.OccurredAt, Payload: p.Payload})
	if err != nil || p.Subject != events.UsageValidated || verdict.Amount != amount ||
		verdict.Count != count || verdict.PeriodKey != "2026-05" {
		t.Errorf("%s: %d %s", name, p.Subject, p.Payload)
	}
	a := p.Adjustment
	if (verdict.Late != nil) != (kind != "") || (a != nil) != (kind != "") {
		t.Errorf("%s: late %+v, adjustment %+v", name, verdict.Late, a)
		return
	}
	if a == nil {
		return
	}
	if *verdict.Late != (events.Late{Snapshot: 1, Kind: kind}) {
		t.Errorf("%s: late %+v", name, verdict.Late)
	}
	if a.Kind != kind || a.Snapshot != 1 || a.PeriodKey != "2026-05" || a.Feature != "calls" || a.SubscriptionID != lateSubscription ||
		a.Amount.Int64() != amount ||
		a.EventCount != count || a.Recorded != origin || a.SourceEventID != verdict.EventID || a.RebuildID != nil {
		t.Errorf("%s: the adjustment is %+v", name, a)
	}
}

// A verdict of an open period has neither mark nor adjustment, also if another period of the tenant is closed.
func TestP8_AVerdictOfAnOpenPeriodIsNotLate(t *testing.T) {
	e := recorded(t, 300, events.UsageRecorded)
	e.Payload = json.RawMessage(`{"amount":5,"eventId":"e","feature":"calls","timestamp":"2026-06-01T00:00:00Z","type":"usage"}`)
	d, err := decide(&e, closedMay(), nil)
	if err != nil || d.Refusal != nil || d.Late != nil || d.Verdict.PeriodKey != "2026-06" {
		t.Errorf("%+v %v", d, err)
	}
}

// A refusal by the catalogue comes before that of a closed period.
func TestP8_AnUnknownFeatureIsNoLateUsage(t *testing.T) {
	e := recorded(t, 101, events.UsageRecorded)
	h := closedMay()
	h.History = nil
	if d, err := decide(&e, h, nil); err != nil || d.Refusal == nil || d.Refusal.Code != "no_active_subscription" {
		t.Errorf("%+v %v", d, err)
	}
}

// A history that was read under an earlier head is true under a later one if the changes between are of other tenants, and all of them are
// known. Otherwise it is read again: a verdict must not miss the close of a period.
func TestP8_AHistoryIsTrueUnderALaterHeadIfOtherTenantsChanged(t *testing.T) {
	tenant, other := uuid.MustParse("0198c3a0-0000-7000-8000-000000000001"), uuid.MustParse("0198c3a0-0000-7000-8000-000000000002")
	for events.PartitionOf(other) != events.PartitionOf(tenant) {
		other[15]++
	}
	p := events.PartitionOf(tenant)
	at := func(epoch int32, catalogue, billing int64) []events.InlineStretch {
		return []events.InlineStretch{{Stretch: events.Stretch{Partition: p}, Epoch: epoch, Catalogue: catalogue, Billing: billing}}
	}
	marks := func(steps ...projections.CatalogueStep) *projections.CatalogueMarks {
		m := (*projections.CatalogueMarks)(nil).With([]projections.CatalogueStep{{Partition: p, Epoch: 1, Mark: 10}})
		for _, s := range steps {
			s.Partition = p
			m = m.With([]projections.CatalogueStep{s})
		}
		return m
	}
	errRead := errors.New("read")
	for _, c := range []struct {
		what  string
		marks *projections.CatalogueMarks
		head  []events.InlineStretch
		want  error
	}{
		{"the same head", nil, at(1, 10, 8), nil},
		{"a later head, without marks", nil, at(1, 10, 20), errRead},
		{"a close of another tenant", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}), at(1, 10, 20),
			nil},
		{"a change of the catalogue of another tenant", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}),
			at(1, 20, 8), nil},
		{"its own close", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other, tenant}}), at(1, 10, 20),
			errRead},
		{"a close that the marks do not know", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}),
			at(1, 10, 21), errRead},
		{"changes that are not known", marks(projections.CatalogueStep{Epoch: 1, Mark: 20}), at(1, 10, 20), errRead},
		{"another epoch of the head", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}), at(2, 10, 20),
			errRead},
		{"another epoch of the marks", marks(projections.CatalogueStep{Epoch: 2, Mark: 20, Changed: []uuid.UUID{other}}), at(1, 10, 20),
			errRead},
	} {
		h := &HistoryReader{Marks: func() *projections.CatalogueMarks { return c.marks }}
		h.cached.store(map[uuid.UUID]history{tenant: {TenantHistory: domain.TenantHistory{}}}, at(1, 10, 8))
		query := func(context.Context, string, ...any) (pgx.Rows, error) { return nil, errRead }
		if _, err := h.Of(t.Context(), query, []uuid.UUID{tenant}, c.head); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}
