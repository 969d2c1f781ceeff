package main

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
)

// maxConcurrency bounds the batches under way at once.
const maxConcurrency = 64

// usualWindow is how old an event may be by default. An import without a mode
// that reaches back further is refused before anything is sent.
const usualWindow = 7 * 24 * time.Hour

// Ways to handle the times of an import.
const (
	timesAsTheyAre = "as they are"
	timesBackfill  = "backfill"
	timesShifted   = "shift to now"
)

// importName keeps the parts of an event's id apart (no |) and is a file's name.
var importName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ImportJob says what is imported and how.
type ImportJob struct {
	Name        string                        // part of each event's id
	Open        func() (io.ReadCloser, error) // the file, read twice from its start
	Mapping     Mapping
	Times       string // one of the constants above
	Batch       int
	Concurrency int
	SkipBad     bool // send the good rows although there are bad ones
}

// Importer sends the rows of a CSV file as usage events, each exactly once
// however often it is run: an event's id follows from the import's name and the
// row, and so does its time, so that what was sent before is a duplicate.
type Importer struct {
	Client   *client
	StateDir string // where the anchor of shifted times is kept
	Now      func() time.Time
	Say      func(format string, args ...any)
	Progress io.Writer // nil for none
	Terminal bool      // whether Progress is one
}

// errBadRows says that rows cannot be read, and nothing was sent.
var errBadRows = errors.New("rows cannot be read as they stand: nothing was sent")

// Run imports the file. The summary holds also where an error ends the sending
// early; it is the zero one where nothing was sent at all.
func (im *Importer) Run(ctx context.Context, job ImportJob) (Summary, error) {
	if !importName.MatchString(job.Name) {
		return Summary{}, fmt.Errorf("an import's name is letters, digits, dots, - and _, at most 128: give --name instead of %q", job.Name)
	}
	scan, err := im.scan(ctx, job)
	if err != nil {
		return Summary{}, err
	}
	if scan.bad > 0 && !job.SkipBad {
		return Summary{}, fmt.Errorf("%d of %d %w; mend them, or leave them out with --skip-bad", scan.bad, scan.rows, errBadRows)
	}
	sum := newSummary(job, scan)
	if scan.events == 0 {
		return sum, nil
	}
	if job.Times == timesAsTheyAre && im.Now().Sub(scan.earliest) > usualWindow {
		return Summary{}, fmt.Errorf("the rows reach back to %s, further than services accept by default: give --backfill (with a key that has usage:backfill) or --shift-to-now; nothing was sent", scan.earliest.Format(time.RFC3339))
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

// scan is what the first pass over the file found.
type scan struct {
	sha256   string
	rows     int64
	bad      int64
	zero     int64
	events   int64
	earliest time.Time
	latest   time.Time // what is mapped to the anchor
	first    *usageRow // the first row with an event
}

// maxShown is how many rows at fault are shown one by one.
const maxShown = 20

// scan reads and checks every row before the first is sent.
func (im *Importer) scan(ctx context.Context, job ImportJob) (scan, error) {
	var s scan
	sum, err := readRows(ctx, job, func(r *usageRow, bad error) error {
		s.rows++
		if bad != nil {
			s.bad++
			im.showBad(job, s.bad, bad)
			return nil
		}
		s.take(r)
		return nil
	})
	if hidden := s.bad - maxShown; hidden > 0 && !job.SkipBad {
		im.Say("… and %d more", hidden)
	}
	s.sha256 = sum
	return s, err
}

// showBad shows the first bad rows, or all where they are left out.
func (im *Importer) showBad(job ImportJob, n int64, bad error) {
	switch {
	case job.SkipBad:
		im.Say("skipped: %v", bad)
	case n <= maxShown:
		im.Say("%v", bad)
	}
}

func (s *scan) take(r *usageRow) {
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

// readRows hands on each row, or why it is bad, and gives the file's SHA-256.
// An error means that the file as a whole cannot be read.
func readRows(ctx context.Context, job ImportJob, each func(*usageRow, error) error) (string, error) {
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

// drain reads what a decompressor left unread, so that the hash is the file's.
func drain(file io.Reader, h hash.Hash) (string, error) {
	if _, err := io.Copy(io.Discard, file); err != nil {
		return "", fmt.Errorf("read the file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
