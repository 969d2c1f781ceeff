package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxLine bounds one line of a stream: envelopes are far smaller.
const maxLine = 16 << 20

// quiet is how long a stream may be silent: the service sends a keep-alive every 15 s.
const quiet = 60 * time.Second

// Stream sends a request with a streamed response and calls take for each line. It has
// no deadline except ctx and the limit on silence, which holds before the headers, too.
func (c *Client) Stream(ctx context.Context, path string, query url.Values, header http.Header, take func(line string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.quiet, func() { cancel(fmt.Errorf("it was silent for %s", c.quiet)) })
	defer silence.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/api/v1"+path+"?"+notEmpty(query).Encode(), nil)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	endless := *c.http
	endless.Timeout = 0
	resp, err := endless.Do(req)
	if err != nil {
		return c.brokenOff(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return c.brokenOff(ctx, err)
		}
		return ReadProblem(resp, body)
	}
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := ReadLine(lines)
		if errors.Is(err, io.EOF) && line == "" {
			return nil
		}
		if err != nil {
			return c.brokenOff(ctx, err)
		}
		silence.Reset(c.quiet)
		if err := take(line); err != nil {
			return err
		}
	}
}

// brokenOff returns the error of a stream that broke off; if it was canceled, with the reason.
func (c *Client) brokenOff(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return &Unreachable{c.base, err}
}

// ReadLine returns a complete line; an unterminated last line is io.ErrUnexpectedEOF.
func ReadLine(r *bufio.Reader) (string, error) {
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

// Persist runs a stream to its end, and reconnects if the connection breaks. The time for retries begins with a failure; failures without
// progress between them share it.
func (c *Client) Persist(ctx context.Context, forever bool, once func(progress func()) error) error {
	var end time.Time // of the retries; zero: no failure since the last progress
	for n := 0; ; n++ {
		err := once(func() { n, end = 0, time.Time{} })
		if err != nil && (ctx.Err() != nil || !passing(err)) || err == nil && !forever {
			return err
		}
		if err != nil && end.IsZero() {
			end = time.Now().Add(c.RetryFor)
		}
		wait := backoff(n, err)
		if err != nil && time.Now().Add(wait).After(end) {
			return err
		}
		if err != nil && n == 0 {
			c.report("meterplex: %s; trying again for up to %s", Brief(err), c.RetryFor)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// Follow reads a stream of server-sent events after the id last, and calls take with the data of each. After a broken connection it
// resumes after the last event that take accepted. It returns the last id. The end of ctx is the normal end of an endless stream.
func (c *Client) Follow(ctx context.Context, path string, query url.Values, last string, forever bool,
	take func(data json.RawMessage) error) (string, error) {
	err := c.Persist(ctx, forever, func(progress func()) error {
		header := http.Header{}
		if last != "" {
			header.Set("Last-Event-ID", last)
		}
		var id, data string
		return c.Stream(ctx, path, query, header, func(line string) error {
			field, value, _ := strings.Cut(line, ": ")
			switch {
			case field == "id":
				id = value
			case field == "data":
				data = value
			case line == "" && id != "":
				if data != "" {
					if err := take(json.RawMessage(data)); err != nil {
						return err
					}
				}
				last, data = id, ""
				progress()
			}
			return nil
		})
	})
	if forever && ctx.Err() != nil {
		err = nil // Ctrl-C is the normal end
	}
	return last, err
}
