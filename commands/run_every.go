package commands

import (
	"context"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/domain/retries"
)

// RunEvery runs do at once, and again after each interval, until ctx ends. A failure is for the next run; package retries logs it, with the
// text.
func RunEvery(ctx context.Context, every time.Duration, logger *slog.Logger, failure string, do func(context.Context) error) error {
	log := retries.New(logger, slog.LevelWarn, failure, "")
	for {
		log.Report(ctx, do(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
