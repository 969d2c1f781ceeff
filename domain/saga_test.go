package domain

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestSagaIsPartialFromItsDeadlineOn(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	deadline := now.Add(15 * time.Minute)
	for name, c := range map[string]struct {
		result SagaResult
		after  time.Duration // since now
		state  string
		next   time.Duration
		step   string
	}{
		"next step":             {SagaNext("freeze"), 0, SagaRunning, 0, "freeze"},
		"wait":                  {SagaWait(time.Minute, "rebuilds"), 0, SagaRunning, time.Minute, "wait"},
		"no wait":               {SagaWait(0, "rebuilds"), 0, SagaRunning, sagaShortestWait, "wait"},
		"wait to the deadline":  {SagaWait(time.Hour, "rebuilds"), 0, SagaRunning, 15 * time.Minute, "wait"},
		"at the deadline":       {SagaWait(time.Hour, "rebuilds"), 15 * time.Minute, SagaPartial, 75 * time.Minute, "wait"},
		"next step, late":       {SagaNext("freeze"), time.Hour, SagaPartial, time.Hour, "freeze"},
		"next step, with time":  {SagaResult{Step: "push", Deadline: time.Hour}, time.Hour, SagaRunning, time.Hour, "push"},
		"drift":                 {SagaDrifts(time.Minute, "2 lines"), time.Hour, SagaDrift, time.Hour + time.Minute, "wait"},
		"success, late":         {SagaDone(), time.Hour, SagaCompleted, time.Hour, "wait"},
		"completed without all": {SagaDoneWithout("rebuilds"), 0, SagaCompleted, 0, "wait"},
		"reverted":              {SagaReverted("cancelled"), 0, SagaCompensated, 0, "wait"},
		"failed":                {SagaFails("no customer"), 0, SagaFailed, 0, "wait"},
	} {
		s := Saga{Step: "wait", State: SagaRunning, Attempts: 3, LastError: "x", DeadlineAt: &deadline}
		s.Apply(c.result, now.Add(c.after))
		if s.State != c.state || s.Step != c.step || !s.NextAt.Equal(now.Add(c.next)) || s.Attempts != 0 ||
			s.Open() != (c.result.End == "") ||
			s.Outcome != c.result.Outcome || s.LastError != c.result.Reason || !slices.Equal(s.Missing, c.result.Missing) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if r := SagaDoneWithout(); r.Outcome != SagaSuccess {
		t.Errorf("without a missing condition it ends with %+v", r)
	}
}

func TestAFailedSagaWaitsLongerEachTime(t *testing.T) {
	s, now, before := Saga{State: SagaDrift}, time.Now(), time.Duration(0)
	for n := range 100 {
		s.Fail("x"+strings.Repeat("é\x00", 1000), now) // the bound is in the middle of a character
		wait := s.NextAt.Sub(now)
		if wait < before || wait < time.Second || wait > 5*time.Minute {
			t.Errorf("after %d failures it waits %s", n+1, wait)
		}
		if before = wait; s.State != SagaDrift || s.Attempts != n+1 || len(s.LastError) > 1000 || !utf8.ValidString(s.LastError) ||
			strings.Contains(s.LastError, "\x00") {
			t.Errorf("after %d failures: %+v", n+1, s)
		}
	}
	if refusal := s.Retry("r", "a", []string{"x", "x"}); refusal != nil || s.Attempts != 0 || s.Retries != 1 ||
		!slices.Equal(s.Despite, []string{"x"}) || !s.NextAt.Equal(now.Add(before)) {
		t.Errorf("%+v, %v", s, refusal)
	}
	s.Apply(SagaDone(), now)
	if refusal := s.Retry("r", "a", nil); refusal == nil || refusal.Code != "saga_ended" || s.Retries != 1 {
		t.Errorf("%+v, %v", s, refusal)
	}
}
