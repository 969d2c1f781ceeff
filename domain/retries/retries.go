// Package retries logs the failures of work that is retried until it succeeds: those of a start are debug.
package retries

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// quietStart is how long failures belong to a start: topics and groups are new to the broker, partitions are being assigned, tables are
// cold.
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

// Times of the further lines of a streak.
const (
	anotherAfter   = time.Minute      // a failure with another text
	sameAfter      = 10 * time.Minute // any failure
	forgottenAfter = time.Hour        // without a report: another instance may have ended the work
)

// Log logs the first failure of each streak, those with another text at most once a minute, one every ten minutes, and the end of the
// streak. Failures of the first 30 s are debug: of a streak that lasts longer, the first failure after them is logged.
type Log struct {
	logger        *slog.Logger
	level         slog.Level
	failed, works string
	start         Start

	mu      sync.Mutex
	streaks map[string]*streak // by the attributes of the work
}

// streak holds the last line of a streak, and the time of its last report.
type streak struct {
	level          slog.Level
	text           string
	logged, failed time.Time
}

// owes reports whether a failure of a streak is logged.
func (s *streak) owes(level slog.Level, text string, now time.Time) bool {
	quiet := now.Sub(s.logged)
	return s.level != level || level == slog.LevelDebug || quiet >= sameAfter || quiet >= anotherAfter && s.text != text
}

// New returns the log of work that begins now, with the text of a failure and the text of the first success after it (empty: not logged).
func New(logger *slog.Logger, level slog.Level, failed, works string) *Log {
	return &Log{logger: logger, level: level, failed: failed, works: works, start: Begin(), streaks: map[string]*streak{}}
}

// Report takes the result of an attempt at the work that the attributes name. The end of ctx is no failure.
func (l *Log) Report(ctx context.Context, err error, work ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil || err == nil && len(l.streaks) == 0 {
		return
	}
	key, level := fmt.Sprint(work...), l.start.Level(l.level)
	last, now := l.streaks[key], time.Now()
	if err == nil {
		delete(l.streaks, key)
		if last != nil && l.works != "" {
			l.logger.Log(ctx, min(last.level, slog.LevelInfo), l.works, work...)
		}
		return
	}
	text := err.Error()
	if last == nil || last.owes(level, text, now) {
		maps.DeleteFunc(l.streaks, func(_ string, s *streak) bool { return now.Sub(s.failed) >= forgottenAfter })
		last = &streak{level: level, text: text, logged: now}
		l.streaks[key] = last
		l.logger.Log(ctx, level, l.failed, append(work[:len(work):len(work)], "error", err)...)
	}
	last.failed = now
}
