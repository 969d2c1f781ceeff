package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/projections/overview"
	"github.com/meterplex/meterplex/projections/state"
)

// SystemOverview reads GET /system/overview.
type SystemOverview struct {
	Watch   bool `help:"Show it again each second, until Ctrl-C."`
	History bool `help:"Include the last 15 minutes; not in the table."`
}

// Help returns the long help text.
func (SystemOverview) Help() string {
	return `Rates and freshness are of the instance that answers; outbox, consumers, balance check and attention are of the installation.

  meterplex system overview
  meterplex system overview --watch
  meterplex system overview -o json --history > overview.json`
}

// Run prints the overview once, or each second.
func (c *SystemOverview) Run(a *app.App) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	if !c.Watch {
		query := url.Values{}
		if c.History {
			query.Set("history", "true")
		}
		raw, err := cl.Get(a.Ctx, "/system/overview", query)
		if err != nil {
			return err
		}
		if a.Flags.Output != "table" {
			return a.Object(raw)
		}
		return printOverview(a, raw)
	}
	err = cl.Persist(a.Ctx, true, func(progress func()) error {
		return cl.Stream(a.Ctx, "/system/overview", nil, http.Header{"Accept": {"text/event-stream"}}, func(line string) error {
			data, found := strings.CutPrefix(line, "data: ")
			if !found {
				return nil
			}
			progress()
			return c.printFrame(a, json.RawMessage(data))
		})
	})
	if a.Ctx.Err() != nil {
		err = nil // Ctrl-C is the normal end
	}
	return err
}

// printFrame prints one event of the stream.
func (c *SystemOverview) printFrame(a *app.App, raw json.RawMessage) error {
	if a.Flags.Output == "table" {
		return printOverview(a, raw)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return fmt.Errorf("reading the overview: %w", err)
	}
	if !c.History {
		delete(members, "history")
	}
	raw, err := json.Marshal(members)
	return errors.Join(err, output.PrintCompact(a.Stdout, raw))
}

// printOverview prints an overview as text.
func printOverview(a *app.App, raw json.RawMessage) error {
	var o overview.Overview
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("reading the overview: %w", err)
	}
	r, in := o.Instance.PerSecond, &o.Installation
	a.Report("%s  instance %s: %.1f accepted, %.1f duplicates, %.1f conflicts, %.1f rejected per second.",
		o.At.Format("15:04:05Z"), o.Instance.ID, r.Accepted, r.Duplicates, r.Conflicts, r.Rejected)
	a.Report("Outbox: %d of %d events unpublished, the oldest for %.1f s. %s", in.Outbox.Unpublished, in.Outbox.Recorded,
		in.Outbox.OldestSeconds, identityText(in.Identity))
	p := a.Rows("consumer", "positions", "seconds", "p50Seconds", "p99Seconds")
	for _, c := range in.Consumers {
		row := map[string]any{"consumer": c.Name, "positions": c.Positions, "seconds": c.Seconds, "p50Seconds": nil, "p99Seconds": nil}
		for _, f := range o.Instance.Freshness {
			if f.Consumer == c.Name {
				row["p50Seconds"], row["p99Seconds"] = f.P50Seconds, f.P99Seconds
			}
		}
		text, err := json.Marshal(row)
		if err = errors.Join(err, p.Row(text)); err != nil {
			return err
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	return printAttention(a, o.Attention)
}

func identityText(i *state.Comparison) string {
	switch {
	case i == nil:
		return "The balance check was not made yet."
	case i.Holds:
		return fmt.Sprintf("The balance check holds, as of %.0f s ago.", i.AgeSeconds)
	}
	return fmt.Sprintf("The balance check does NOT hold, as of %.0f s ago: %d events are missing.", i.AgeSeconds, i.Missing)
}

func printAttention(a *app.App, list []overview.Attention) error {
	if len(list) == 0 {
		a.Report("No item needs attention.")
		return nil
	}
	p := a.Rows("kind", "subject", "count", "since", "path")
	for i := range list {
		text, err := json.Marshal(list[i])
		if err = errors.Join(err, p.Row(text)); err != nil {
			return err
		}
	}
	return p.Close()
}
