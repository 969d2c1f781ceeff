package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/importer"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// UsageImport sends a CSV file.
type UsageImport struct {
	File string `arg:"" help:"A CSV file with a header, plain or gzip; - for standard input, with --name."`

	Map        []string `name:"map" required:"" sep:"none" placeholder:"FEATURE=COLUMN" help:"Map a column to a feature; may be repeated."`
	TimeColumn string   `required:"" placeholder:"COLUMN" help:"The column with the time of each row."`
	TimeFormat string   `placeholder:"FORMAT" help:"rfc3339, unix, unix-ms, unix-us, unix-ns or a Go layout, in which a zone is an offset (-07:00 or Z07:00), not a name (MST). Not given: RFC 3339, or 2006-01-02 15:04:05 with any fraction."`
	TimeZone   string   `default:"UTC" placeholder:"ZONE" help:"Zone of times without one (default UTC)."`
	Metadata   []string `placeholder:"COLUMN" help:"Columns kept with each event."`
	TypeColumn string   `placeholder:"COLUMN" help:"The column that says what a row is: usage (or empty), correction or retraction; with --ref-column."`
	RefColumn  string   `placeholder:"COLUMN" help:"The column with the eventId of the usage that a correction or a retraction names."`
	Delimiter  string   `default:"," placeholder:"CHARACTER" help:"Between the fields of a row: one character, or tab (default a comma)."`

	Name        string        `placeholder:"TEXT" help:"The import's name, part of each event's id. Not given: the file's name."`
	Backfill    bool          `xor:"times" help:"Keep the times although they are old; the key needs usage:backfill."`
	ShiftToNow  bool          `xor:"times" help:"Move all times so that the latest row is now."`
	SkipBad     bool          `help:"Skip invalid rows and list them."`
	Batch       int           `default:"1000" placeholder:"N" help:"Events in a request, up to 1000 (default 1000)."`
	Concurrency int           `default:"4" placeholder:"N" help:"Requests under way at once (default 4)."`
	Patience    time.Duration `default:"10m" placeholder:"DURATION" help:"How long a request is retried while the service is unreachable (default 10m)."`
	Wait        time.Duration `placeholder:"DURATION" help:"Wait up to this time until the figures contain all events, and look for events that they do not count; the key needs usage:read."`
	config.DataDirFlag
}

// Help returns the long help text.
func (UsageImport) Help() string {
	return `Each row gives one event for each --map. For example, of requests to a language model:

    meterplex usage import trace.csv --time-column TIMESTAMP --shift-to-now --map input_tokens=ContextTokens --map output_tokens=GeneratedTokens

The file is read twice: first all of it is checked, then it is sent. Where a row cannot be read, the first 20 are shown with their lines, nothing is sent, and the exit code is 2. Amounts of 0 are no usage: they are counted and left out.

An event's id follows from the import's name, the feature, the row's number and the row. So an import can be stopped and run again, any number of times: what is there is a duplicate and counts once. Under the name of an import only the same file with the same mapping is taken.

With --shift-to-now the latest row's time is moved to the time of the first run. That time is kept in the data directory, under imports, before anything is sent; where it is missing there, the service is asked for it.

With --type-column and --ref-column, rows can be corrections, which have the new amount, and retractions, which have none. They are sent in the order of the file, one request at a time.

The summary goes to stdout. Exit code 0: every event is accepted, and with --wait counted. 1: there were conflicts or rejections, or with --wait events that are not counted. 2: it could not be completed.`
}

// Run imports, and prints the summary even if the import stopped early.
func (c *UsageImport) Run(a *app) error {
	job, err := c.job()
	if err != nil {
		return err
	}
	if c.File == "-" {
		kept, err := saveInput(a.stdin)
		if err != nil {
			return err
		}
		defer os.Remove(kept)
		job.Open = func() (io.ReadCloser, error) { return os.Open(kept) }
	}
	cfg, _, err := a.config(c.DataDirFlag)
	if err != nil {
		return err
	}
	cl := a.clientFor(cfg.URL, cfg.Key)
	cl.RetryFor = c.Patience
	im := &importer.Importer{
		Client: cl, StateDir: filepath.Join(cfg.DataDir, "imports"), Now: a.now, Report: a.report,
		Progress: a.stderr, Terminal: output.IsTerminal(a.stderr),
	}
	sum, err := im.Run(a.ctx, job)
	if sum.Import == "" {
		return err
	}
	answer := a.summary(&sum)
	if err != nil {
		return err
	}
	if c.Wait > 0 && sum.Last() != "" {
		if err := c.await(a, cl, &sum); err != nil {
			return err
		}
	}
	return answer
}

// saveInput copies standard input to a file: an import reads its rows twice.
func saveInput(in io.Reader) (path string, err error) {
	f, err := os.CreateTemp("", "meterplex-import-*.csv")
	if err != nil {
		return "", fmt.Errorf("keep standard input: %w", err)
	}
	if _, err := io.Copy(f, in); err != nil {
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		return "", fmt.Errorf("keep standard input: %w", err)
	}
	return f.Name(), f.Close()
}

// summary prints an import's result; the error is errNo if the service did not
// accept all of its events.
func (a *app) summary(s *importer.Summary) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	if err := a.object(raw); err != nil {
		return err
	}
	if s.NotSent == 0 {
		a.report("%s", s.Remark())
	}
	if s.NotSent == 0 && !s.Complete() {
		return errNo
	}
	return nil
}

func (c *UsageImport) job() (importer.Job, error) {
	job := importer.Job{
		Name: c.Name, Batch: c.Batch, Concurrency: c.Concurrency, SkipBad: c.SkipBad, Times: importer.TimesAsTheyAre,
		Open: func() (io.ReadCloser, error) { return os.Open(c.File) },
	}
	if job.Name == "" && c.File == "-" {
		return job, errors.New("standard input has no name: give --name, the same one to run the import again")
	}
	if job.Name == "" {
		job.Name = filepath.Base(c.File)
	}
	if c.Backfill {
		job.Times = importer.TimesBackfill
	}
	if c.ShiftToNow {
		job.Times = importer.TimesShifted
	}
	if c.Batch < 1 || c.Batch > client.MaxBatch || c.Concurrency < 1 || c.Concurrency > client.MaxConcurrency {
		return job, fmt.Errorf("--batch is 1 to %d, --concurrency 1 to %d", client.MaxBatch, client.MaxConcurrency)
	}
	zone, err := time.LoadLocation(c.TimeZone)
	if err != nil || c.TimeZone == "Local" {
		return job, fmt.Errorf("--time-zone %q is unknown: expected e.g. UTC or Europe/Berlin", c.TimeZone)
	}
	columns, err := importer.ParseColumns(c.Map)
	if err != nil {
		return job, err
	}
	delimiter, err := importer.ParseDelimiter(c.Delimiter)
	if err != nil {
		return job, err
	}
	if delimiter == ',' {
		delimiter = 0 // as in the states of earlier releases
	}
	job.Mapping = importer.Mapping{Columns: columns, TimeColumn: c.TimeColumn, TimeFormat: c.TimeFormat, Zone: zone, Metadata: c.Metadata, Delimiter: delimiter,
		TypeColumn: c.TypeColumn, RefColumn: c.RefColumn}
	if c.TypeColumn != "" {
		job.Concurrency = 1 // the last correction of the file holds
	}
	return job, errors.Join(job.Mapping.CheckFormat(), job.Mapping.CheckColumns())
}
