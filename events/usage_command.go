package events

import "encoding/json"

// RefusedUsage is the payload of UsageRefused: what came as a command on
// usage.commands and was not taken. Nobody waits for an answer there, so that the
// refusal is a dead letter of stage INGESTION.
type RefusedUsage struct {
	Code           string          `json:"code"`
	Reason         string          `json:"reason"`
	Pointer        string          `json:"pointer,omitempty"` // JSON pointer to the member at fault
	EventID        string          `json:"eventId,omitempty"` // the producer's, where a valid one could be read
	Feature        string          `json:"feature,omitempty"`
	MessageID      string          `json:"messageId"`
	Index          int             `json:"index"` // of the event in its message; -1: the message as a whole
	Topic          string          `json:"topic"`
	KafkaPartition int16           `json:"kafkaPartition"`
	KafkaOffset    int64           `json:"kafkaOffset"`       // -1 where the pipe has none
	Tenant         string          `json:"tenant,omitempty"`  // as the message named it, where that is no tenant
	Bytes          int             `json:"bytes"`             // of the message's value
	Payload        json.RawMessage `json:"payload,omitempty"` // what was refused, where it is JSON and small
}
