package domain

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// States of a saga. It is open in the first three.
const (
	SagaRunning     = "RUNNING"     // its steps run, or wait for conditions
	SagaPartial     = "PARTIAL"     // its deadline has passed; it continues by itself
	SagaDrift       = "DRIFT"       // a comparison failed; it tries again by itself
	SagaCompleted   = "COMPLETED"   // ended after its last step
	SagaCompensated = "COMPENSATED" // ended, and its effects are reverted
	SagaFailed      = "FAILED"      // ended before its last step; earlier effects remain
)

// Outcomes of an ended saga.
const (
	SagaSuccess       = "success"
	SagaIsCompensated = "compensated"
	SagaIsPartial     = "partial" // it ended without some of its effects
)

// SagaOutcomes lists the outcomes.
func SagaOutcomes() []string { return []string{SagaSuccess, SagaIsCompensated, SagaIsPartial} }

// SagaPeriodClose is the kind of the sagas that close periods.
const SagaPeriodClose = "period_close"

const (
	// sagaShortestWait bounds how often a step runs that waits for a condition.
	sagaShortestWait = 100 * time.Millisecond
	// maxSagaError bounds the bytes of an error that are kept.
	maxSagaError = 1000
)

var sagaBackoff = Backoff{First: time.Second, Longest: 5 * time.Minute}

// SagaStart describes a new saga. Kind, TenantID (Nil: of the platform) and Key identify it for ever: a second start has no effect.
type SagaStart struct {
	ID        uuid.UUID
	Kind      string
	TenantID  uuid.UUID
	Key       string
	FirstStep string
	Deadline  time.Duration // after the start; 0: none
	Despite   []string      // conditions that it does not wait for
}

// Saga is a process of several steps, e.g. the close of a period. Its times are of the database's clock.
type Saga struct {
	ID         uuid.UUID
	Kind       string
	TenantID   uuid.UUID
	Key        string
	Step       string // the step that runs next
	State      string
	Attempts   int        // failures of the step since it last succeeded
	NextAt     time.Time  // of the next run; while a step runs, of the end of its lease
	DeadlineAt *time.Time // nil: none
	Missing    []string   // conditions that the step waits for
	Despite    []string   // conditions that an operator waived
	LastError  string     // of the last failure of the step
	Retries    int        // by operators
	LastReason string     // of the last retry
	LastActor  string
	Outcome    string // "" while it is open
	CreatedAt  time.Time
	EndedAt    *time.Time
}

// SagaResult is the result of a run of a step. The functions below make one.
type SagaResult struct {
	Step     string        // the step that runs next; "": the same step
	Wait     time.Duration // before the next run
	Deadline time.Duration // if set, a new deadline, after this run
	Missing  []string      // conditions that the step waits for
	Drift    bool
	Reason   string // of a drift, a failure or a compensation
	End      string // the state that ends the saga; "": it continues
	Outcome  string // with End
}

// SagaNext continues with another step at once.
func SagaNext(step string) SagaResult { return SagaResult{Step: step} }

// SagaWait runs the same step again after a time, because conditions are missing.
func SagaWait(wait time.Duration, missing ...string) SagaResult {
	return SagaResult{Wait: wait, Missing: missing}
}

// SagaDrifts runs the same step again after a time, because a comparison failed.
func SagaDrifts(wait time.Duration, reason string) SagaResult {
	return SagaResult{Wait: wait, Drift: true, Reason: reason}
}

// SagaDone ends the saga with success.
func SagaDone() SagaResult { return SagaResult{End: SagaCompleted, Outcome: SagaSuccess} }

// SagaDoneWithout completes the saga although conditions are missing; without any it is SagaDone.
func SagaDoneWithout(missing ...string) SagaResult {
	if len(missing) == 0 {
		return SagaDone()
	}
	return SagaResult{End: SagaCompleted, Outcome: SagaIsPartial, Missing: missing}
}

// SagaReverted ends the saga after its effects were reverted.
func SagaReverted(reason string) SagaResult {
	return SagaResult{End: SagaCompensated, Outcome: SagaIsCompensated, Reason: reason}
}

// SagaFails ends the saga before its last step, because no attempt can succeed.
func SagaFails(reason string) SagaResult {
	return SagaResult{End: SagaFailed, Outcome: SagaIsPartial, Reason: reason}
}

// Unwaived returns the missing conditions that the saga waits for.
func (s *Saga) Unwaived(missing []string) []string {
	return slices.DeleteFunc(slices.Clone(missing), func(condition string) bool { return slices.Contains(s.Despite, condition) })
}

// Waived returns the missing conditions that the saga does not wait for.
func (s *Saga) Waived(missing []string) []string {
	return slices.DeleteFunc(slices.Clone(missing), func(condition string) bool { return !slices.Contains(s.Despite, condition) })
}

// Open reports whether the saga continues.
func (s *Saga) Open() bool { return s.EndedAt == nil }

// Apply applies the result of a run that ended now.
func (s *Saga) Apply(r SagaResult, now time.Time) {
	s.Attempts, s.LastError, s.Missing = 0, sagaError(r.Reason), r.Missing
	if r.End != "" {
		s.State, s.Outcome, s.EndedAt, s.NextAt = r.End, r.Outcome, &now, now
		return
	}
	wait := r.Wait
	if r.Step == "" || r.Step == s.Step {
		wait = max(wait, sagaShortestWait)
	} else {
		s.Step = r.Step
	}
	if r.Deadline > 0 {
		deadline := now.Add(r.Deadline)
		s.DeadlineAt = &deadline
	}
	s.schedule(now, wait)
	if r.Drift {
		s.State = SagaDrift
	}
}

// Fail applies a failed run that ended now. The step runs again after a wait that doubles with each failure.
func (s *Saga) Fail(reason string, now time.Time) {
	s.Attempts++
	s.LastError = sagaError(reason)
	drifts := s.State == SagaDrift
	s.schedule(now, sagaBackoff.After(s.Attempts))
	if drifts {
		s.State = SagaDrift
	}
}

// schedule sets the next run, and the state by the deadline. It runs the step at the deadline, so that the state is true from then on.
func (s *Saga) schedule(now time.Time, wait time.Duration) {
	s.State, s.NextAt = SagaRunning, now.Add(wait)
	switch {
	case s.DeadlineAt == nil:
	case !s.DeadlineAt.After(now):
		s.State = SagaPartial
	case s.DeadlineAt.Before(s.NextAt):
		s.NextAt = *s.DeadlineAt
	}
}

// Retry requests a run at once, and adds conditions that the saga no longer waits for. It changes no step and no deadline. It returns the
// reason against it, nil if it is allowed.
func (s *Saga) Retry(reason, actor string, despite []string) *Error {
	if !s.Open() {
		return &Error{Code: "saga_ended", Message: "The background process is " + s.State + "; a retry is possible until it ends"}
	}
	for _, condition := range despite {
		if !slices.Contains(s.Despite, condition) {
			s.Despite = append(s.Despite, condition)
		}
	}
	s.Attempts, s.LastReason, s.LastActor = 0, reason, actor
	s.Retries++
	return nil
}

// Missed reports whether an operator retried the saga while a step ran. Then the step runs once more at once: the run did not see it.
func (s *Saga) Missed(ran *Saga) bool { return s.Open() && s.Retries != ran.Retries }

// sagaError returns the part of a reason that is kept.
func sagaError(reason string) string {
	reason = strings.ReplaceAll(reason, "\x00", "")
	return strings.ToValidUTF8(reason[:min(len(reason), maxSagaError)], "")
}
