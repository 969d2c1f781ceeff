// Package importer sends the rows of a CSV file as usage events, each exactly once. It keeps
// the options under which an import was begun, so that the same rows get the same ids again.
package importer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// usualWindow is how old an event may be by default. Without --backfill or
// --shift-to-now, an import with older events is refused before the first is sent.
const usualWindow = 7 * 24 * time.Hour

// Modes for the timestamps of an import.
const (
	TimesAsTheyAre = "as they are"
	TimesBackfill  = "backfill"
	TimesShifted   = "shift to now"
)

// importName matches valid names, which are names of state files.
var importName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Job describes one import.
type Job struct {
	Name        string                        // of the state file
	Again       bool                          // count rows that are known again: the name is part of each event's id
	Open        func() (io.ReadCloser, error) // the file, read twice from its start
	Mapping     Mapping
	Times       string // one of the constants above
	Batch       int
	Concurrency int
	SkipBad     bool // send the valid rows although there are invalid ones
}

// Importer sends the rows of a CSV file as usage events. Each event counts exactly
// once, even if its row comes again in another file: its id and its time are derived from
// the row, so that a repeated event is a duplicate.
type Importer struct {
	Client   *client.Client // with a key of the tenant; with an operator key if the mapping has a TenantColumn
	StateDir string         // directory of the state files, which hold the anchor of shifted times
	Now      func() time.Time
	Report   func(format string, args ...any)
	Progress io.Writer // nil for none
	Terminal bool      // whether Progress is a terminal

	opened []*Recipient // with keys to revoke
}

// errBadRows means that rows are invalid and no event was sent.
var errBadRows = errors.New("rows are invalid")

// Run imports the file. The summary is valid even if an error ends the import
// early; it is zero if the import failed before the first event was sent.
func (im *Importer) Run(ctx context.Context, job Job) (Summary, error) {
	if !importName.MatchString(job.Name) {
		return Summary{}, fmt.Errorf("an import's name is letters, digits, dots, - and _, at most 128: give --name instead of %q", job.Name)
	}
	scan, err := im.scan(ctx, job)
	if err != nil {
		return Summary{}, err
	}
	switch {
	case scan.bad > 0 && !job.SkipBad:
		return Summary{}, fmt.Errorf("nothing sent: %d of %d %w; fix them or use --skip-bad", scan.bad, scan.rows, errBadRows)
	case scan.bad > 0 && scan.events == 0:
		return Summary{}, fmt.Errorf("nothing sent: %d of %d %w, and the others have no usage", scan.bad, scan.rows, errBadRows)
	case scan.others > 0 && scan.others == scan.rows:
		return Summary{}, fmt.Errorf("nothing sent: no row of %d is one of %s", scan.rows, job.Mapping.conditions())
	}
	sum := newSummary(job, scan)
	if scan.events == 0 {
		return sum, nil
	}
	if job.Times == TimesAsTheyAre && im.Now().Sub(scan.earliest) > usualWindow {
		return Summary{}, fmt.Errorf("the rows reach back to %s, further than services accept by default: give --backfill (with a key "+
			"that has usage:backfill) or --shift-to-now; no event was sent", scan.earliest.Format(time.RFC3339))
	}
	to, err := im.recipients(ctx, job, scan)
	if err != nil {
		return Summary{}, err
	}
	state, err := im.begin(ctx, job, scan)
	if err != nil {
		return Summary{}, err
	}
	sum.Recipients = slices.Collect(maps.Values(to))
	run := importRun{importer: im, job: job, sha256: scan.sha256, to: to, sum: sum, meter: im.newMeter(scan.events), ids: job.ids()}
	if state.Anchor != nil {
		run.shift = state.Anchor.Sub(cmp.Or(state.Latest, scan.latest))
		anchor := scan.latest.Add(run.shift)
		run.sum.Anchor = &anchor
	}
	err = run.send(ctx)
	return run.sum, err
}

// scan is the result of the first pass over the file.
type scan struct {
	sha256   string
	rows     int64
	bad      int64
	others   int64
	zero     int64
	events   int64
	earliest time.Time
	latest   time.Time      // shifted to the anchor
	first    *usageRow      // the first row with an event
	last     *usageRow      // the last one
	tenants  map[string]int // the first line of each tenant
}

// maxShown is how many invalid rows, or failed events, are printed one by one.
const maxShown = 20

// scan reads and validates all rows before the first event is sent.
func (im *Importer) scan(ctx context.Context, job Job) (scan, error) {
	s := scan{tenants: map[string]int{}}
	sum, err := readRows(ctx, job, func(r *usageRow, bad error) error {
		s.rows++
		if bad != nil {
			s.bad++
			im.showBad(job, s.bad, bad)
			return nil
		}
		s.add(r)
		return nil
	})
	if hidden := s.bad - maxShown; hidden > 0 && !job.SkipBad {
		im.Report("… and %d more", hidden)
	}
	s.sha256 = sum
	return s, err
}

// showBad prints the first maxShown bad rows, or all of them if they are skipped.
func (im *Importer) showBad(job Job, n int64, bad error) {
	switch {
	case job.SkipBad:
		im.Report("skipped: %v", bad)
	case n <= maxShown:
		im.Report("%v", bad)
	}
}

func (s *scan) add(r *usageRow) {
	if r.other {
		s.others++
		return
	}
	s.zero += int64(r.zero)
	s.events += int64(len(r.amounts))
	if len(r.amounts) == 0 {
		return
	}
	if s.first == nil {
		s.first = r.clone()
		s.earliest, s.latest = r.at, r.at
	}
	s.keep(r)
	if _, known := s.tenants[r.tenant]; !known {
		s.tenants[r.tenant] = r.line
	}
	if r.at.Before(s.earliest) {
		s.earliest = r.at
	}
	if r.at.After(s.latest) {
		s.latest = r.at
	}
}

// keep makes a row the last one.
func (s *scan) keep(r *usageRow) {
	if s.last == nil {
		s.last = &usageRow{}
	}
	amounts := s.last.amounts[:0]
	*s.last = *r
	s.last.amounts = append(amounts, r.amounts...)
}

// readRows calls each with every row, or with the row's error, and returns the SHA-256 of the
// file's text. An error means that the file as a whole cannot be read.
func readRows(ctx context.Context, job Job, each func(*usageRow, error) error) (string, error) {
	f, err := job.Open()
	if err != nil {
		return "", fmt.Errorf("open the file: %w", err)
	}
	defer f.Close()
	text, err := openText(f)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	rows, err := newRowReader(io.TeeReader(text, h), &job.Mapping)
	if err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		if n%1000 == 0 && ctx.Err() != nil {
			return "", ctx.Err()
		}
		r, err := rows.next()
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if bad, ok := errors.AsType[*badRow](err); err != nil && !ok {
			return "", err
		} else if ok {
			err = each(nil, bad)
		} else {
			err = each(r, nil)
		}
		if err != nil {
			return "", err
		}
	}
}
