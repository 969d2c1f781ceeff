package commands

import (
	"context"
	"log/slog"
	"time"
)

// RunEvery runs do at once, and again after each interval, until ctx ends. A failure is for the next run; the first of a series is logged, with the text.
func RunEvery(ctx context.Context, every time.Duration, logger *slog.Logger, failure string, do func(context.Context) error) error {
	failing := false
	for {
		err := do(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			logger.WarnContext(ctx, failure, "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
