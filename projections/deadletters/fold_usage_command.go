package deadletters

import (
	"encoding/json"
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// foldRefused returns the dead letter of usage that was sent as a command and refused.
func foldRefused(d *Row, e *events.Envelope) (*Row, error) {
	var no events.RefusedUsage
	if err := json.Unmarshal(e.Payload, &no); err != nil {
		return nil, fmt.Errorf("read a refused command: %w", err)
	}
	d.stage, d.code, d.reason = events.StageIngestion, no.Code, no.Reason
	d.producerEventID, d.feature, d.source = no.EventID, no.Feature, e.Position.Number
	d.topic, d.payload, d.kafkaPartition = no.Topic, text(no.Payload), &no.KafkaPartition
	if no.KafkaOffset >= 0 {
		d.kafkaOffset = &no.KafkaOffset
	}
	return d, nil
}
