package metering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
)

// quotaLog is a fake log that grants each quota request by the decision, or answers all as a test sets.
type quotaLog struct {
	decision domain.Decision
	outcomes []Outcome // instead of a decision
	err      error
	got      []Submitted
	stored   []events.Envelope // position n is stored[n-1]
	unread   error             // of Read
}

func (l *quotaLog) Admit(uuid.UUID) error { return l.err }

func (l *quotaLog) Submit(_ context.Context, tenant uuid.UUID, batch []Submitted) ([]Outcome, error) {
	l.got = batch
	if l.err != nil || l.outcomes != nil {
		return l.outcomes, l.err
	}
	outcomes := make([]Outcome, len(batch))
	for i := range batch {
		p := &batch[i].Pending
		if err := batch[i].Quota.Grant(p, &l.decision); err != nil {
			return nil, err
		}
		at := events.Position{Partition: 3, Number: int64(len(l.stored) + 1)}
		l.stored = append(l.stored, events.Envelope{Subject: p.Subject, TenantID: tenant, Payload: p.Payload, Position: at})
		outcomes[i] = Outcome{Status: Appended, Position: at}
	}
	return outcomes, nil
}

func (l *quotaLog) Read(_ context.Context, _ int16, after, upTo int64, limit int) ([]events.Envelope, error) {
	if l.unread != nil || upTo > int64(len(l.stored)) {
		return nil, l.unread
	}
	return l.stored[after:min(upTo, after+int64(limit))], nil
}

// grantedCalls is a decision about calls in May, 30 of 50 used afterwards.
func grantedCalls() domain.Decision {
	limit := int64(50)
	return domain.Decision{Verdict: domain.Verdict{SubscriptionID: uuid.UUID{9}, FeatureType: domain.FeatureQuota, PeriodKey: "2026-05"},
		At: clock(), Limit: &limit, Used: big.NewInt(30), Held: big.NewInt(5),
		Account: &events.AccountChange{Feature: "calls", PeriodKey: "2026-05", Used: 3}}
}

func newQuotas(l *quotaLog) *Quotas { return &Quotas{Log: l, Now: clock, NewID: newID} }

var (
	consumer = commands.Caller{
		TenantID:      activeTenant,
		KeyID:         uuid.UUID{5},
		CorrelationID: uuid.UUID{6},
		Residency:     "eu-central-1",
		Replay:        "offline",
	}
	whole   = func(int) string { return "" }
	inItems = func(i int) string { return fmt.Sprint("/items/", i) }
)

func consumptionOf(id string) intake.Consumption {
	return intake.Consumption{EventID: id, Feature: "calls", Amount: 3, Metadata: []byte(`{"a":1}`)}
}

func TestAConsumptionIsRecordedByItsDecision(t *testing.T) {
	l := &quotaLog{decision: grantedCalls()}
	_, _, err := newQuotas(l).Consume(t.Context(), consumer, []intake.Consumption{consumptionOf("a"), consumptionOf("b")}, inItems)
	if err != nil || len(l.got) != 2 || !l.got[0].Whole {
		t.Fatalf("%+v, %v", l.got, err)
	}
	for i, id := range []string{"a", "b"} {
		p := &l.got[i].Pending
		c := consumptionOf(id)
		caused{subject: events.UsageAdmitted, tenant: activeTenant, residency: "eu-central-1", key: events.KeyUsage(id),
			actor: events.Actor{
				Type: "api_key",
				ID:   consumer.KeyID.String(),
			}, correlation: consumer.CorrelationID, counts: events.Counts{Accepted: 1}}.check(t, p)
		if string(p.Sent) != string(c.Sent()) || p.Canonical != intake.CanonicalRequest || p.Replay != "offline" || p.Account == nil ||
			*p.Account != (events.AccountChange{Feature: "calls", PeriodKey: "2026-05", Used: 3}) {
			t.Errorf("%s: %+v, account %+v", id, p, p.Account)
		}
		e := payload[events.Admitted](t, p)
		if e.EventID != id || e.Amount != 3 || string(e.Metadata) != `{"a":1}` || !e.Timestamp.Equal(stored) ||
			e.Admitted.By != events.ByConsume ||
			e.Admitted.SubscriptionID != (uuid.UUID{9}) ||
			*e.Admitted.Limit != 50 ||
			*e.Admitted.Used != "30" ||
			*e.Admitted.Held != "5" {
			t.Errorf("%s: %s", id, p.Payload)
		}
	}
}

// METERED features have no account: their events change no account.
func TestAMeteredConsumptionChangesNoAccount(t *testing.T) {
	l := &quotaLog{
		decision: domain.Decision{
			Verdict: domain.Verdict{SubscriptionID: uuid.UUID{9}, FeatureType: domain.FeatureMetered, PeriodKey: "lifetime"},
			At:      clock(),
		},
	}
	answers, _, err := newQuotas(l).Consume(t.Context(), consumer, []intake.Consumption{consumptionOf("a")}, whole)
	if err != nil || l.got[0].Account != nil {
		t.Fatalf("%+v, %v", l.got[0].Account, err)
	}
	if a := answers[0]; !a.Allowed || a.Limit != nil || a.Used != nil || a.Held != nil || a.Remaining != nil || a.ResetAt != nil ||
		a.PeriodKey != "lifetime" {
		t.Errorf("%+v", a)
	}
}

// The answer follows from the event alone: a repetition gets it from the log, whatever has changed since.
func TestP7_ARepetitionIsAnsweredFromItsEvent(t *testing.T) {
	l := &quotaLog{decision: grantedCalls()}
	quotas, list := newQuotas(l), []intake.Consumption{consumptionOf("a"), consumptionOf("b")}
	first, _, err := quotas.Consume(t.Context(), consumer, list, inItems)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(
		must(
			json.Marshal(
				first[0]))); got != `{"allowed":true,"feature":"calls","eventId":"a","amount":3,"periodKey":"2026-05","limit":50,"used":30,"held":5,`+
		`"remaining":15,"resetAt":"2026-06-01T00:00:00Z","position":"3-1"}` {
		t.Error(got)
	}
	l.decision = domain.Decision{}
	l.outcomes = []Outcome{{Status: Duplicate, Position: first[0].Position}, {Status: Duplicate, Position: first[1].Position}}
	quotas.Now = func() time.Time { return noon.AddDate(1, 0, 0) }
	again, _, err := quotas.Consume(t.Context(), consumer, list, inItems)
	if err != nil || string(must(json.Marshal(again))) != string(must(json.Marshal(first))) {
		t.Errorf("%+v is not the first answer %+v, %v", again, first, err)
	}
	l.stored[0].Payload = []byte(strings.Replace(string(l.stored[0].Payload), `"used":30`, `"used":20`, 1))
	if again, _, err = quotas.Consume(t.Context(), consumer, list, inItems); err != nil || *again[0].Remaining != "25" {
		t.Errorf("the answer is not that of the event: %+v, %v", again, err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestConsumeNamesTheRefusedItem(t *testing.T) {
	first := events.Position{Partition: 3, Number: 7}
	refusal := func(code, pointer string) Outcome {
		return Outcome{Status: Denied, Refusal: &domain.Error{Code: code, Pointer: pointer, Message: "no"}}
	}
	absent := Outcome{Status: Absent}
	for name, c := range map[string]struct {
		outcomes      []Outcome
		at            func(int) string
		code, pointer string
	}{
		"a conflict": {[]Outcome{{Status: Conflict, Position: first}}, whole, "payload_conflict", "/eventId"},
		"a conflict of an item": {[]Outcome{absent, {Status: Conflict, Position: first}, absent}, inItems, "payload_conflict",
			"/items/1"},
		"a conflict behind a repetition": {[]Outcome{{Status: Duplicate, Position: first}, {Status: Conflict, Position: first}}, inItems,
			"payload_conflict", "/items/1"},
		"a denial": {[]Outcome{refusal("quota_exceeded", "/amount")}, whole, "quota_exceeded", "/amount"},
		"a denial of an item": {[]Outcome{absent, absent, refusal("quota_exceeded", "/amount")}, inItems, "quota_exceeded",
			"/items/2"},
		"a feature in the path": {[]Outcome{refusal("not_entitled", "/feature")}, whole, "not_entitled", ""},
		"a feature of an item": {[]Outcome{absent, refusal("feature_not_found", "/feature")}, inItems, "feature_not_found",
			"/items/1"},
		"a feature of the only item": {[]Outcome{refusal("feature_not_found", "/feature")}, inItems, "feature_not_found", "/items/0"},
	} {
		l := &quotaLog{outcomes: c.outcomes}
		list := make([]intake.Consumption, len(c.outcomes))
		for i := range list {
			list[i] = consumptionOf(fmt.Sprint(i))
		}
		answers, _, err := newQuotas(l).Consume(t.Context(), consumer, list, c.at)
		refusedWith(t, err, c.code, c.pointer)
		if answers != nil {
			t.Errorf("%s: answered %+v", name, answers)
		}
		for _, p := range c.outcomes {
			if p.Refusal != nil && strings.HasPrefix(p.Refusal.Pointer, "/items") {
				t.Errorf("%s: the log's refusal was changed", name)
			}
		}
	}
}

// An unknown outcome is never a grant: the client sends the request again.
func TestP1_ConsumeAnswersNoUnknownOutcome(t *testing.T) {
	at := events.Position{Partition: 3, Number: 1}
	own := events.Envelope{Subject: events.UsageAdmitted, TenantID: activeTenant, Payload: []byte(`{"amount":3}`), Position: at}
	anothers, recorded, unreadable, noSum := own, own, own, own
	anothers.TenantID, recorded.Subject = uuid.UUID{8}, events.UsageRecorded
	unreadable.Payload, noSum.Payload = []byte(`{"amount":"x"}`), []byte(`{"admitted":{"limit":5,"used":1.5,"held":0}}`)
	duplicate := []Outcome{{Status: Duplicate, Position: at}}
	for name, c := range map[string]struct {
		log         quotaLog
		unavailable bool
	}{
		"no COMMIT":            {quotaLog{err: fmt.Errorf("%w: no answer", commands.ErrUnavailable)}, true},
		"no verdict":           {quotaLog{outcomes: []Outcome{{}}}, true},
		"left out":             {quotaLog{outcomes: []Outcome{{Status: Absent}}}, true},
		"unread":               {quotaLog{outcomes: duplicate, unread: errors.New("reset"), stored: []events.Envelope{own}}, true},
		"not found":            {quotaLog{outcomes: duplicate}, false},
		"another tenant's":     {quotaLog{outcomes: duplicate, stored: []events.Envelope{anothers}}, false},
		"of another subject":   {quotaLog{outcomes: duplicate, stored: []events.Envelope{recorded}}, false},
		"not decodable":        {quotaLog{outcomes: duplicate, stored: []events.Envelope{unreadable}}, false},
		"an account is no sum": {quotaLog{outcomes: duplicate, stored: []events.Envelope{noSum}}, false},
		"the second is unknown": {quotaLog{outcomes: []Outcome{{Status: Duplicate, Position: at}, {}}, stored: []events.Envelope{own}},
			true},
	} {
		list := make([]intake.Consumption, max(1, len(c.log.outcomes)))
		for i := range list {
			list[i] = consumptionOf(fmt.Sprint(i))
		}
		answers, _, err := newQuotas(&c.log).Consume(t.Context(), consumer, list, inItems)
		var refusal *domain.Error
		if answers != nil || err == nil || errors.As(err, &refusal) || errors.Is(err, commands.ErrUnavailable) != c.unavailable {
			t.Errorf("%s: %+v, %v", name, answers, err)
		}
	}
	if err := newQuotas(&quotaLog{err: commands.ErrUnavailable}).Admit(consumer); !errors.Is(err, commands.ErrUnavailable) {
		t.Errorf("admitted: %v", err)
	}
}
