package meterplex

import (
	"context"
	"errors"
)

// Tokens are the tokens that a call of a language model reports.
type Tokens struct {
	Input, Output int64
}

// LLM records the tokens of calls of a language model as two features.
type LLM struct {
	Client        *Client
	Input, Output string         // features, e.g. "input_tokens" and "output_tokens"; "" is not recorded
	Metadata      map[string]any // of each event, e.g. the model
}

// Call calls a model and records the tokens that it reports, also if it fails after it has used some. The id identifies the call: its
// events are <id>-input and <id>-output, so that a call that is recorded twice counts once; "": a random one.
//
// The error is that of call, or of Record if the tokens could not be stored.
func (l *LLM) Call(ctx context.Context, id string, call func(context.Context) (Tokens, error)) error {
	if id == "" {
		id = newID()
	}
	used, failed := call(ctx)
	var events []Event
	if used.Input > 0 && l.Input != "" {
		events = append(events, Event{EventID: id + "-input", Feature: l.Input, Amount: used.Input, Metadata: l.Metadata})
	}
	if used.Output > 0 && l.Output != "" {
		events = append(events, Event{EventID: id + "-output", Feature: l.Output, Amount: used.Output, Metadata: l.Metadata})
	}
	if len(events) == 0 {
		return failed
	}
	// The tokens are used even if the caller has given up by now.
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if _, err := l.Client.RecordMany(recording, events); err != nil {
		return errors.Join(failed, err)
	}
	return failed
}
