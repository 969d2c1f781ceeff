package usage

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// Send sends events.
type Send struct {
	Feature string `arg:"" optional:"" help:"The feature's lookup key. Not given: events are read from stdin."`
	Amount  *int64 `arg:"" optional:"" help:"How much was used."`

	EventID       string            `placeholder:"ID" help:"The event's id: a repeat counts once. Not given: a new one, which is printed."`
	Timestamp     string            `placeholder:"TIME" help:"Time of the usage, RFC 3339. Not given: now."`
	Metadata      map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"Text kept with the event; may be repeated."`
	Type          string            `enum:"usage,correction,retraction" default:"usage" placeholder:"TYPE" help:"usage (default), correction or retraction."`
	CorrectionRef string            `placeholder:"ID" help:"The id of the event that a correction or retraction is about."`
}

// Help returns the long help text.
func (Send) Help() string {
	return `With no argument, stdin holds one JSON object for each line, as POST /usage/events takes them:

    {"eventId":"evt_1","feature":"api_calls","amount":1,"timestamp":"2026-05-04T10:00:00Z"}

They are sent in batches of up to 1,000, in their order. The result of each is printed; its index is the event's number from 0. Exit
code 1 if one is neither accepted nor a duplicate.`
}

// Run prints the verdicts.
func (c *Send) Run(a *app.App) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	s := &sending{app: a, client: cl, codes: map[string]int{}, out: a.Rows("index", "eventId", "status", "code", "reason", "position")}
	if c.Feature == "" {
		err = s.lines()
	} else {
		err = s.one(c)
	}
	if e := s.out.Close(); err == nil {
		err = e
	}
	if s.bad > 0 {
		s.Complain()
	}
	if err == nil && s.bad > 0 {
		return app.ErrNo
	}
	return err
}

// Complain prints the number of refused events and the remedy of each code: 202 hides both.
func (s *sending) Complain() {
	s.app.Report("%d of %d events are NOT recorded:", s.bad, s.sent)
	for _, code := range slices.Sorted(maps.Keys(s.codes)) {
		s.app.Report("  %s (%d): %s", output.Printable(code), s.codes[code], client.Remedy(code))
	}
}

func (c *Send) event(id string, now time.Time) ([]byte, error) {
	if c.EventID != "" {
		id = c.EventID
	}
	if c.Timestamp == "" {
		c.Timestamp = now.UTC().Format(time.RFC3339Nano)
	}
	return json.Marshal(struct {
		EventID       string            `json:"eventId"`
		Feature       string            `json:"feature"`
		Amount        *int64            `json:"amount,omitempty"`
		Timestamp     string            `json:"timestamp"`
		Metadata      map[string]string `json:"metadata,omitempty"`
		Type          string            `json:"type"`
		CorrectionRef string            `json:"correctionRef,omitempty"`
	}{id, c.Feature, c.Amount, c.Timestamp, c.Metadata, c.Type, c.CorrectionRef})
}

// sending sends events in batches and prints the verdicts.
type sending struct {
	app    *app.App
	client *client.Client
	out    *output.Rows
	batch  client.Batch
	sent   int
	bad    int
	codes  map[string]int // refused events by code
}

func (s *sending) one(c *Send) error {
	event, err := c.event(client.NewEventID(), s.app.Now())
	if err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	s.batch.Add(event)
	return s.flush()
}

// lines sends each line unchanged: decoding and encoding it could change its
// numbers.
func (s *sending) lines() error {
	in := bufio.NewScanner(s.app.Stdin)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := bytes.TrimSpace(in.Bytes())
		if len(line) == 0 {
			continue
		}
		if !utf8.Valid(line) || !json.Valid(line) {
			return errors.Join(fmt.Errorf("line %d is not JSON; the lines before it were sent", n), s.flush())
		}
		if s.batch.Full(len(line), client.MaxBatch) {
			if err := s.flush(); err != nil {
				return err
			}
		}
		s.batch.Add(bytes.Clone(line))
	}
	if err := in.Err(); err != nil {
		return errors.Join(fmt.Errorf("read stdin: %w", err), s.flush())
	}
	return s.flush()
}

func (s *sending) flush() error {
	if len(s.batch.Events) == 0 {
		return nil
	}
	verdicts, err := s.client.Ingest(s.app.Ctx, s.batch.Events)
	if err != nil {
		return err
	}
	s.batch = client.Batch{}
	for _, v := range verdicts {
		v.Index = s.sent
		s.sent++
		if !v.Good() {
			s.bad++
			s.codes[v.Code]++
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
		if err := s.out.Row(raw); err != nil {
			return err
		}
	}
	return nil
}
