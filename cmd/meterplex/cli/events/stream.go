package events

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/audit"
)

// Tail follows the log.
type Tail struct {
	WantedEvents
	Follow bool `short:"f" help:"Continue with new events, until Ctrl-C."`
	Lines  int  `short:"n" default:"10" placeholder:"N" help:"Begin with the newest N, up to 1000 (default 10)."`
}

// Run prints events as they arrive. After a broken connection it resumes at the last event.
func (c *Tail) Run(a *app.App) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	q := c.query()
	q.Set("follow", strconv.FormatBool(c.Follow))
	if c.Lines > 0 {
		q.Set("last", strconv.Itoa(c.Lines))
	}
	printer := a.Rows("position", "recordedAt", "eventType", "tenantId", "eventId")
	print := printer.Row
	if c.Follow && a.Flags.Output != "csv" { // a table or an array would wait for an end
		print = func(raw json.RawMessage) error { return printEvent(a, raw) }
	}
	_, err = cl.Follow(a.Ctx, "/events/stream", q, "", c.Follow, print)
	if !c.Follow {
		err = errors.Join(err, printer.Close())
	}
	return err
}

// printEvent prints one event immediately.
func printEvent(a *app.App, raw json.RawMessage) error {
	if a.Flags.Output != "table" {
		return output.PrintCompact(a.Stdout, raw)
	}
	members, err := output.ParseMembers(raw)
	if err != nil {
		return err
	}
	at := func(name string) string { return output.Cell(members.Find(name), "table") }
	_, err = fmt.Fprintf(a.Stdout, "%-12s %-27s %-44s %s\n", at("position"), at("recordedAt"), at("eventType"), at("payload"))
	return err
}

// Export exports events.
type Export struct {
	BoundedEvents
	Resume string `placeholder:"FILE" help:"Continue a file that holds an earlier export: the events that it lacks are appended."`
}

// Help returns the long help text.
func (Export) Help() string {
	return `Each line is an event as it is on the wire, by partition and position. A broken connection is resumed at the next event.

  meterplex events export > log.ndjson
  meterplex events export --resume log.ndjson    # later: the rest, with the same filters

Exit code 0: every event is there that was in the log when the command began.`
}

// Run writes the lines.
func (c *Export) Run(a *app.App) error {
	return c.Write(a, func(line string) (string, error) { return line, nil })
}

// Write writes the events in a form, which leaves out those that it makes empty.
func (c *Export) Write(a *app.App, form func(line string) (string, error)) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	e := exporter{to: bufio.NewWriterSize(a.Stdout, 1<<16), form: form}
	if c.Resume != "" {
		if c.After != "" {
			return fmt.Errorf("--resume FILE gives the place to continue from; --after is not needed")
		}
		file, err := e.resume(c.Resume)
		if err != nil {
			return err
		}
		defer file.Close()
	} else if c.After != "" {
		if e.frontier, err = audit.ParseFrontier(c.After); err != nil {
			return fmt.Errorf("--after: %w", err)
		}
	}
	err = cl.Persist(a.Ctx, false, func(progress func()) error {
		q := c.query()
		if e.frontier != (audit.Frontier{}) {
			q.Set("after", e.frontier.String())
		}
		return cl.Stream(a.Ctx, "/events/export", q, nil, func(line string) error {
			progress()
			return e.Write(line)
		})
	})
	if err = errors.Join(err, e.to.Flush()); err == nil {
		a.Report("%d events", e.count)
	}
	return err
}

// exporter writes lines and tracks the last position of each partition.
type exporter struct {
	to       *bufio.Writer
	form     func(line string) (string, error)
	frontier audit.Frontier
	count    int
}

func (e *exporter) Write(line string) error {
	if err := e.advance(line); err != nil {
		return err
	}
	text, err := e.form(line)
	if err != nil || text == "" {
		return err
	}
	e.count++
	_, err = e.to.WriteString(text + "\n")
	return err
}

// advance advances the frontier past the line's event.
func (e *exporter) advance(line string) error {
	var at struct{ Position events.Position }
	if err := json.Unmarshal([]byte(line), &at); err != nil || at.Position.Number < 1 {
		return fmt.Errorf("a line is no event: %.80q", line)
	}
	p := at.Position
	e.frontier[p.Partition] = max(e.frontier[p.Partition], p.Number)
	return nil
}

// resume reads a file's events and continues at its end; an incomplete last line is cut off.
func (e *exporter) resume(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the file to go on with: %w", err)
	}
	whole := int64(0)
	lines := bufio.NewReaderSize(file, 1<<16)
	for {
		line, err := client.ReadLine(lines)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err == nil {
			err = e.advance(line)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s holds no export: %w", name, err), file.Close())
		}
		whole += int64(len(line)) + 1
	}
	if err := file.Truncate(whole); err != nil {
		return nil, errors.Join(fmt.Errorf("cut off half a line: %w", err), file.Close())
	}
	if _, err := file.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("go to the end of the file: %w", err), file.Close())
	}
	e.to = bufio.NewWriterSize(file, 1<<16)
	return file, nil
}
