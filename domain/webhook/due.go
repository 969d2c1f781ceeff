package webhook

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// maxWebhookBody bounds the bytes of a request's body, as Standard Webhooks recommends. A larger event is sent without its members.
const maxWebhookBody = 20_000

// Due is a delivery that is sent now.
type Due struct {
	Delivery
	URL       string
	Operators bool // an operator set the URL
	Secrets   []string
	// Subject, OccurredAt, Trace and Payload are of the event; webhook.test has no event.
	Subject    events.Subject
	Trace      uuid.UUID // nil: no trace
	OccurredAt time.Time
	Payload    []byte
}

// Message is a request to a webhook.
type Message struct {
	URL       string
	Operators bool // an operator set the URL
	EventID   uuid.UUID
	Trace     uuid.UUID // of the event; nil: no trace
	Body      []byte
	Secrets   []string
	At        time.Time
}

// Message returns the request of an attempt at a time. Its body has the same bytes in each attempt.
func (d *Due) Message(at time.Time) (Message, error) {
	body, err := d.body()
	return Message{URL: d.URL, Operators: d.Operators, EventID: d.EventID, Trace: d.Trace, Body: body, Secrets: d.Secrets, At: at}, err
}

// webhookBody is the body of a request.
type webhookBody struct {
	Type      string           `json:"type"`
	ID        uuid.UUID        `json:"id"`
	TenantID  uuid.UUID        `json:"tenantId"`
	Subject   *string          `json:"subject"`
	Position  *events.Position `json:"position"`
	Timestamp time.Time        `json:"timestamp"`
	Truncated bool             `json:"truncated,omitempty"` // data is too large: read the event by its id
	Data      json.RawMessage  `json:"data"`
}

func (d *Due) body() ([]byte, error) {
	b := webhookBody{Type: d.Type, ID: d.EventID, TenantID: d.TenantID, Position: d.Position, Timestamp: d.OccurredAt.UTC(),
		Data: d.Payload}
	if d.Position == nil {
		b.Timestamp, b.Data = d.CreatedAt.UTC(), json.RawMessage(`{"webhookId":"`+d.WebhookID.String()+`"}`)
	} else {
		info, known := d.Subject.Info()
		if !known {
			return nil, fmt.Errorf("the subject %d of the event %s is unknown", d.Subject, d.EventID)
		}
		name := info.Name()
		b.Subject = &name
	}
	if d.Type == UsageRefused {
		notices, err := RefusalNotices(d.TenantID, d.Payload)
		if err == nil {
			b.Data, err = json.Marshal(notices[d.EventID])
		}
		if err != nil {
			return nil, err
		}
	}
	body, err := json.Marshal(b)
	if err == nil && len(body) > maxWebhookBody {
		b.Truncated, b.Data = true, nil
		body, err = json.Marshal(b)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the event %s for a webhook: %w", d.EventID, err)
	}
	return body, nil
}

// wired is an envelope of the log, as far as deliveries need it.
type wired struct {
	EventID       uuid.UUID
	EventType     string
	EventVersion  int
	TenantID      string // platform: of no tenant
	Position      events.Position
	CorrelationID uuid.UUID
	OccurredAt    time.Time
	Payload       json.RawMessage
}

// DueOf returns the deliveries that an envelope of the log is, to a webhook of all types. It knows the event alone: an adjustment of a
// period that was reopened meanwhile is among them, and that of a retried dead letter is not.
func DueOf(envelope []byte) (list []Due, err error) {
	var e wired
	if err := json.Unmarshal(envelope, &e); err != nil {
		return nil, fmt.Errorf("reading an event: %w", err)
	}
	d := Due{Delivery: Delivery{EventID: e.EventID, Position: &e.Position}, Trace: e.CorrelationID, OccurredAt: e.OccurredAt,
		Payload: e.Payload}
	d.Subject, _ = events.SubjectOf(e.EventType, e.EventVersion)
	if d.Type, err = typeOf(d.Subject, d.Payload); err != nil || d.Type == "" {
		return nil, err
	}
	if d.TenantID, err = uuid.Parse(e.TenantID); err != nil {
		return nil, fmt.Errorf("reading the tenant of the event %s: %w", e.EventID, err)
	}
	if d.Type != UsageRefused {
		return []Due{d}, nil
	}
	notices, err := RefusalNotices(d.TenantID, d.Payload)
	for id := range notices {
		d.EventID = id
		list = append(list, d)
	}
	return list, err
}

// typeOf returns the type of an event by its subject and payload, "" without one.
func typeOf(s events.Subject, payload []byte) (string, error) {
	switch s {
	case 0:
		return "", nil
	case events.AdjustmentProposed:
		return AdjustmentPending, nil
	case events.UsageValidated:
		var v struct{ Late *events.Late }
		if err := json.Unmarshal(payload, &v); err != nil || v.Late == nil {
			return "", err
		}
		return AdjustmentPending, nil
	}
	for _, t := range selectable {
		if t.subject == s {
			return t.kind, nil
		}
	}
	return "", nil
}
