package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
)

// SagaRunner runs the steps of sagas. Any number of instances may run it: a saga is leased to one of them. It leaves sagas whose kind or
// step it does not know to instances of a newer release.
type SagaRunner struct {
	Queue    SagaQueue
	Kinds    []SagaKind
	NewID    func() uuid.UUID
	Requests loop.Hint                  // that a saga may be due, also given by the end of a step; nil: only by that
	Ended    func(kind, outcome string) // is called for each saga that ended here; may be nil
	Logger   *slog.Logger
	Ticks    loop.Ticks    // the moments of looks while no saga is due
	Every    time.Duration // the longest time between two looks; 0: 1 s
	Lease    time.Duration // 0: 30 s
	Slots    int           // the steps that run at the same time; 0: 2
	Rests    int           // how many times as long as a short step ran its slot rests; 0: once

	queue, steps *retries.Log // of statements on the queue, and of steps
}

const (
	// sagaEvery bounds how late a step begins that another instance scheduled.
	sagaEvery = time.Second
	// sagaLease bounds how long a saga waits for another instance after its own was killed. It is renewed in thirds.
	sagaLease = 30 * time.Second
	// sagaSlots bounds the steps that an instance runs at the same time, and so their connections.
	sagaSlots = 2
	// sagaRest bounds the rest of a slot after a step: as long as the step ran, so that many sagas at once leave half of the time to
	// requests.
	sagaRest = time.Second
	// sagaShortRest is the most that Rests adds: steps that are slow because the machine is busy are not slowed down much further.
	sagaShortRest = 40 * time.Millisecond
	// sagaSoon is the shortest time between two looks that lease nothing.
	sagaSoon = 50 * time.Millisecond
	// sagaSaving bounds how long a stopping instance saves the result of a step.
	sagaSaving = 2 * time.Second
)

// errLeaseLost ends a step whose lease could not be renewed: another instance may run it.
var errLeaseLost = errors.New("the lease of the background process was lost")

// Run runs steps until ctx ends, and returns when all of them have ended.
func (r *SagaRunner) Run(ctx context.Context) error {
	r.queue = retries.New(r.Logger, slog.LevelWarn, "cannot read or save background processes; will retry", "")
	r.steps = retries.New(r.Logger, slog.LevelWarn, "a step of a background process failed; will retry", "")
	if r.Requests == nil {
		r.Requests = loop.NewHint()
	}
	steps, slots := SagaSteps(r.Kinds), make(chan struct{}, cmp.Or(r.Slots, sagaSlots))
	var running sync.WaitGroup
	defer running.Wait()
	start := func(s *domain.Saga, lease uuid.UUID, leased time.Time) {
		running.Go(func() {
			began := time.Now()
			r.runStep(ctx, s, lease, leased)
			loop.Sleep(ctx, r.rest(time.Since(began)))
			<-slots
			r.Requests.Notify() // its next step may be due
		})
	}
	more := false
	return loop.Loop{Wake: r.Requests}.RunPaced(ctx, func(ctx context.Context) (next time.Duration, err error) {
		next, more = r.look(ctx, steps, slots, more, start)
		return next, nil
	})
}

// rest returns how long a slot rests after a step.
func (r *SagaRunner) rest(ran time.Duration) time.Duration {
	return min(max(ran, min(ran*time.Duration(r.Rests), sagaShortRest)), sagaRest)
}

// look starts the steps that are due while there are free slots, and returns the time until the next look and whether more steps may be
// due. If no step is due it costs one read; if the look before left more steps, it leases the next one without that read.
func (r *SagaRunner) look(ctx context.Context, steps []string, slots chan struct{}, more bool,
	start func(*domain.Saga, uuid.UUID, time.Time)) (time.Duration, bool) {
	every := r.Ticks.Until(cmp.Or(r.Every, sagaEvery))
	if len(slots) == cap(slots) {
		return every, more // a step that ends begins the next look
	}
	if !more {
		wait, found, err := r.Queue.NextSaga(ctx, steps)
		if r.queue.Report(ctx, err); err != nil || !found {
			return every, false
		}
		if wait > 0 {
			return min(wait, every), false
		}
	}
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		default:
			return every, true
		}
		lease, asked := r.NewID(), time.Now()
		s, err := r.Queue.LeaseSaga(ctx, steps, lease, r.lease())
		if r.queue.Report(ctx, err); err != nil || s == nil {
			<-slots
			return min(map[bool]time.Duration{true: every, false: sagaSoon}[err != nil], every), false
		}
		start(s, lease, asked)
	}
	return every, false
}

func (r *SagaRunner) lease() time.Duration { return cmp.Or(r.Lease, sagaLease) }

// runStep runs the step of a leased saga and saves its result. The lease was asked for at a time, after which it lasts.
func (r *SagaRunner) runStep(ctx context.Context, s *domain.Saga, lease uuid.UUID, leased time.Time) {
	within, lose := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		r.renew(within, s.ID, lease, leased, lose)
	}()
	ran := *s
	ran.Missing, ran.Despite = slices.Clone(s.Missing), slices.Clone(s.Despite)
	result, err := r.attempt(within, &ran)
	lost := errors.Is(context.Cause(within), errLeaseLost)
	lose(nil)
	<-renewed
	if lost {
		r.Logger.WarnContext(ctx, "a background process lost its lease while its step ran; another instance repeats the step", "saga", s.ID,
			"kind", s.Kind, "step", s.Step)
		return
	}
	r.settle(ctx, s, lease, result, err)
}

// attempt runs a step once. A panic is an error.
func (r *SagaRunner) attempt(ctx context.Context, s *domain.Saga) (result domain.SagaResult, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			r.Logger.ErrorContext(ctx, "a background process panicked", "saga", s.ID, "kind", s.Kind, "step", s.Step, "panic", fault,
				"stack",
				string(debug.Stack()))
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	of := slices.IndexFunc(r.Kinds, func(k SagaKind) bool { return k.Name == s.Kind })
	result, err = r.Kinds[of].Run(ctx, s)
	if next := result.Step; err == nil && next != "" && !slices.Contains(r.Kinds[of].Steps, next) {
		err = fmt.Errorf("the step %q continues with %q, which is no step of %s", s.Step, next, s.Kind)
	}
	return result, err
}

// renew renews a lease until ctx ends. It ends the step before the lease ends, if that fails: by this instance's clock, from the time at
// which the lease was asked for.
func (r *SagaRunner) renew(ctx context.Context, id, lease uuid.UUID, leased time.Time, lose context.CancelCauseFunc) {
	third := r.lease() / 3
	for wait := third - time.Since(leased); ; { // the answer may have taken most of the lease
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		asked := time.Now()
		within, cancel := context.WithDeadline(ctx, leased.Add(r.lease()-third/2))
		held, err := r.Queue.RenewSaga(within, id, lease, r.lease())
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && held:
			leased, wait = asked, third
		case err == nil || time.Since(leased) > r.lease()-third:
			lose(errLeaseLost)
			return
		default:
			wait = third / 4
		}
	}
}

// settle saves the result of a step. A step that ended because the instance stops is due at once, and did not fail.
func (r *SagaRunner) settle(ctx context.Context, ran *domain.Saga, lease uuid.UUID, result domain.SagaResult, err error) {
	stopped := err != nil && ctx.Err() != nil
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.lease())
	if stopped {
		cancel()
		saving, cancel = context.WithTimeout(context.WithoutCancel(ctx), min(sagaSaving, r.lease()))
	}
	defer cancel()
	settled, failed := r.Queue.SettleSaga(saving, ran.ID, lease, func(s *domain.Saga, now time.Time) {
		switch {
		case stopped:
			s.NextAt = now
			return
		case err != nil:
			s.Fail(err.Error(), now)
		default:
			s.Apply(result, now)
		}
		if s.Missed(ran) {
			s.NextAt = now
		}
	})
	if r.queue.Report(ctx, failed); failed != nil || settled == nil || stopped { // otherwise the step is repeated after the lease
		return
	}
	r.steps.Report(ctx, err, "saga", ran.ID, "kind", ran.Kind, "step", ran.Step)
	if !settled.Open() && r.Ended != nil {
		r.Ended(settled.Kind, settled.Outcome)
	}
}
