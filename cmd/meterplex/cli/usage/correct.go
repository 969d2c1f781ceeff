package usage

import (
	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/events"
)

// Corrects holds the arguments of a correction and of a retraction.
type Corrects struct {
	Target  string `arg:"" name:"event" help:"The event id of the usage."`
	Feature string `required:"" placeholder:"KEY" help:"The feature of the usage."`

	EventID   string            `placeholder:"ID" help:"The correction's id: a repeat counts once. Not given: a new one, which is printed."`
	Timestamp string            `placeholder:"TIME" help:"Time at which the correction was made, RFC 3339. Not given: now."`
	Metadata  map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"Text kept with the correction; may be repeated."`
}

// Send sends the correction and prints the verdict.
func (c *Corrects) Send(a *app.App, kind string, amount *int64) error {
	one := Send{Feature: c.Feature, Amount: amount, EventID: c.EventID, Timestamp: c.Timestamp, Metadata: c.Metadata, Type: kind,
		CorrectionRef: c.Target}
	return one.Run(a)
}

// Correct replaces the amount of recorded usage.
type Correct struct {
	Corrects
	Amount *int64 `required:"" placeholder:"N" help:"The new amount, 0 or more."`
}

// Help returns the long help text.
func (Correct) Help() string {
	return `The amount of an event becomes 7, in the period of that event:

    meterplex usage correct evt_1 --feature api_calls --amount 7 --event-id fix_1

An event can be corrected again: each correction gives the whole amount. Exit code 1 where the correction is refused.`
}

// Run prints the verdict.
func (c *Correct) Run(a *app.App) error { return c.Send(a, events.TypeCorrection, c.Amount) }

// Retract takes recorded usage back.
type Retract struct {
	Corrects
}

// Help returns the long help text.
func (Retract) Help() string {
	return `The event no longer counts, neither its amount nor the event itself. That is final: it cannot be corrected afterwards.

    meterplex usage retract evt_1 --feature api_calls --event-id undo_1

Exit code 1 where the retraction is refused.`
}

// Run prints the verdict.
func (c *Retract) Run(a *app.App) error { return c.Send(a, events.TypeRetraction, nil) }
