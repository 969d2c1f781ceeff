package main

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
	maxBatch      = 1000
	maxBatchBytes = 4<<20 - 4<<10
)

// verdict is the service's decision on one event.
type verdict struct {
	Index    int     `json:"index"`
	EventID  *string `json:"eventId"`
	Status   string  `json:"status"` // accepted, duplicate, conflict or rejected
	Code     string  `json:"code,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Pointer  string  `json:"pointer,omitempty"`
	Position string  `json:"position,omitempty"`
}

// good reports whether the event is counted.
func (v *verdict) good() bool { return v.Status == "accepted" || v.Status == "duplicate" }

// batch holds the JSON of events to be sent together.
type batch struct {
	events [][]byte
	bytes  int
}

func (b *batch) full(next, most int) bool {
	return len(b.events) > 0 && (len(b.events) >= most || b.bytes+next+1 > maxBatchBytes)
}

func (b *batch) add(event []byte) {
	b.events = append(b.events, event)
	b.bytes += len(event) + 1
}

// ingest sends the events until each has a verdict. Retries are safe: an event that
// was already recorded is a duplicate.
func (c *client) ingest(ctx context.Context, events [][]byte) ([]verdict, error) {
	body := append([]byte(`{"events":[`), bytes.Join(events, []byte(","))...)
	raw, err := c.do(ctx, request{method: http.MethodPost, path: "/usage/events", body: append(body, "]}"...)})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Events []verdict `json:"events"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("read the verdicts: %w", err)
	}
	if len(answer.Events) != len(events) {
		return nil, fmt.Errorf("%d events were sent and %d verdicts came back: send them again", len(events), len(answer.Events))
	}
	return answer.Events, nil
}

// newEventID returns a random id for an event without a natural one.
func newEventID() string { return "cli_" + rand.Text() }
