// Package loop runs work that an instance looks for again and again: it decides when to look, logs failures, and ends with its context.
// The work itself decides on its items, on their claims, and on how long a failed item waits.
package loop

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/domain/retries"
)

// Loop looks for work until its context ends.
type Loop struct {
	Every  time.Duration   // the longest time between two looks
	Ticks  Ticks           // the moments of looks
	Wake   <-chan struct{} // hints that work may wait; may be nil
	Logger *slog.Logger
	Failed string // the text with which package retries logs a failed look
}

// Run looks at once and after each interval or hint, until ctx ends. A failure is for the next look.
func (l Loop) Run(ctx context.Context, look func(context.Context) error) error {
	return l.RunPaced(ctx, func(ctx context.Context) (time.Duration, error) { return 0, look(ctx) })
}

// RunPaced is Run with looks that return the time until the next one; 0: the interval.
func (l Loop) RunPaced(ctx context.Context, look func(context.Context) (time.Duration, error)) error {
	log := retries.New(l.Logger, slog.LevelWarn, l.Failed, "")
	for ctx.Err() == nil {
		wait, err := look(ctx)
		log.Report(ctx, err)
		next := time.NewTimer(cmp.Or(wait, l.Ticks.Until(l.Every)))
		select {
		case <-ctx.Done():
		case <-l.Wake:
		case <-next.C:
		}
		next.Stop()
	}
	return nil
}

// Hint tells a loop that work may wait. One that is not yet seen stands for all.
type Hint chan struct{}

// NewHint returns a hint that is not given.
func NewHint() Hint { return make(Hint, 1) }

// Notify gives the hint. It never blocks.
func (h Hint) Notify() {
	select {
	case h <- struct{}{}:
	default:
	}
}

// Sleep waits. It reports false if ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Batches runs batches of long work until one reports that no more is left. After each it pauses for as long as the batch took, so that the
// work uses at most half of a session.
func Batches(ctx context.Context, batch func() (more bool, err error)) error {
	for {
		began := time.Now()
		if more, err := batch(); err != nil || !more {
			return err
		}
		if !Sleep(ctx, time.Since(began)) {
			return ctx.Err()
		}
	}
}
