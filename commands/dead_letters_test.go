package commands

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// letterTx fakes the port of dead letters. Their states follow from the appended events.
type letterTx struct {
	*memory
	letters  map[uuid.UUID]domain.DeadLetter
	sources  map[int64]events.Envelope
	periods  map[uuid.UUID]domain.PeriodHistory
	approved []domain.Closing // by the event at position 7
	sagas    []string
	executed int64
	fail     int // the change that fails, counted from 1; 0: no change fails
}

func (tx *letterTx) DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*domain.DeadLetter, error) {
	found := map[uuid.UUID]*domain.DeadLetter{}
	for _, id := range ids {
		l, ok := tx.letters[id]
		if !ok {
			continue
		}
		var later []domain.LaterEvent
		for i, p := range tx.appended {
			e := domain.LaterEvent{Key: p.DedupeKey, Position: int64(i + 1), Cause: p.CausationID}
			if p.Subject == events.DeadLetterClosed {
				e.Closed = events.StatusDiscarded
			}
			later = append(later, e)
		}
		// l has the state of the events before those of the test.
		before := l
		if l.Evolve(later, tx.executed); l.Status == events.StatusFailed && l.Attempts == 0 {
			l.Status, l.Attempts, l.Parked, l.Rejected = before.Status, before.Attempts, before.Parked, before.Rejected
		}
		found[id] = &l
	}
	return found, nil
}

func (tx *letterTx) Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	return tx.periods, nil
}

func (tx *letterTx) Events(numbers []int64) (map[int64]events.Envelope, error) {
	found := map[int64]events.Envelope{}
	for _, n := range numbers {
		if e, ok := tx.sources[n]; ok {
			found[n] = e
		}
	}
	return found, nil
}

func (tx *letterTx) ChangeDeadLetters(_ context.Context, tenant uuid.UUID, decide func(DeadLetterTx) error) error {
	if tx.fail--; tx.fail == 0 {
		return &Overloaded{Database: true}
	}
	return tx.run(tenant, func() error { return decide(tx) })
}

func (tx *letterTx) Approved(_ uuid.UUID, recorded int64) ([]domain.Closing, error) {
	if recorded != 7 {
		return nil, nil
	}
	return tx.approved, nil
}

func (tx *letterTx) StartSaga(s domain.SagaStart) (*domain.Saga, bool, error) {
	tx.sagas = append(tx.sagas, s.Kind+" "+s.Key)
	return &domain.Saga{ID: s.ID}, true, nil
}

// letter is a dead letter of Alice whose usage was recorded at position 7.
func letter(n byte, spoil ...func(*domain.DeadLetter)) domain.DeadLetter {
	l := domain.DeadLetter{ID: uuid.UUID{n}, TenantID: activeTenant, Stage: events.StageValidation, Source: 7, SourceSubject: events.UsageRecorded, RawPosition: 7, Status: events.StatusFailed}
	for _, f := range spoil {
		f(&l)
	}
	return l
}

func newLetters(list ...domain.DeadLetter) (*DeadLetters, *letterTx) {
	tx := &letterTx{memory: newMemory(), letters: map[uuid.UUID]domain.DeadLetter{}, sources: map[int64]events.Envelope{
		7: {Subject: events.UsageRecorded, Payload: json.RawMessage(`{"eventId":"e"}`)},
	}}
	for _, l := range list {
		tx.letters[l.ID] = l
	}
	return &DeadLetters{Store: tx, Now: clock, NewID: tx.newID}, tx
}

func TestRequestsForOtherDeadLettersAreRefused(t *testing.T) {
	retrying := letter(1, func(l *domain.DeadLetter) { l.Status = events.StatusRetrying })
	for name, c := range map[string]struct {
		id, tenant     uuid.UUID
		retry, discard string
	}{
		"unknown":           {uuid.UUID{9}, activeTenant, "dead_letter_not_found", "dead_letter_not_found"},
		"of another tenant": {uuid.UUID{1}, suspendedTenant, "dead_letter_not_found", "dead_letter_not_found"},
		"in another state":  {uuid.UUID{1}, activeTenant, "dead_letter_not_retryable", "dead_letter_not_discardable"},
	} {
		t.Run(name, func(t *testing.T) {
			d, tx := newLetters(retrying)
			_, err := d.RequestRetry(t.Context(), Request{By: operator}, c.id, c.tenant, "")
			refusedWith(t, err, c.retry, "")
			_, err = d.Discard(t.Context(), Request{By: operator}, c.id, c.tenant, "why")
			refusedWith(t, err, c.discard, "")
			tx.succeeded(t, nil, 0)
		})
	}
}

func TestARetryIsRequestedOnceForEachKey(t *testing.T) {
	d, tx := newLetters(letter(1, func(l *domain.DeadLetter) { l.Attempts = 4 }))
	answer, event := tx.once(t, caused{subject: events.RetryRequested, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
		return d.RequestRetry(t.Context(), req, uuid.UUID{1}, activeTenant, "repaired")
	})
	if got := payload[events.Retry](t, &event); got != (events.Retry{DeadLetterID: uuid.UUID{1}, Attempt: 5, Reason: "repaired"}) {
		t.Errorf("recorded %+v", got)
	}
	if want := (events.Position{Partition: events.PartitionOf(activeTenant), Number: 1}); answer != want || tx.held[0] != activeTenant {
		t.Errorf("answered %v under the head of %s", answer, tx.held[0])
	}
}

func TestADiscardNeedsAReason(t *testing.T) {
	for name, reason := range map[string]string{"none": " ", "long": names(501), "control": "a\x00", "no UTF-8": "\xff"} {
		d, tx := newLetters(letter(1))
		_, err := d.Discard(t.Context(), Request{By: operator}, uuid.UUID{1}, activeTenant, reason)
		refusedWith(t, err, "reason_invalid", "/reason")
		if tx.succeeded(t, nil, 0); len(tx.held) > 0 {
			t.Errorf("%s: a transaction was begun", name)
		}
	}
}

// A discarded event that counted as parked counts as rejected.
func TestADeadLetterIsDiscardedOnce(t *testing.T) {
	for parked, counts := range map[bool]events.Counts{true: {Parked: -1, Rejected: 1}, false: {}} {
		id := uuid.UUID{1}
		d, tx := newLetters(letter(1, func(l *domain.DeadLetter) { l.Parked = parked }))
		answer, event := tx.once(t, caused{subject: events.DeadLetterClosed, tenant: activeTenant, residency: "eu-central-1", key: events.KeyClosed(id), counts: counts},
			func(req Request) (any, error) { return d.Discard(t.Context(), req, id, activeTenant, names(500)) })
		if got := payload[events.Closed](t, &event); got != (events.Closed{DeadLetterID: id, Status: events.StatusDiscarded, Reason: names(500)}) {
			t.Errorf("recorded %+v", got)
		}
		if want := (Discarded{id, events.StatusDiscarded, events.Position{Partition: events.PartitionOf(activeTenant), Number: 1}}); answer != want {
			t.Errorf("answered %+v", answer)
		}
		_, err := d.Discard(t.Context(), Request{By: operator}, id, activeTenant, "again")
		refusedWith(t, err, "dead_letter_not_discardable", "")
	}
}

// requestedRetry is a recorded request for a retry.
func requestedRetry(n byte, ask string) events.Envelope {
	return events.Envelope{EventID: uuid.UUID{100 + n}, TenantID: activeTenant, CorrelationID: uuid.UUID{200 + n}, Residency: "eu-central-1", Payload: json.RawMessage(ask)}
}

func retryOf(n byte) string { return `{"deadLetterId":"` + (uuid.UUID{n}).String() + `"}` }

// router is the actor that events of the router must have.
func router(request events.Envelope, subject events.Subject, key string, counts events.Counts) caused {
	return caused{subject: subject, tenant: activeTenant, residency: "eu-central-1", key: key, cause: request.EventID, counts: counts,
		actor: events.Actor{Type: "service", ID: events.GroupCommands}, correlation: request.CorrelationID}
}

// The retry of a verdict after the freeze of its period is an adjustment. The retry of a recorded event becomes one by its verdict.
func TestARetryRepeatsTheFailedEvent(t *testing.T) {
	verdict := events.Validated{RawPosition: 7, EventID: "e", Feature: "calls", Amount: 3, Count: 1, PeriodKey: "2026-05",
		ValidatedSubscriptionID: uuid.UUID{6}}
	whole, err := json.Marshal(verdict)
	if err != nil {
		t.Fatal(err)
	}
	rejected, parked := func(l *domain.DeadLetter) { l.Rejected = true }, func(l *domain.DeadLetter) { l.Parked = true }
	_, frozen := newPeriods(requested, closed)
	folded := func(l *domain.DeadLetter) {
		l.Stage, l.Source, l.SourceSubject, l.Attempts, l.Parked = events.StageAggregation, 8, events.UsageValidated, 2, true
	}
	for name, c := range map[string]struct {
		letter  domain.DeadLetter
		subject events.Subject
		attempt int
		counts  events.Counts
	}{
		"rejected":                  {letter(1, rejected), events.UsageRetried, 1, events.Counts{Accepted: 1}},
		"parked":                    {letter(1, parked), events.UsageRetried, 1, events.Counts{Parked: -1}},
		"rejected, then parked":     {letter(1, rejected, parked), events.UsageRetried, 1, events.Counts{Parked: -1}},
		"a verdict, the third time": {letter(1, folded), events.Reaggregated, 3, events.Counts{Parked: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			d, tx := newLetters(c.letter)
			tx.periods = frozen.changes
			tx.sources[8] = events.Envelope{Subject: events.UsageValidated, DedupeKey: events.KeyValidated(7), Payload: whole}
			request := requestedRetry(1, retryOf(1))
			faults, err := d.ExecuteRetries(tx, []events.Envelope{request})
			done := tx.succeeded(t, err, 2)
			if faults[0] != nil {
				t.Fatal(faults)
			}
			router(request, c.subject, events.KeyRetry(c.letter.ID, c.attempt), c.counts).check(t, &tx.appended[0])
			router(request, events.DeadLetterRetried, events.KeyEvent(done.EventID), events.Counts{}).check(t, &done)
			if got := payload[events.RetryDone](t, &done); got.DeadLetterID != c.letter.ID || got.Attempt != c.attempt ||
				got.RetryEventID != tx.appended[0].EventID || got.Position != tx.at(0) {
				t.Errorf("recorded %+v", got)
			}
			if c.subject == events.Reaggregated {
				if got := payload[events.Reaggregate](t, &tx.appended[0]); got.Validated.Amount != 3 || got.Attempt != 3 || got.DeadLetterID != c.letter.ID {
					t.Errorf("repeated %+v", got)
				}
				if a := tx.appended[0].Adjustment; a == nil || a.Snapshot != 1 || a.Kind != events.LateRetry || a.PeriodKey != "2026-05" ||
					a.Feature != "calls" || a.SubscriptionID != (uuid.UUID{6}) || a.Amount.Int64() != 3 || a.EventCount != 1 || a.Recorded != 7 || a.SourceEventID != "e" {
					t.Errorf("the adjustment is %+v", a)
				}
			} else if got := payload[events.Retried](t, &tx.appended[0]); got.RawPosition != 7 || got.Attempt != 1 ||
				string(got.Usage) != `{"eventId":"e"}` || got.Rejected != c.letter.Rejected ||
				tx.appended[0].Adjustment != nil {
				t.Errorf("repeated %+v", got)
			}
		})
	}
}

// A discarded event never counts: its adjustments are void.
func TestP8_ADiscardVoidsTheAdjustmentsOfItsEvent(t *testing.T) {
	for parked, want := range map[bool]*events.AdjustmentChange{
		true: {State: events.AdjustmentVoid, Reason: "its dead letter was discarded", Recorded: 7}, false: nil,
	} {
		d, tx := newLetters(letter(1, func(l *domain.DeadLetter) { l.Parked = parked }))
		_, err := d.Discard(t.Context(), Request{By: operator}, uuid.UUID{1}, activeTenant, "broken")
		event := tx.succeeded(t, err, 1)
		if got := event.Decided; !reflect.DeepEqual(got, want) {
			t.Errorf("parked %t: decides %+v instead of %+v", parked, got, want)
		}
	}
}

// An approved amount that a discard voids may be pushed: the difference is due.
func TestP8_ADiscardOfAnApprovedAdjustmentIsPushed(t *testing.T) {
	for _, parked := range []bool{true, false} {
		for _, billed := range []bool{true, false} {
			d, tx := newLetters(letter(1, func(l *domain.DeadLetter) { l.Parked = parked }))
			tx.approved = []domain.Closing{{TenantID: activeTenant, PeriodKey: "2026-05", Snapshot: 1}}
			if alice := tx.tenants[activeTenant]; billed {
				alice.Billing = &events.Billing{Provider: events.ProviderStripe, Customer: "cus_1"}
				tx.tenants[activeTenant] = alice
			}
			if _, err := d.Discard(t.Context(), Request{By: operator}, uuid.UUID{1}, activeTenant, "broken"); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]string{true: "billing_push adjust/2026-05/1/1"}[parked && billed]; strings.Join(tx.sagas, " ") != want {
				t.Errorf("parked %t, billing %t: started %q instead of %q", parked, billed, tx.sagas, want)
			}
		}
	}
}

// Each request of a batch is decided after those before it; a request that cannot be
// executed delays no other.
func TestRetriesOfOneBatch(t *testing.T) {
	lost := letter(2, func(l *domain.DeadLetter) { l.RawPosition = 99 })
	d, tx := newLetters(letter(1), lost, letter(3, func(l *domain.DeadLetter) { l.Attempts = 1 }))
	requests := []events.Envelope{
		requestedRetry(0, retryOf(9)), requestedRetry(1, `{`), requestedRetry(2, retryOf(2)), requestedRetry(3, retryOf(1)), requestedRetry(4, retryOf(1)),
		requestedRetry(5, strings.Replace(retryOf(3), "}", `,"attempt":1}`, 1)), requestedRetry(6, strings.Replace(retryOf(3), "}", `,"attempt":2}`, 1)),
	}
	faults, err := d.ExecuteRetries(tx, requests)
	if err != nil {
		t.Fatal(err)
	}
	type step struct {
		request byte
		subject events.Subject
		refused string
		names   int // index of the retry that a DeadLetterRetried names
	}
	var got []step
	for i := range tx.appended {
		p := &tx.appended[i]
		done := step{request: p.CausationID[0] - 100, subject: p.Subject}
		if p.Subject == events.RetryRefused {
			done.refused = payload[events.Refused](t, p).Code
		}
		if p.Subject == events.DeadLetterRetried {
			named := payload[events.RetryDone](t, p)
			done.names = slices.IndexFunc(tx.appended, func(r events.Pending) bool { return r.EventID == named.RetryEventID })
			if done.names < 0 || named.Position != tx.at(done.names) {
				t.Errorf("recorded %+v", named)
			}
		}
		got = append(got, done)
	}
	want := []step{
		{3, events.UsageRetried, "", 0}, {6, events.UsageRetried, "", 0},
		{0, events.RetryRefused, "dead_letter_not_found", 0},
		{2, events.RetryRefused, "dead_letter_not_retryable", 0},
		{3, events.DeadLetterRetried, "", 0},
		{4, events.RetryRefused, "dead_letter_not_retryable", 0},
		{5, events.RetryRefused, "dead_letter_not_retryable", 0},
		{6, events.DeadLetterRetried, "", 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("appended\n%v instead of\n%v", got, want)
	}
	for i, fault := range faults {
		if (fault != nil) != (i == 1) {
			t.Errorf("request %d: %v", i, fault)
		}
	}
}

// The retry of an event that cannot be read is refused with the reason, and its dead letter stays FAILED. A database that is unavailable refuses none.
func TestARetryOfAnEventThatCannotBeReadIsRefused(t *testing.T) {
	folded := letter(1, func(l *domain.DeadLetter) {
		l.Stage, l.Source, l.SourceSubject, l.Parked = events.StageAggregation, 8, events.UsageValidated, true
	})
	long := strings.Repeat("é", 1000)
	for name, c := range map[string]struct {
		letter domain.DeadLetter
		source events.Envelope
		reason string
	}{
		"a verdict":          {folded, events.Envelope{Subject: events.UsageValidated, DedupeKey: events.KeyValidated(7), Payload: json.RawMessage(`{"amount":"many"}`)}, "decoding a verdict: json: cannot unmarshal string"},
		"a long error":       {folded, events.Envelope{Subject: events.UsageValidated, DedupeKey: events.KeyValidated(7), Payload: json.RawMessage(`{"timestamp":"` + long + `"}`)}, "decoding a verdict: parsing time"},
		"recorded usage":     {letter(1), events.Envelope{Subject: events.UsageRecorded, Payload: json.RawMessage(`{`)}, "unexpected end of JSON input"},
		"usage that is lost": {letter(1, func(l *domain.DeadLetter) { l.RawPosition = 99 }), events.Envelope{}, "position 99 is not in the log"},
	} {
		t.Run(name, func(t *testing.T) {
			d, tx := newLetters(c.letter)
			if c.source.Subject != 0 {
				tx.sources[c.letter.Repeats()] = c.source
			}
			request := requestedRetry(1, retryOf(1))
			if _, err := d.ExecuteRetries(withoutEvents{tx}, []events.Envelope{request}); !errors.Is(err, ErrUnavailable) || len(tx.appended) > 0 {
				t.Fatalf("without the database: %d events, %v", len(tx.appended), err)
			}
			faults, err := d.ExecuteRetries(tx, []events.Envelope{request})
			if err != nil || faults[0] != nil {
				t.Fatal(faults, err)
			}
			refused := tx.succeeded(t, err, 1)
			router(request, events.RetryRefused, events.KeyEvent(refused.EventID), events.Counts{}).check(t, &refused)
			got := payload[events.Refused](t, &refused)
			if got.DeadLetterID != c.letter.ID || got.Code != "dead_letter_not_retryable" || !strings.Contains(got.Reason, c.reason) || len(got.Reason) > maxRefusal || strings.Contains(got.Reason, "\ufffd") {
				t.Errorf("recorded %+v", got)
			}
			if left, _ := tx.DeadLetters([]uuid.UUID{c.letter.ID}); left[c.letter.ID].Status != events.StatusFailed || left[c.letter.ID].Attempts != 0 {
				t.Errorf("the letter is %+v", left[c.letter.ID])
			}
		})
	}
}

// withoutEvents cannot read events.
type withoutEvents struct{ *letterTx }

func (withoutEvents) Events([]int64) (map[int64]events.Envelope, error) { return nil, ErrUnavailable }
