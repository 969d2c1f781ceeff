package domain

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

var letterID = uuid.MustParse("01900000-0000-7000-8000-0000000000dd")

// letterOf is a dead letter of the usage recorded at position 7.
func letterOf(stage string, source events.Subject) DeadLetter {
	return DeadLetter{ID: letterID, Stage: stage, Source: 9, SourceSubject: source, RawPosition: 7}
}

// The state of a dead letter follows from the keys of its later events.
func TestTheStateOfADeadLetter(t *testing.T) {
	const failed, retrying, resolved = events.StatusFailed, events.StatusRetrying, events.StatusResolved
	retry := func(n int) string { return events.KeyRetry(letterID, n) }
	again := func(n int) string { return events.KeyFailedAgain(letterID, n) }
	validated := events.KeyValidated(7)
	for name, c := range map[string]struct {
		stage    string
		source   events.Subject
		keys     []string
		status   string
		attempts int
		parked   bool
	}{
		"rejected":                   {events.StageValidation, events.UsageRecorded, nil, failed, 0, false},
		"not published":              {events.StagePublishing, events.UsageRecorded, nil, failed, 0, true},
		"a rejection, not published": {events.StagePublishing, events.UsageRejected, nil, failed, 0, false},
		"not folded":                 {events.StageAggregation, events.UsageValidated, nil, failed, 0, true},
		"never accepted":             {events.StageIngestion, events.UsageConflicted, nil, failed, 0, false},
		"retried":                    {events.StageValidation, events.UsageRecorded, []string{retry(1)}, retrying, 1, false},
		"parked, and retried":        {events.StageAggregation, events.UsageValidated, []string{retry(1)}, retrying, 1, false},
		"rejected again": {events.StageValidation, events.UsageRecorded, []string{retry(1), events.KeyRejected(7, 1)},
			failed, 1, false},
		"rejected before, retried twice": {events.StageValidation, events.UsageRecorded,
			[]string{retry(1), events.KeyRejected(7, 1), retry(2)}, retrying, 2, false},
		"parked after a retry": {events.StageValidation, events.UsageRecorded, []string{retry(1), again(1)}, failed, 1, true},
		"rejected after it was parked": {events.StageAggregation, events.UsageValidated, []string{retry(1), events.KeyRejected(7, 1)},
			failed, 1, false},
		"parked after it was rejected": {events.StageValidation, events.UsageRecorded,
			[]string{events.KeyRejected(7, 0), retry(1), again(1)}, failed, 1, true},
		"rejected as another event": {events.StageValidation, events.UsageRecorded, []string{retry(1), events.KeyRejected(77, 1)},
			retrying, 1, false},
		"retries with a gap": {events.StageValidation, events.UsageRecorded, []string{retry(2)}, failed, 0, false},
		"validated": {events.StageValidation, events.UsageRecorded, []string{retry(1), validated}, resolved, 1,
			false},
		"published late":                  {events.StagePublishing, events.UsageRecorded, []string{validated}, resolved, 0, true},
		"its verdict is older":            {events.StageAggregation, events.UsageValidated, []string{validated}, failed, 0, true},
		"its record was validated before": {events.StagePublishing, events.UsageRejected, []string{validated}, failed, 0, false},
		"discarded": {events.StageValidation, events.UsageRecorded,
			[]string{retry(1), events.KeyRejected(7, 1), events.KeyClosed(letterID)}, events.StatusDiscarded, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := letterOf(c.stage, c.source)
			var later []LaterEvent
			for i, key := range c.keys {
				e := LaterEvent{Key: key, Position: int64(10 + i)}
				if key == events.KeyClosed(letterID) {
					e.Closed = events.StatusDiscarded
				}
				later = append(later, e)
			}
			for range 2 { // it starts from the events, not from the state before
				if l.Evolve(later, 0); l.Rejected != slices.ContainsFunc(c.keys, func(key string) bool {
					return strings.HasPrefix(key, "x/7/")
				}) {
					t.Errorf("rejected: %v", l.Rejected)
				}
				if l.Status != c.status || l.Attempts != c.attempts || l.Parked != c.parked {
					t.Errorf("%s after %d attempts, parked %v", l.Status, l.Attempts, l.Parked)
				}
			}
		})
	}
}

func TestTheRequestsOfBulks(t *testing.T) {
	first, second := uuid.New(), uuid.New()
	later := []LaterEvent{
		{Key: events.KeyRequested(letterID, 1), Position: 10, Cause: first}, {Key: events.KeyRetry(letterID, 1), Position: 11,
			Cause: uuid.New()},
		{Key: events.KeyRequested(letterID, 2), Position: 12, Cause: second},
	}
	for executed, waiting := range map[int64]bool{10: true, 11: true, 12: false} {
		l := letterOf(events.StageValidation, events.UsageRecorded)
		if l.Evolve(later, executed); l.Requests != 2 || l.Waiting != waiting || !slices.Equal(l.AskedBy, []uuid.UUID{first, second}) {
			t.Errorf("executed up to %d: %+v", executed, l)
		}
	}
	l := letterOf(events.StageValidation, events.UsageRecorded)
	if l.Evolve([]LaterEvent{{Key: events.KeyClosed(letterID), Cause: first, Closed: events.StatusDiscarded}}, 0); !slices.Equal(l.AskedBy,
		[]uuid.UUID{first}) || l.Requests != 0 {
		t.Errorf("discarded by a bulk: %+v", l)
	}
}

func TestRetriesEnd(t *testing.T) {
	var later []LaterEvent
	for n := range MaxRetries + 5 {
		later = append(later, LaterEvent{Key: events.KeyRetry(letterID, n+1)}, LaterEvent{Key: events.KeyFailedAgain(letterID, n+1)})
	}
	l := letterOf(events.StageAggregation, events.UsageValidated)
	if l.Evolve(later, 0); l.Attempts != MaxRetries || l.Retryable() == nil {
		t.Errorf("%d retries, then %v", l.Attempts, l.Retryable())
	}
	if l.Evolve(later[:2*MaxRetries-2], 0); l.Attempts != MaxRetries-1 || l.Retryable() != nil {
		t.Errorf("%d retries, then %v", l.Attempts, l.Retryable())
	}
}

func TestWhatMayBeDoneWithADeadLetter(t *testing.T) {
	for name, c := range map[string]struct {
		stage              string
		source             events.Subject
		status             string
		retryable, discard string // parts of the refusal, "" if it is allowed
	}{
		"rejected":    {events.StageValidation, events.UsageRecorded, events.StatusFailed, "", ""},
		"a rejection": {events.StagePublishing, events.UsageRejected, events.StatusFailed, "", ""},
		"a verdict":   {events.StageAggregation, events.UsageValidated, events.StatusFailed, "", ""},
		"refused":     {events.StageIngestion, events.UsageRefused, events.StatusFailed, "refused usage cannot be retried", ""},
		"no usage":    {events.StagePublishing, events.PlanDefined, events.StatusFailed, "only usage is retried", ""},
		"under way": {events.StageValidation, events.UsageRecorded, events.StatusRetrying, "is RETRYING; only FAILED",
			"is RETRYING: its event may still be counted"},
		"resolved": {events.StageValidation, events.UsageRecorded, events.StatusResolved, "is RESOLVED; only FAILED",
			"is RESOLVED: it cannot be discarded"},
		"discarded": {events.StageValidation, events.UsageRecorded, events.StatusDiscarded, "is DISCARDED; only FAILED",
			"is DISCARDED already"},
	} {
		t.Run(name, func(t *testing.T) {
			l := letterOf(c.stage, c.source)
			l.Status = c.status
			wantRefusal(t, l.Retryable(), "dead_letter_not_retryable", c.retryable)
			wantRefusal(t, l.Discardable(), "dead_letter_not_discardable", c.discard)
		})
	}
}

func wantRefusal(t *testing.T, got *Error, code, part string) {
	t.Helper()
	if (got == nil) != (part == "") || got != nil && (got.Code != code || !strings.Contains(got.Message, part)) {
		t.Errorf("%v instead of %s: %s", got, code, part)
	}
}

func TestARetryRepeatsTheEventThatFailed(t *testing.T) {
	for source, want := range map[events.Subject]int64{events.UsageRecorded: 7, events.UsageRejected: 7, events.UsageValidated: 9} {
		if l := letterOf(events.StageAggregation, source); l.Repeats() != want {
			t.Errorf("subject %d: position %d instead of %d", source, l.Repeats(), want)
		}
	}
}
