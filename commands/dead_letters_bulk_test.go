package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
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

// foundFailed returns a search that finds the dead letters that are FAILED now.
func (tx *letterTx) foundFailed(ctx context.Context) ([]domain.DeadLetterRef, error) {
	all, err := tx.found(ctx)
	if err != nil {
		return nil, err
	}
	var ids []uuid.UUID
	for _, ref := range all {
		ids = append(ids, ref.ID)
	}
	letters, err := tx.DeadLetters(ids)
	return slices.DeleteFunc(all, func(ref domain.DeadLetterRef) bool { return letters[ref.ID].Status != events.StatusFailed }), err
}

// executeRetries executes the requests that were appended, as the command router does.
func (tx *letterTx) executeRetries(t *testing.T, d *DeadLetters) {
	t.Helper()
	var requests []events.Envelope
	for i, p := range tx.appended {
		if p.Subject == events.RetryRequested {
			requests, tx.executed = append(requests, events.Envelope{EventID: p.EventID, TenantID: p.TenantID, Payload: p.Payload}), int64(i+1)
		}
	}
	if faults, err := d.ExecuteRetries(tx, requests); errors.Join(append(faults, err)...) != nil {
		t.Fatal(faults, err)
	}
}

var (
	everyValidation = events.DeadLetterFilter{Stage: events.StageValidation}
	everyFailed     = events.DeadLetterFilter{Status: events.StatusFailed}
)

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

// An interrupted bulk continues with the dead letters that it began with, also with those that its filter no longer matches: its answer counts
// all of them, none is requested twice, and one that failed meanwhile is left as it is.
func TestAnInterruptedBulkGoesOn(t *testing.T) {
	for action, subject := range map[string]events.Subject{events.BulkRetry: events.RetryRequested, events.BulkDiscard: events.DeadLetterClosed} {
		var list []domain.DeadLetter
		for n := range 2*bulkPart + 50 {
			list = append(list, letter(1, func(l *domain.DeadLetter) { l.ID[1], l.ID[2] = byte(n>>8), byte(n) }))
		}
		d, tx := newLetters(list...)
		wanted := BulkRequest{Action: action, Filter: everyFailed, Reason: "why"}
		tx.fail = 3 // after the request and one part
		_, err := d.Bulk(t.Context(), keyed(1), wanted, tx.foundFailed)
		if full := (*Overloaded)(nil); !errors.Is(err, ErrUnavailable) || errors.As(err, &full) {
			t.Errorf("the interruption is answered %v", err)
		}
		tx.succeeded(t, nil, 1+bulkPart)
		tx.executeRetries(t, d)
		tx.letters[uuid.UUID{7}] = letter(7)
		_, err = d.Bulk(t.Context(), keyed(2), wanted, tx.foundFailed)
		refusedWith(t, err, "idempotency_key_reused", "")
		done, err := d.Bulk(t.Context(), keyed(1), wanted, tx.foundFailed)
		if err != nil || done.Matched != len(list) || done.Done != len(list) || done.BulkID != tx.appended[0].EventID || len(done.Sample) != maxSample || len(done.Refused) > 0 {
			t.Errorf("%s: %+v %v", action, done, err)
		}
		again, err := d.Bulk(t.Context(), keyed(1), wanted, tx.foundFailed)
		if err != nil || !reflect.DeepEqual(again, done) {
			t.Errorf("%s: the repetition is answered %+v %v", action, again, err)
		}
		changed := map[uuid.UUID]int{}
		for i := range tx.appended {
			if p := &tx.appended[i]; p.Subject == subject {
				changed[payload[struct{ DeadLetterID uuid.UUID }](t, p).DeadLetterID]++
			}
		}
		for _, l := range list {
			if changed[l.ID] != 1 {
				t.Errorf("%s of %s: %d times", action, l.ID, changed[l.ID])
			}
		}
		if len(changed) != len(list) {
			t.Errorf("%s of %d dead letters instead of %d", action, len(changed), len(list))
		}
	}
}

// A bulk of no dead letter that is interrupted before its answer changes none that failed meanwhile.
func TestAnInterruptedBulkOfNoDeadLetterChangesNone(t *testing.T) {
	d, tx := newLetters()
	wanted := BulkRequest{Action: events.BulkRetry, Filter: everyFailed}
	tx.fail = 2 // the answer
	if _, err := d.Bulk(t.Context(), keyed(1), wanted, tx.foundFailed); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the interruption is answered %v", err)
	}
	tx.letters[uuid.UUID{7}] = letter(7)
	done, err := d.Bulk(t.Context(), keyed(1), wanted, tx.foundFailed)
	if tx.succeeded(t, err, 1); done.Matched != 0 || done.Done != 0 || done.BulkID != tx.appended[0].EventID {
		t.Errorf("%+v", done)
	}
}

// The dead letters of the largest bulk are stored in less than 256 KiB.
func TestTheLargestBulkIsStoredInLittleSpace(t *testing.T) {
	var refs []domain.DeadLetterRef
	for n := range MaxBulk {
		refs = append(refs, domain.DeadLetterRef{ID: uuid.New(), TenantID: uuid.UUID{byte(n % 100)}})
	}
	stored, err := json.Marshal(begunBulk{Selected: selected(refs)})
	if err != nil || len(stored) > 256<<10 {
		t.Errorf("%d bytes, %v", len(stored), err)
	}
	var read begunBulk
	err = json.Unmarshal(stored, &read)
	byID := func(x, y domain.DeadLetterRef) int { return bytes.Compare(x.ID[:], y.ID[:]) }
	got := refsOf(read.Selected)
	slices.SortFunc(refs, byID)
	slices.SortFunc(got, byID)
	if err != nil || !slices.Equal(got, refs) {
		t.Errorf("%d dead letters are read, %v", len(got), err)
	}
}

// Dead letters that an earlier release stored as texts are read, too; those that are cut off are refused.
func TestStoredDeadLettersOfABulkAreRead(t *testing.T) {
	first, second := uuid.MustParse("01900000-0000-7000-8000-0000000000c1"), uuid.MustParse("01900000-0000-7000-8000-0000000000c2")
	for stored, want := range map[string]letterIDs{
		`["` + first.String() + `","` + second.String() + `"]`: {first, second},
		`"AZAAAAAAcACAAAAAAAAAwQGQAAAAAHAAgAAAAAAAAMI="`:       {first, second},
		`""`:       nil,
		`"AZAAAA"`: nil,
		`7`:        nil,
	} {
		var got letterIDs
		err := json.Unmarshal([]byte(stored), &got)
		if wrong := want == nil && stored != `""`; (err != nil) != wrong || !slices.Equal(got, want) {
			t.Errorf("%s is read as %v, %v", stored, got, err)
		}
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
