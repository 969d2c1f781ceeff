// Package watermill is what the project adds to the library of that name: the
// router that every role runs on, the two ways between messages and records, the
// delivery of batches that the pipes share, and the error by which a publisher
// says which records failed.
//
// It has no poison queue and no bounded retry: an outage would dead-letter
// hundreds of good events. It knows no broker and no database.
package watermill

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
)

// DefaultCloseTimeout is longer than a consumer's longest transaction.
const DefaultCloseTimeout = 30 * time.Second

// Observe is told of each message that a handler had: how long it took, and
// the error that sends it again, nil where it was acknowledged.
type Observe func(handler string, d time.Duration, err error)

// Trace is called before each message. The context that it gives is the
// handler's; the function is called with the handler's error at the end.
type Trace func(ctx context.Context, handler, message string) (context.Context, func(error))

// Option changes a router.
type Option func(*settings)

type settings struct {
	closeTimeout time.Duration
	trace        Trace
}

// CloseTimeout bounds how long Close waits for handlers in flight.
func CloseTimeout(d time.Duration) Option { return func(s *settings) { s.closeTimeout = d } }

// Traced puts a trace around each message.
func Traced(t Trace) Option { return func(s *settings) { s.trace = t } }

// NewRouter makes a router. Close stops the intake, waits for the handlers in
// flight and gives up after the close timeout. A nil logger is slog.Default, a
// nil observe is nothing.
func NewRouter(logger *slog.Logger, observe func(handler string, d time.Duration, err error), opts ...Option) (*message.Router, error) {
	s := settings{closeTimeout: DefaultCloseTimeout}
	for _, o := range opts {
		o(&s)
	}
	if logger == nil {
		logger = slog.Default()
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: s.closeTimeout}, Logger(logger))
	if err != nil {
		return nil, fmt.Errorf("make a router: %w", err)
	}
	router.AddMiddleware(newSettle(logger).middleware)
	if observe != nil {
		router.AddMiddleware(observed(observe))
	}
	if s.trace != nil {
		router.AddMiddleware(traced(s.trace))
	}
	router.AddMiddleware(recovered)
	return router, nil
}

// A consumer's transaction costs about the same for one record as for a hundred. A
// batch of fewer than fullBatch records is acknowledged no sooner than batchPace
// after it came, so that what arrives meanwhile makes the next one larger. Each
// millisecond of it costs freshness five (two consumers, out of step with the
// relay), and saves some 30 µs of each event at a thousand single ones a second.
const (
	fullBatch = 100
	batchPace = 3 * time.Millisecond
)

// AddConsumer adds a handler that gets the records of each batch. An error sends
// the same batch again, for ever, after a pause that grows from 50 ms to 5 s.
func AddConsumer(router *message.Router, name, topic string, sub message.Subscriber, process func(ctx context.Context, records []events.Record) error) {
	router.AddConsumerHandler(name, topic, sub, func(msg *message.Message) error {
		records, err := Records(msg)
		if err != nil {
			return err
		}
		came := time.Now()
		err = process(msg.Context(), records)
		if err == nil && len(records) < fullBatch {
			sleep(msg.Context(), batchPace-time.Since(came))
		}
		return err
	})
}

// Logger makes the library write to slog. What it calls information (handlers
// that start and stop) is of interest only when something is looked for.
func Logger(logger *slog.Logger) wm.LoggerAdapter {
	return wm.NewSlogLoggerWithLevelMapping(logger, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
}

// recovered makes an error of a panic. The library's own would bring in every
// middleware's dependencies.
func recovered(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		return h(msg)
	}
}

func observed(observe Observe) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			start := time.Now()
			out, err := h(msg)
			observe(message.HandlerNameFromCtx(msg.Context()), time.Since(start), err)
			return out, err
		}
	}
}

func traced(trace Trace) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, end := trace(msg.Context(), message.HandlerNameFromCtx(msg.Context()), msg.UUID)
			msg.SetContext(ctx)
			out, err := h(msg)
			end(err)
			return out, err
		}
	}
}
