package prometheus

import (
	"encoding/json"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// countRefusals counts the dead letters that are not failures of a fold: refusals, and records that could
// not be decoded. The dead letter handler is the first to see the latter.
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
		case events.RecordParked:
			m.deadLetter.WithLabelValues(parkedOn(&applied[i]), events.StagePublishing).Inc()
		}
	}
}

// parkedOn returns the topic of a record that could not be decoded.
func parkedOn(e *events.Envelope) string {
	var parked events.ParkedRecord
	_ = json.Unmarshal(e.Payload, &parked) // on failure, the fold reports it
	if topic, known := events.TopicOf(parked.Topic); known {
		return topic.Name()
	}
	return e.Subject.Topic().Name()
}
