package prometheus

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// countRefusals counts the dead letters that are no failures: refusals.
func (m *Metrics) countRefusals(c *projections.Consumer, applied []events.Envelope) {
	if c.Topic != events.TopicUsageDeadLetter {
		return
	}
	for i := range applied {
		switch applied[i].Subject {
		case events.UsageRejected:
			m.deadLetter.WithLabelValues(events.TopicUsageRaw.Name(), events.StageValidation).Inc()
		case events.UsageConflicted:
			m.deadLetter.WithLabelValues(events.TopicUsageRaw.Name(), events.StageIngestion).Inc()
		case events.UsageRefused:
			m.deadLetter.WithLabelValues(events.TopicUsageCommands.Name(), events.StageIngestion).Inc()
		}
	}
}
