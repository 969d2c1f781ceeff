package child

import (
	"context"
	"errors"
	"time"
)

// ErrTryAgain wraps a launch failure that a retry may fix.
var ErrTryAgain = errors.New("try again")

// Retry repeats a launch while it fails with ErrTryAgain.
func Retry(ctx context.Context, launch func() error) error {
	for {
		err := launch()
		if !errors.Is(err, ErrTryAgain) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
