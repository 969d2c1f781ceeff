package prometheus

import (
	"context"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/events"
)

// lagEvery is how often the lag of messages is read from the pipe.
const lagEvery = 5 * time.Second

// createMessageSeries creates the series of the consumer of a topic that others write: it has no checkpoint, so
// that epochs, gaps and folds do not concern it.
func (m *Metrics) createMessageSeries(topic, consumer string) {
	for _, result := range []string{"ok", "noop", "error"} {
		m.consumed.WithLabelValues(topic, consumer, result)
	}
	m.createHandlerSeries(consumer)
	m.processing.WithLabelValues(consumer)
	m.skipped.WithLabelValues(consumer)
}

// UsageDecided counts the usage events of messages that got a verdict. Duplicates are those that were recorded before.
func (m *Metrics) UsageDecided(decided, duplicates int) {
	topic := events.TopicUsageCommands.Name()
	m.consumed.WithLabelValues(topic, events.GroupUsageCommands, "ok").Add(float64(decided - duplicates))
	m.consumed.WithLabelValues(topic, events.GroupUsageCommands, "noop").Add(float64(duplicates))
	m.skipped.WithLabelValues(events.GroupUsageCommands).Add(float64(duplicates))
}

// UsageMessages records a batch of messages; after an error the batch is delivered again.
func (m *Metrics) UsageMessages(took time.Duration, err error) {
	m.processing.WithLabelValues(events.GroupUsageCommands).Observe(took.Seconds())
	if err != nil {
		m.consumed.WithLabelValues(events.TopicUsageCommands.Name(), events.GroupUsageCommands, "error").Inc()
	}
}

// WatchUsageCommands reports the messages of each partition that the consumer has not passed, until ctx ends. While the
// pipe does not answer, the gauges keep their values.
func (m *Metrics) WatchUsageCommands(ctx context.Context, lag func(context.Context) (map[int16]int64, error)) error {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		bounded, stop := context.WithTimeout(ctx, lagEvery)
		behind, _ := lag(bounded)
		stop()
		for p, n := range behind {
			m.projected.lag.WithLabelValues(events.TopicUsageCommands.Name(), strconv.Itoa(int(p))).Set(float64(n))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
