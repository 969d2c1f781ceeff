package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
)

// Bounds of a batch: the service accepts 1,000 events and 4 MiB, including the JSON
// around the events.
const (
	MaxBatch      = 1000
	maxBatchBytes = 4<<20 - 4<<10
)

// Verdict is the service's decision on one event.
type Verdict struct {
	Index    int     `json:"index"`
	EventID  *string `json:"eventId"`
	Status   string  `json:"status"` // accepted, duplicate, conflict or rejected
	Code     string  `json:"code,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Pointer  string  `json:"pointer,omitempty"`
	Position string  `json:"position,omitempty"`
}

// Good reports whether the event is counted.
func (v *Verdict) Good() bool { return v.Status == "accepted" || v.Status == "duplicate" }

// Batch holds the JSON of events to be sent together.
type Batch struct {
	Events [][]byte
	bytes  int
}

// Full reports whether an event of next bytes exceeds the bounds, or the batch has most events.
func (b *Batch) Full(next, most int) bool {
	return len(b.Events) > 0 && (len(b.Events) >= most || b.bytes+next+1 > maxBatchBytes)
}

// Add appends the JSON of an event.
func (b *Batch) Add(event []byte) {
	b.Events = append(b.Events, event)
	b.bytes += len(event) + 1
}

// Ingest sends the events until each has a verdict. Retries are safe: an event that
// was already recorded is a duplicate.
func (c *Client) Ingest(ctx context.Context, events [][]byte) ([]Verdict, error) {
	body := append([]byte(`{"events":[`), bytes.Join(events, []byte(","))...)
	raw, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/usage/events", Body: append(body, "]}"...)})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Events []Verdict `json:"events"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	if len(answer.Events) != len(events) {
		return nil, fmt.Errorf("%d events were sent and %d results came back: send them again", len(events), len(answer.Events))
	}
	return answer.Events, nil
}

// NewEventID returns a random id for an event without a natural one.
func NewEventID() string { return "cli_" + rand.Text() }
