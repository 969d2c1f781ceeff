// Package retries logs the failures of work that is retried until it succeeds: those of a start are debug.
package retries

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// quietStart is how long failures belong to a start: topics and groups are new to the broker, partitions are being assigned, tables are cold.
const quietStart = 30 * time.Second

// Start is the time at which work began. The zero value began long ago.
type Start struct{ at time.Time }

// Begin returns the start of work that begins now.
func Begin() Start { return Start{time.Now()} }

// Level is the level of a failure: debug in the first 30 s.
func (s Start) Level(later slog.Level) slog.Level {
	if time.Since(s.at) < quietStart {
		return slog.LevelDebug
	}
	return later
}

// Log logs the first failure of each streak, and the end of the streak. Failures of the first 30 s are debug: of a streak that lasts longer,
// the first failure after them is logged.
type Log struct {
	logger        *slog.Logger
	level         slog.Level
	failed, works string
	start         Start

	mu      sync.Mutex
	streaks map[string]slog.Level // the level of the last line, by the attributes of the work
}

// New returns the log of work that begins now, with the text of a failure and the text of the first success after it (empty: not logged).
func New(logger *slog.Logger, level slog.Level, failed, works string) *Log {
	return &Log{logger: logger, level: level, failed: failed, works: works, start: Begin(), streaks: map[string]slog.Level{}}
}

// Report takes the result of an attempt at the work that the attributes name. The end of ctx is no failure.
func (l *Log) Report(ctx context.Context, err error, work ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil || err == nil && len(l.streaks) == 0 {
		return
	}
	key, level := fmt.Sprint(work...), l.start.Level(l.level)
	last, failing := l.streaks[key]
	switch {
	case err == nil:
		delete(l.streaks, key)
		if failing && l.works != "" {
			l.logger.Log(ctx, min(last, slog.LevelInfo), l.works, work...)
		}
	case !failing || last != level || level == slog.LevelDebug:
		l.streaks[key] = level
		l.logger.Log(ctx, level, l.failed, append(work[:len(work):len(work)], "error", err)...)
	}
}
