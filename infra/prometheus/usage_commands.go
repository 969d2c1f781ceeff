package prometheus

import (
	"time"

	"github.com/meterplex/meterplex/events"
)

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
