package meterplex

import (
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"os"
	"slices"
	"time"
)

// Rejection is an event that the service did not count.
type Rejection struct {
	Event   Event
	Verdict Verdict
	At      time.Time // of the verdict
}

// rejectedFile is the content of rejected/<name>.json.
type rejectedFile struct {
	Event  json.RawMessage `json:"event"`
	Status string          `json:"status"`
	Code   string          `json:"code"`
	Reason string          `json:"reason"`
	Remedy string          `json:"remedy"`
	At     time.Time       `json:"at"`
}

// damagedFile returns the content of damaged/event-<name>.json. An event that is no JSON is a text there.
func damagedFile(event []byte, refusal *Error) []byte {
	if !json.Valid(event) {
		event, _ = json.Marshal(string(event))
	}
	b, _ := json.Marshal(struct {
		Event   json.RawMessage `json:"event"`
		Problem json.RawMessage `json:"problem"`
		At      time.Time       `json:"at"`
	}{event, refusal.JSON, cut(time.Now())})
	return b
}

func (c *Client) keepRejected(event []byte, v *Verdict) error {
	at := cut(time.Now())
	if c.dir == nil {
		r := Rejection{Verdict: *v, At: at}
		_ = json.Unmarshal(event, &r.Event)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rejected = append(c.rejected, r)
		c.rejectedBytes += int64(len(event))
		return nil
	}
	b, err := json.Marshal(rejectedFile{event, v.Status, v.Code, v.Reason, v.Remedy, at})
	if err != nil {
		return err
	}
	return c.dir.KeepRejected(v.EventID, event, b)
}

// Rejected returns the events that the service did not count and that are not acknowledged, also of earlier clients of the directory.
func (c *Client) Rejected() iter.Seq2[Rejection, error] {
	if c.dir == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		all := slices.Clone(c.rejected)
		return func(yield func(Rejection, error) bool) {
			for _, r := range all {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
	return func(yield func(Rejection, error) bool) {
		paths, err := c.dir.Rejected()
		if err != nil {
			yield(Rejection{}, newError("queue_failed", err, "The rejected events cannot be listed"))
			return
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // acknowledged meanwhile
			}
			var f rejectedFile
			r := Rejection{}
			if err == nil {
				err = json.Unmarshal(b, &f)
			}
			if err == nil {
				err = json.Unmarshal(f.Event, &r.Event)
			}
			if err != nil {
				err = newError("queue_failed", err, "%s cannot be read", path)
			}
			r.At, r.Verdict = f.At, Verdict{EventID: r.Event.EventID, Status: f.Status, Code: f.Code, Reason: f.Reason, Remedy: f.Remedy}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Acknowledge removes events from Rejected.
func (c *Client) Acknowledge(eventIDs ...string) error {
	if c.dir == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rejected = slices.DeleteFunc(c.rejected, func(r Rejection) bool {
			known := slices.Contains(eventIDs, r.Event.EventID)
			if event, err := r.Event.Canonical(); known && err == nil {
				c.rejectedBytes -= int64(len(event))
			}
			return known
		})
		c.wakeWriter.send()
		return nil
	}
	if err := c.dir.Acknowledge(eventIDs); err != nil {
		return newError("queue_failed", err, "Rejected events cannot be removed")
	}
	return nil
}
