package commands

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// found returns a search that finds all dead letters, in any order.
func (tx *letterTx) found(context.Context) ([]domain.DeadLetterRef, error) {
	var refs []domain.DeadLetterRef
	for _, l := range tx.letters {
		refs = append(refs, domain.DeadLetterRef{ID: l.ID, TenantID: l.TenantID})
	}
	return refs, nil
}

var everyValidation = events.DeadLetterFilter{Stage: events.StageValidation}

func TestBadBulksAreRefused(t *testing.T) {
	many := func(context.Context) ([]domain.DeadLetterRef, error) {
		return make([]domain.DeadLetterRef, MaxBulk+1), nil
	}
	for name, c := range map[string]struct {
		wanted        BulkRequest
		find          func(context.Context) ([]domain.DeadLetterRef, error)
		code, pointer string
	}{
		"action":            {BulkRequest{Action: "close", Filter: everyValidation}, nil, "action_invalid", "/action"},
		"filter":            {BulkRequest{Action: events.BulkRetry}, nil, "filter_empty", "/filter"},
		"discard, why":      {BulkRequest{Action: events.BulkDiscard, Filter: everyValidation}, nil, "reason_invalid", "/reason"},
		"bad reason":        {BulkRequest{Action: events.BulkRetry, Filter: everyValidation, Reason: "\n"}, nil, "reason_invalid", "/reason"},
		"too many":          {BulkRequest{Action: events.BulkRetry, Filter: everyValidation}, many, "bulk_too_large", "/filter"},
		"too many for once": {BulkRequest{Action: events.BulkRetry, Filter: everyValidation, DryRun: true}, many, "bulk_too_large", "/filter"},
	} {
		t.Run(name, func(t *testing.T) {
			d, tx := newLetters()
			_, err := d.Bulk(t.Context(), keyed(1), c.wanted, c.find)
			refusedWith(t, err, c.code, c.pointer)
			if tx.succeeded(t, nil, 0); len(tx.answers) > 0 {
				t.Errorf("answers %v", tx.answers)
			}
		})
	}
}

// mixed is two dead letters that may be retried, three that may not, and one of another
// tenant.
func mixed() []domain.DeadLetter {
	status := func(s string) func(*domain.DeadLetter) { return func(l *domain.DeadLetter) { l.Status = s } }
	return []domain.DeadLetter{
		letter(1, func(l *domain.DeadLetter) { l.Attempts = 2 }), letter(2), letter(3, status(events.StatusRetrying)),
		letter(4, status(events.StatusRetrying)), letter(5, status(events.StatusResolved)), letter(6, func(l *domain.DeadLetter) { l.TenantID = suspendedTenant }),
	}
}

func TestABulkDecidesOnEachDeadLetter(t *testing.T) {
	for action, subject := range map[string]events.Subject{events.BulkRetry: events.RetryRequested, events.BulkDiscard: events.DeadLetterClosed} {
		d, tx := newLetters(mixed()...)
		tx.again = true
		wanted := BulkRequest{Action: action, Filter: everyValidation, Reason: "why", DryRun: true}
		dry, err := d.Bulk(t.Context(), Request{By: operator}, wanted, tx.found)
		tx.succeeded(t, err, 0)
		wanted.DryRun = false
		done, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
		tx.succeeded(t, err, 4)
		if dry.BulkID != uuid.Nil || done.BulkID == uuid.Nil || done.Matched != 6 || done.Done != 3 || len(done.Sample) != 3 ||
			len(done.Refused) != 2 || done.Refused[0].Count != 2 || done.Refused[1].Count != 1 {
			t.Errorf("%s: %+v", action, done)
		}
		if dry.BulkID = done.BulkID; !reflect.DeepEqual(dry, done) {
			t.Errorf("the dry run is answered %+v, the bulk %+v", dry, done)
		}
		want := caused{subject: events.BulkRequested, tenant: events.Platform, key: events.KeyEvent(done.BulkID)}
		want.check(t, &tx.appended[0])
		if got := payload[events.Bulk](t, &tx.appended[0]); got.Action != action || got.Filter.Stage != events.StageValidation || got.Reason != "why" || got.Matched != 6 {
			t.Errorf("recorded %+v", got)
		}
		letters := map[uuid.UUID]bool{}
		for i := range tx.appended[1:] {
			p := &tx.appended[1+i]
			id := payload[struct{ DeadLetterID uuid.UUID }](t, p).DeadLetterID
			letters[id] = true
			want := caused{subject: subject, tenant: tx.letters[id].TenantID, residency: tx.tenants[tx.letters[id].TenantID].DataResidency, cause: done.BulkID}
			if want.key = events.KeyClosed(id); action == events.BulkRetry {
				want.key = events.KeyRequested(id, 1)
				if got := payload[events.Retry](t, p); got.Attempt != tx.letters[id].Attempts+1 || got.Reason != "why" {
					t.Errorf("recorded %+v", got)
				}
			}
			want.check(t, p)
		}
		if len(letters) != 3 || !letters[uuid.UUID{1}] || !letters[uuid.UUID{2}] || !letters[uuid.UUID{6}] {
			t.Errorf("%s of %v", action, letters)
		}
	}
}

func TestABulkIsRepeated(t *testing.T) {
	d, tx := newLetters(mixed()...)
	wanted := BulkRequest{Action: events.BulkRetry, Filter: everyValidation}
	first, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
	tx.succeeded(t, err, 4)
	tx.letters[uuid.UUID{7}] = letter(7) // it failed since then
	again, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
	if tx.succeeded(t, err, 4); !reflect.DeepEqual(again, first) {
		t.Errorf("the repetition is answered %+v, the first request %+v", again, first)
	}
	_, err = d.Bulk(t.Context(), keyed(2), wanted, tx.found)
	refusedWith(t, err, "idempotency_key_reused", "")
	tx.succeeded(t, nil, 4)
	// Another bulk requests only letters that no bulk waits for.
	other := keyed(2)
	other.Idempotency.Key = "another"
	next, err := d.Bulk(t.Context(), other, wanted, tx.found)
	if tx.succeeded(t, err, 6); next.Done != 1 || next.Sample[0] != (uuid.UUID{7}) || next.BulkID == first.BulkID {
		t.Errorf("another bulk: %+v", next)
	}
}

// An interrupted bulk continues, with the same number and without a second request.
func TestAnInterruptedBulkGoesOn(t *testing.T) {
	var list []domain.DeadLetter
	for n := range 2*bulkPart + 50 {
		list = append(list, letter(1, func(l *domain.DeadLetter) { l.ID[1], l.ID[2] = byte(n>>8), byte(n) }))
	}
	d, tx := newLetters(list...)
	wanted := BulkRequest{Action: events.BulkRetry, Filter: everyValidation}
	tx.fail = 3 // after the request and one part
	_, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
	if full := (*Overloaded)(nil); !errors.Is(err, ErrUnavailable) || errors.As(err, &full) {
		t.Errorf("the interruption is answered %v", err)
	}
	tx.succeeded(t, nil, 1+bulkPart)
	_, err = d.Bulk(t.Context(), keyed(2), wanted, tx.found)
	refusedWith(t, err, "idempotency_key_reused", "")
	done, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
	tx.succeeded(t, err, 1+len(list))
	if done.Done != len(list) || done.BulkID != tx.appended[0].EventID || len(done.Sample) != maxSample || len(done.Refused) > 0 {
		t.Errorf("%+v", done)
	}
	keys := map[string]bool{}
	for _, p := range tx.appended {
		if keys[p.DedupeKey] {
			t.Errorf("%s was appended twice", p.DedupeKey)
		}
		keys[p.DedupeKey] = true
	}
}

// A bulk with the number of dead letters that was shown changes these, or none.
func TestABulkMatchesTheNumberThatWasShown(t *testing.T) {
	expected := func(n int) BulkRequest {
		return BulkRequest{Action: events.BulkRetry, Filter: everyValidation, Expected: &n}
	}
	for _, wrong := range []int{0, 5, 7} {
		d, tx := newLetters(mixed()...)
		for _, dry := range []bool{true, false} {
			wanted := expected(wrong)
			wanted.DryRun = dry
			_, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
			refusedWith(t, err, "state_changed", "/expectedMatched")
			if refusal := (*domain.Error)(nil); !errors.As(err, &refusal) || refusal.Current == nil || *refusal.Current.Matched != 6 {
				t.Errorf("the refusal has %+v, want the present number", refusal)
			}
		}
		if tx.succeeded(t, nil, 0); len(tx.answers) > 0 {
			t.Errorf("answers %v", tx.answers)
		}
	}
	d, tx := newLetters(mixed()...)
	first, err := d.Bulk(t.Context(), keyed(1), expected(6), tx.found)
	tx.succeeded(t, err, 4)
	tx.letters[uuid.UUID{7}] = letter(7)
	again, err := d.Bulk(t.Context(), keyed(1), expected(6), tx.found) // the filter matches another number by now
	if tx.succeeded(t, err, 4); !reflect.DeepEqual(again, first) {
		t.Errorf("the repetition is answered %+v, the first request %+v", again, first)
	}
}

// A bulk that goes on after an interruption changes the dead letters that were shown, and no later ones.
func TestAnInterruptedBulkChangesTheShownDeadLetters(t *testing.T) {
	d, tx := newLetters(mixed()...)
	n := 6
	wanted := BulkRequest{Action: events.BulkRetry, Filter: everyValidation, Expected: &n}
	first, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
	tx.succeeded(t, err, 4)
	req := keyed(1)
	delete(tx.answers, req.key()) // as if the bulk had been interrupted before its answer
	tx.letters[uuid.UUID{7}] = letter(7)
	again, err := d.Bulk(t.Context(), keyed(1), wanted, tx.found)
	if err != nil || again.BulkID != first.BulkID || again.Matched != 6 {
		t.Errorf("%v: it goes on with %+v, the first call had %+v", err, again, first)
	}
	for i := range tx.appended {
		if p := &tx.appended[i]; p.Subject == events.RetryRequested && payload[events.Retry](t, p).DeadLetterID == (uuid.UUID{7}) {
			t.Error("a dead letter that was not shown is retried")
		}
	}
}
