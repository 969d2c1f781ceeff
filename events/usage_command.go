package events

import "encoding/json"

// RefusedUsage is the payload of UsageRefused: usage that came as a command on
// usage.commands and was refused. That topic has no responses, so the refusal becomes
// a dead letter of stage INGESTION.
type RefusedUsage struct {
	Code           string          `json:"code"`
	Reason         string          `json:"reason"`
	Pointer        string          `json:"pointer,omitempty"` // JSON pointer to the member at fault
	EventID        string          `json:"eventId,omitempty"` // the producer's, if a valid one could be read
	Feature        string          `json:"feature,omitempty"`
	MessageID      string          `json:"messageId"`
	Index          int             `json:"index"` // of the event in its message; -1: the message as a whole
	Topic          string          `json:"topic"`
	KafkaPartition int16           `json:"kafkaPartition"`
	KafkaOffset    int64           `json:"kafkaOffset"`       // -1 if the broker returns no offset
	Tenant         string          `json:"tenant,omitempty"`  // text from the message, if it names no known tenant
	Bytes          int             `json:"bytes"`             // size of the message's value
	Payload        json.RawMessage `json:"payload,omitempty"` // the refused usage, if it is JSON and small
}
