package pgpipe

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"

	"github.com/meterplex/meterplex/domain/retries"
)

// polling sets the pause between a subscription's polls. It logs failures.
type polling struct {
	ctx          context.Context // ends with the session of the subscription that polls
	reads        *retries.Log
	topic, group string
	interval     time.Duration // after a poll that may be repeated at once
	idle         time.Duration // the longest pause while no rows arrive

	arrivals *Arrivals       // nil without
	arrival  <-chan struct{} // closed if rows arrived since before the last poll
	pause    time.Duration   // the present one between empty polls
}

func newPolling(cfg *SubscriberConfig, topic string) *polling {
	p := &polling{reads: retries.New(cfg.Logger, slog.LevelWarn, "reading the pipe fails; will retry", "reading the pipe works again"),
		topic: topic, group: cfg.Group, interval: cfg.PollInterval, arrivals: cfg.Arrivals}
	if p.pause, p.idle = p.interval, p.interval; p.arrivals != nil {
		p.idle, p.arrival = max(p.interval, cfg.IdleInterval), p.arrivals.of(topic)
	}
	return p
}

// HandleError implements watermill-sql's interface: it returns the pause before the next poll.
func (p *polling) HandleError(_ wm.LoggerAdapter, empty bool, err error) time.Duration {
	switch {
	case err == nil:
		p.reads.Report(context.Background(), nil, "topic", p.topic, "group", p.group)
		if empty {
			return p.await()
		}
		p.pause = p.interval
		return 0
	case errors.Is(err, context.Canceled):
		return p.interval
	case strings.Contains(err.Error(), "could not serialize access"):
		return p.interval // another member of the group was faster
	}
	p.reads.Report(context.Background(), err, "topic", p.topic, "group", p.group)
	return retryPause
}

// await waits after an empty poll until rows arrive, for the interval at least, so that the rows of a
// moment are read together. Each pause is twice as long as the last one, up to idle: rows that an open
// transaction hides are read after it for as long, at most, as they were hidden, and those of other processes
// after idle.
func (p *polling) await() time.Duration {
	if p.idle == p.interval {
		return p.interval
	}
	began := time.Now()
	timer := time.NewTimer(p.pause)
	defer timer.Stop()
	select {
	case <-p.arrival:
		p.pause, p.arrival = p.interval, p.arrivals.of(p.topic)
		return max(p.interval-time.Since(began), 0)
	case <-timer.C:
		p.pause = min(2*p.pause, p.idle)
		return 0
	case <-p.ctx.Done():
		return p.interval
	}
}
