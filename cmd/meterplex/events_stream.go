package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/audit"
)

// maxLine bounds one line of a stream: envelopes are far smaller.
const maxLine = 16 << 20

// quiet is how long a stream may be silent: the service sends a keep-alive every 15 s.
const quiet = 60 * time.Second

// stream sends a request with a streamed response and calls take for each line. It has
// no deadline except ctx and the limit on silence.
func (c *client) stream(ctx context.Context, path string, query url.Values, header http.Header, take func(line string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/api/v1"+path+"?"+notEmpty(query).Encode(), nil)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	endless := *c.http
	endless.Timeout = 0
	resp, err := endless.Do(req)
	if err != nil {
		return &unreachable{c.base, err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return readProblem(resp, body)
	}
	silence := time.AfterFunc(quiet, cancel)
	defer silence.Stop()
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) && line == "" {
			return nil
		}
		if err != nil {
			return &unreachable{c.base, err}
		}
		silence.Reset(quiet)
		if err := take(line); err != nil {
			return err
		}
	}
}

// readLine returns a complete line; an unterminated last line is io.ErrUnexpectedEOF.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return "", fmt.Errorf("a line is longer than %d MiB", maxLine>>20)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(string(line), "\n"), nil
	}
}

// persist runs a stream to its end, and reconnects if the connection breaks. Progress
// restarts the time for retries.
func (c *client) persist(ctx context.Context, forever bool, once func(progress func()) error) error {
	end := time.Now().Add(c.retryFor)
	for n := 0; ; n++ {
		err := once(func() { n, end = 0, time.Now().Add(c.retryFor) })
		if err != nil && (ctx.Err() != nil || !passing(err)) || err == nil && !forever {
			return err
		}
		wait := backoff(n, err)
		if err != nil && time.Now().Add(wait).After(end) {
			return err
		}
		if err != nil && n == 0 {
			c.say("meterplex: %s; trying again for up to %s", brief(err), c.retryFor)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// EventsTail follows the log.
type EventsTail struct {
	wantedEvents
	Follow bool `short:"f" help:"Continue with new events, until Ctrl-C."`
	Lines  int  `short:"n" default:"10" placeholder:"N" help:"Begin with the newest N, up to 1000 (default 10)."`
}

// Run prints events as they arrive. After a broken connection it resumes at the last event.
func (c *EventsTail) Run(a *app) error {
	client, err := a.newClient()
	if err != nil {
		return err
	}
	q := c.query()
	q.Set("follow", strconv.FormatBool(c.Follow))
	if c.Lines > 0 {
		q.Set("last", strconv.Itoa(c.Lines))
	}
	printer := a.rows("position", "recordedAt", "eventType", "tenantId", "eventId")
	print := printer.row
	if c.Follow && a.client.Output != "csv" { // a table or an array would wait for an end
		print = a.printEvent
	}
	var last string
	err = client.persist(a.ctx, c.Follow, func(progress func()) error {
		header := http.Header{}
		if last != "" {
			header.Set("Last-Event-ID", last)
		}
		var id, data string
		return client.stream(a.ctx, "/events/stream", q, header, func(line string) error {
			field, value, _ := strings.Cut(line, ": ")
			switch {
			case field == "id":
				id = value
			case field == "data":
				data = value
			case line == "" && id != "":
				if data != "" {
					if err := print(json.RawMessage(data)); err != nil {
						return err
					}
				}
				last, data = id, ""
				progress()
			}
			return nil
		})
	})
	if a.ctx.Err() != nil && c.Follow {
		err = nil // Ctrl-C is the normal end
	}
	return errors.Join(err, printer.end(c.Follow))
}

// end closes a finite list.
func (p *rowPrinter) end(endless bool) error {
	if endless {
		return nil
	}
	return p.close()
}

// printEvent prints one event immediately.
func (a *app) printEvent(raw json.RawMessage) error {
	if a.client.Output != "table" {
		return printCompact(a.stdout, raw)
	}
	members, err := membersOf(raw)
	if err != nil {
		return err
	}
	at := func(name string) string { return cell(find(members, name), "table") }
	_, err = fmt.Fprintf(a.stdout, "%-12s %-27s %-44s %s\n", at("position"), at("recordedAt"), at("eventType"), at("payload"))
	return err
}

// EventsExport exports events.
type EventsExport struct {
	boundedEvents
	Resume string `placeholder:"FILE" help:"Continue a file that holds an earlier export: the events that it lacks are appended."`
}

// Help returns the long help text.
func (EventsExport) Help() string {
	return `Each line is an event as it is on the wire, by partition and position. A connection that breaks is taken up where it broke.

  meterplex events export > log.ndjson
  meterplex events export --resume log.ndjson    # later: the rest, with the same filters

Exit code 0 says that everything is there that was in the log when the command began.`
}

// Run writes the lines.
func (c *EventsExport) Run(a *app) error {
	client, err := a.newClient()
	if err != nil {
		return err
	}
	e := exporter{to: bufio.NewWriterSize(a.stdout, 1<<16)}
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
		if e.place, err = audit.ParseFrontier(c.After); err != nil {
			return fmt.Errorf("--after: %w", err)
		}
	}
	err = client.persist(a.ctx, false, func(progress func()) error {
		q := c.query()
		if e.place != (audit.Frontier{}) {
			q.Set("after", e.place.String())
		}
		return client.stream(a.ctx, "/events/export", q, nil, func(line string) error {
			progress()
			return e.write(line)
		})
	})
	if err = errors.Join(err, e.to.Flush()); err == nil {
		a.say("%d events", e.count)
	}
	return err
}

// exporter writes lines and tracks the last position of each partition.
type exporter struct {
	to    *bufio.Writer
	place audit.Frontier
	count int
}

func (e *exporter) write(line string) error {
	if err := e.advance(line); err != nil {
		return err
	}
	e.count++
	_, err := e.to.WriteString(line + "\n")
	return err
}

// advance advances place past the line's event.
func (e *exporter) advance(line string) error {
	var at struct{ Position events.Position }
	if err := json.Unmarshal([]byte(line), &at); err != nil || at.Position.Number < 1 {
		return fmt.Errorf("a line is no event: %.80q", line)
	}
	p := at.Position
	e.place[p.Partition] = max(e.place[p.Partition], p.Number)
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
		line, err := readLine(lines)
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
