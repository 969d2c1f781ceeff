// Package watermill holds the parts that every pipe and consumer adds to the library Watermill: the router,
// the conversion between messages and records, publishing by topic, the delivery of batches, a subscriber
// that reads the event log, and the error that names the failed records of a publish.
//
// The router repeats a failed message until it succeeds. It has no poison queue and no limit of attempts: in
// an outage they would turn hundreds of valid events into dead letters. The package depends on no broker and
// no database.
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

// Observe is called after each message with its duration and error. After an error the message is sent
// again; nil means acknowledged.
type Observe func(handler string, d time.Duration, err error)

// Option configures a router.
type Option func(*settings)

type settings struct {
	closeTimeout time.Duration
	trace        Trace
}

// Trace begins the span of a handler's batch, and returns the function that ends it.
type Trace func(ctx context.Context, handler string, records []events.Record) (context.Context, func(error))

// Traced makes the router trace its batches. A message that holds no records has no span: its handler finds the events.
func Traced(t Trace) Option { return func(s *settings) { s.trace = t } }

// CloseTimeout bounds how long Close waits for handlers in flight.
func CloseTimeout(d time.Duration) Option { return func(s *settings) { s.closeTimeout = d } }

// NewRouter returns a router. Close stops the intake and waits for the handlers in flight, at most for
// the close timeout. A nil logger is slog.Default; observe may be nil.
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
		return nil, fmt.Errorf("create a router: %w", err)
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

// A consumer's transaction costs about the same for one record as for a hundred. After a batch of fewer than
// fullBatch records a consumer rests as long as it worked, from minRest to maxRest, so that records that
// arrive meanwhile enlarge the next batch: the busier the machine, the larger the batches.
const (
	fullBatch   = 250
	manyRecords = 25
	minRest     = 2 * time.Millisecond
	maxRest     = 50 * time.Millisecond
)

// rest pauses after work on some records, since it began.
func rest(ctx context.Context, records int, began time.Time) {
	worked := time.Since(began)
	switch {
	case records >= fullBatch:
		return
	case records >= manyRecords:
		worked *= 3
	}
	sleep(ctx, min(max(worked, minRest), maxRest))
}

// AddConsumer adds a handler that receives the records of each batch. After an error the same batch is
// sent again, without a limit, after a pause that grows from 50 ms to 5 s.
func AddConsumer(router *message.Router, name, topic string, sub message.Subscriber,
	process func(ctx context.Context, records []events.Record) error) {
	router.AddConsumerHandler(name, topic, sub, func(msg *message.Message) error {
		records, err := Records(msg)
		if err != nil {
			return err
		}
		arrived := time.Now()
		err = process(msg.Context(), records)
		endSpan(msg.Context(), err)
		if err == nil {
			rest(msg.Context(), len(records), arrived)
		}
		return err
	})
}

// Logger makes the library log to slog. Its info messages, about handlers that start and stop, are logged
// at debug level.
func Logger(logger *slog.Logger) wm.LoggerAdapter {
	return wm.NewSlogLoggerWithLevelMapping(logger, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
}

// recovered converts a panic to an error. The library's own middleware would add the dependencies of all
// its middlewares.
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

type spanKey struct{}

// traced surrounds a handler with the span of its batch. The rest after a batch is not part of it.
func traced(begin Trace) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			ctx := msg.Context()
			records, err := Records(msg)
			if err != nil || len(records) == 0 {
				return h(msg)
			}
			spanned, end := begin(ctx, message.HandlerNameFromCtx(ctx), records)
			ended := false
			once := func(err error) {
				if !ended {
					ended = true
					end(err)
				}
			}
			msg.SetContext(context.WithValue(spanned, spanKey{}, once))
			defer func() {
				msg.SetContext(ctx)
				once(err)
			}()
			return h(msg)
		}
	}
}

// endSpan ends the span of a batch before its handler returns.
func endSpan(ctx context.Context, err error) {
	if end, ok := ctx.Value(spanKey{}).(func(error)); ok {
		end(err)
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
