package deadletters

import (
	"encoding/json"
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// A record that could not be read: the bytes on the topic are not the published ones.
// It is parked in no figure: its event, if any, was read from the log.
func foldParked(d *Row, e *events.Envelope) (*Row, error) {
	var r events.ParkedRecord
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return nil, fmt.Errorf("read a parked record: %w", err)
	}
	d.stage, d.code, d.reason = events.StagePublishing, r.Code, r.Reason
	d.topic, d.kafkaPartition, d.kafkaOffset = r.Topic, &r.KafkaPartition, nil
	if r.KafkaOffset >= 0 {
		d.kafkaOffset = &r.KafkaOffset
	}
	d.details.Consumer = e.Actor.ID
	if d.source = r.SourcePosition; d.source == 0 {
		d.source, d.payload = e.Position.Number, text(e.Payload)
	}
	return d, nil
}
