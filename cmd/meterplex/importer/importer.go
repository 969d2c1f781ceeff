// Package importer sends the rows of a CSV file as usage events, each exactly once. It keeps the
// state that a stopped import needs to continue.
package importer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
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

// importName matches valid names: without |, which separates the parts of an event
// id, and usable as a file name.
var importName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Job describes one import.
type Job struct {
	Name        string                        // part of each event's id
	Open        func() (io.ReadCloser, error) // the file, read twice from its start
	Mapping     Mapping
	Times       string // one of the constants above
	Batch       int
	Concurrency int
	SkipBad     bool // send the valid rows although there are invalid ones
}

// Importer sends the rows of a CSV file as usage events. Each event counts exactly
// once, even if the import is repeated: its id and its time are derived from the
// import's name and the row, so that a repeated event is a duplicate.
type Importer struct {
	Client   *client.Client
	StateDir string // directory of the state files, which hold the anchor of shifted times
	Now      func() time.Time
	Report   func(format string, args ...any)
	Progress io.Writer // nil for none
	Terminal bool      // whether Progress is a terminal
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
	if scan.bad > 0 && !job.SkipBad {
		return Summary{}, fmt.Errorf("nothing sent: %d of %d %w; fix them or use --skip-bad", scan.bad, scan.rows, errBadRows)
	}
	sum := newSummary(job, scan)
	if scan.events == 0 {
		return sum, nil
	}
	if job.Times == TimesAsTheyAre && im.Now().Sub(scan.earliest) > usualWindow {
		return Summary{}, fmt.Errorf("the rows reach back to %s, further than services accept by default: give --backfill (with a key that has usage:backfill) or --shift-to-now; no event was sent", scan.earliest.Format(time.RFC3339))
	}
	state, err := im.begin(ctx, job, scan)
	if err != nil {
		return Summary{}, err
	}
	run := importRun{importer: im, job: job, state: state, sum: sum, meter: im.newMeter(scan.events)}
	if state.Anchor != nil {
		run.sum.Anchor, run.shift = state.Anchor, state.Anchor.Sub(scan.latest)
	}
	err = run.send(ctx)
	return run.sum, err
}

// scan is the result of the first pass over the file.
type scan struct {
	sha256   string
	rows     int64
	bad      int64
	zero     int64
	events   int64
	earliest time.Time
	latest   time.Time // shifted to the anchor
	first    *usageRow // the first row with an event
}

// maxShown is how many invalid rows, or failed events, are printed one by one.
const maxShown = 20

// scan reads and validates all rows before the first event is sent.
func (im *Importer) scan(ctx context.Context, job Job) (scan, error) {
	var s scan
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
	s.zero += int64(r.zero)
	s.events += int64(len(r.amounts))
	if len(r.amounts) == 0 {
		return
	}
	if s.first == nil {
		s.first = r.clone()
		s.earliest, s.latest = r.at, r.at
	}
	if r.at.Before(s.earliest) {
		s.earliest = r.at
	}
	if r.at.After(s.latest) {
		s.latest = r.at
	}
}

// readRows calls each with every row, or with the row's error, and returns the
// file's SHA-256. An error means that the file as a whole cannot be read.
func readRows(ctx context.Context, job Job, each func(*usageRow, error) error) (string, error) {
	f, err := job.Open()
	if err != nil {
		return "", fmt.Errorf("open the file: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	file := io.TeeReader(f, h)
	rows, err := newRowReader(file, &job.Mapping)
	if err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		if n%1000 == 0 && ctx.Err() != nil {
			return "", ctx.Err()
		}
		r, err := rows.next()
		if errors.Is(err, io.EOF) {
			return drain(file, h)
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

// drain reads the rest that a decompressor left unread, so that the hash covers the
// whole file.
func drain(file io.Reader, h hash.Hash) (string, error) {
	if _, err := io.Copy(io.Discard, file); err != nil {
		return "", fmt.Errorf("read the file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
