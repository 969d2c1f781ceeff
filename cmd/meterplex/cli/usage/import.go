package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/importer"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// Import sends a CSV file.
type Import struct {
	File string `arg:"" help:"A CSV file with a header, plain or gzip; - for standard input, with --name."`

	Map           []string `name:"map" sep:"none" placeholder:"FEATURE=COLUMN" help:"Map a column to a feature; may be repeated."`
	FeatureColumn string   `placeholder:"COLUMN" help:"The column that names the feature of each row, instead of --map; with --amount-column."`
	AmountColumn  string   `placeholder:"COLUMN" help:"The column with the amount of that feature."`
	Rename        []string `sep:"none" placeholder:"VALUE=FEATURE" help:"Feature of a value of --feature-column, e.g. EC2=hours; repeatable."`
	Scale         int64    `default:"1" placeholder:"N" help:"Multiply amounts by a whole number: 1000 counts 0.253 as 253 (default 1)."`
	IDColumn      string   `name:"id-column" placeholder:"COLUMN" help:"Column of the row's id. Not given: an id follows from its values."`
	TenantColumn  string   `placeholder:"COLUMN" help:"Column of the row's tenant, by id or external id; needs an operator key with admin."`
	Where         []string `sep:"none" placeholder:"COLUMN=VALUE" help:"Only rows with this value. Repeated: any of a column, each column."`
	TimeColumn    string   `required:"" placeholder:"COLUMN" help:"The column with the time of each row."`
	TimeFormat    string   `placeholder:"FORMAT" help:"rfc3339, unix, unix-ms, unix-us, unix-ns, or a layout of Go or strftime."`
	TimeZone      string   `default:"UTC" placeholder:"ZONE" help:"Zone of times without one (default UTC); ambiguous times are refused."`
	Metadata      []string `placeholder:"COLUMN" help:"Columns kept with each event."`
	TypeColumn    string   `placeholder:"COLUMN" help:"Column of usage (or empty), correction or retraction; with --ref-column."`
	RefColumn     string   `placeholder:"COLUMN" help:"The column with the eventId of the usage that a correction or a retraction names."`
	Delimiter     string   `default:"," placeholder:"CHARACTER" help:"Between the fields of a row: one character, or tab (default a comma)."`

	Name        string        `placeholder:"TEXT" help:"The name under which the import's options are kept. Not given: the file's name."`
	Again       bool          `help:"Count rows again that are known, once under this --name."`
	Backfill    bool          `xor:"times" help:"Keep the times although they are old; the key needs usage:backfill."`
	ShiftToNow  bool          `xor:"times" help:"Move all times: the latest row is now."`
	SkipBad     bool          `help:"Skip invalid rows and list them."`
	Batch       int           `default:"1000" placeholder:"N" help:"Events in a request, up to 1000 (default 1000)."`
	Concurrency int           `default:"4" placeholder:"N" help:"Requests under way at once (default 4)."`
	Patience    time.Duration `default:"10m" placeholder:"DURATION" help:"How long an unreachable service is retried (default 10m)."`
	Wait        time.Duration `placeholder:"DURATION" help:"Wait for the figures, and list events that they lack; the key needs usage:read."`
	config.DataDirFlag
}

// Help returns the long help text.
func (Import) Help() string {
	return `Each row gives one event for each --map. For example, of requests to a language model:

    meterplex usage import trace.csv --time-column TIMESTAMP --shift-to-now \
        --map input_tokens=ContextTokens --map output_tokens=GeneratedTokens

The file is read twice: first all of it is checked, then it is sent. If rows are invalid, the first 20 are shown with their lines,
no event is sent, and the exit code is 2. Amounts of 0 are no usage: they are counted and left out.

A layout is e.g. 02.01.2006 15:04 (Go) or %d.%m.%Y %H:%M (strftime); a zone in it is an offset. Without --time-format, dates and
times that begin with the year are read, and RFC 1123.

The same row counts once, in whatever file, under whatever name and from whatever machine it is sent: a file can be sent again,
compressed, or longer by the rows of a day. With --id-column an event's id is the row's id and the feature. Without it, it follows from
the values that are sent and from how often they were in the file before, so a file has to hold all rows of the time that it covers, and
each event takes about 40 bytes of memory. Other options would give the rows of a file other ids: they are refused, unless --again counts
the rows again.

With --shift-to-now the latest row's time is moved to the time of the first run. That time is kept in the data directory, under imports,
before the first request; if it is missing there, the service is asked for it.

With --type-column and --ref-column, rows can be corrections, which have the new amount, and retractions, without an amount. They are sent
in the order of the file, one request at a time.

The summary goes to stdout. Exit code 0: every event is accepted, and with --wait counted. 1: there were conflicts or rejections, or with
--wait events that are not counted. 2: it could not be completed.`
}

// Run reads the options and imports.
func (c *Import) Run(a *app.App) error {
	job, err := c.job()
	if err != nil {
		return err
	}
	if c.File == "-" {
		kept, err := saveInput(a.Stdin)
		if err != nil {
			return err
		}
		defer os.Remove(kept)
		job.Open = func() (io.ReadCloser, error) { return os.Open(kept) }
	}
	cfg, _, err := a.Config(c.DataDirFlag)
	if err != nil {
		return err
	}
	cl := a.ClientFor(cfg.URL, cfg.Key)
	cl.RetryFor = c.Patience
	im := &importer.Importer{
		Client: cl, StateDir: filepath.Join(cfg.DataDir, "imports"), Now: a.Now, Report: a.Report,
		Progress: a.Stderr, Terminal: output.IsTerminal(a.Stderr),
	}
	err = c.Send(a, im, job)
	return errors.Join(err, im.Close(context.WithoutCancel(a.Ctx)))
}

// Send imports, and prints the summary even if the import stopped early.
func (c *Import) Send(a *app.App, im *importer.Importer, job importer.Job) error {
	sum, err := im.Run(a.Ctx, job)
	if sum.Import == "" {
		return err
	}
	answer := printSummary(a, &sum)
	if err != nil {
		return err
	}
	if c.Wait > 0 && sum.Accepted+sum.Duplicates > 0 {
		if err := c.await(a, &sum); err != nil {
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

// printSummary prints an import's result; the error is errNo if the service did not
// accept all of its events.
func printSummary(a *app.App, s *importer.Summary) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	if err := a.Object(raw); err != nil {
		return err
	}
	if s.NotSent == 0 {
		a.Report("%s", s.Remark())
	}
	if s.NotSent == 0 && !s.Complete() {
		return app.ErrNo
	}
	return nil
}

func (c *Import) job() (importer.Job, error) {
	job := importer.Job{
		Name: c.Name, Again: c.Again, Batch: c.Batch, Concurrency: c.Concurrency, SkipBad: c.SkipBad, Times: importer.TimesAsTheyAre,
		Open: func() (io.ReadCloser, error) { return os.Open(c.File) },
	}
	if job.Name == "" && c.File == "-" {
		return job, errors.New("standard input has no name: give --name, the same one to run the import again")
	}
	if job.Name == "" && c.Again {
		return job, errors.New("--again needs a --name of its own: the rows count once under it")
	}
	if job.Name == "" {
		job.Name = nameOf(c.File)
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
	if c.TenantColumn != "" && c.ShiftToNow {
		return job, errors.New("--shift-to-now moves the usage of one tenant: leave --tenant-column out")
	}
	if c.TypeColumn != "" {
		job.Concurrency = 1 // the last correction of the file holds
	}
	job.Mapping, err = c.mapping(zone)
	if err != nil {
		return job, err
	}
	return job, job.Mapping.Check()
}

// nameOf returns the name of an import of a file.
func nameOf(file string) string {
	name := strings.Map(func(r rune) rune {
		if r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-", r)) {
			return r
		}
		return '-'
	}, filepath.Base(file))
	return strings.TrimLeft(name, "._-")
}

func (c *Import) mapping(zone *time.Location) (importer.Mapping, error) {
	columns, err := importer.ParseColumns(c.Map)
	where, badWhere := importer.ParseWhere(c.Where)
	renamed, badRename := importer.ParseRename(c.Rename)
	delimiter, badDelimiter := importer.ParseDelimiter(c.Delimiter)
	if delimiter == ',' {
		delimiter = 0 // the default
	}
	if c.Scale < 1 {
		err = errors.Join(err, fmt.Errorf("--scale %d: give a whole number above 0", c.Scale))
	}
	scale := c.Scale
	if scale == 1 {
		scale = 0
	}
	return importer.Mapping{
		Columns: columns, FeatureColumn: c.FeatureColumn, AmountColumn: c.AmountColumn, Rename: renamed, TenantColumn: c.TenantColumn,
		IDColumn:   c.IDColumn,
		TimeColumn: c.TimeColumn, TimeFormat: c.TimeFormat, Zone: zone, Scale: scale, Metadata: c.Metadata, Delimiter: delimiter,
		Where:      where,
		TypeColumn: c.TypeColumn, RefColumn: c.RefColumn,
	}, errors.Join(err, badWhere, badRename, badDelimiter)
}
