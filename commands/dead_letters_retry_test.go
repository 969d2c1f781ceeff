package commands

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

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
