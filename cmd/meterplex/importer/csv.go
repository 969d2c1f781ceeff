package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxRow bounds a row: an unclosed quote must not read the whole file into memory.
const maxRow = 1 << 20

// maxAmount is the greatest amount of a usage event.
const maxAmount = 1<<53 - 1

// Mapping maps the columns of a row to the fields of usage events.
type Mapping struct {
	Columns    []ColumnMapping // one event for each, in this order
	TimeColumn string
	TimeFormat string // see parseTime; "" means usualFormats
	Zone       *time.Location
	Metadata   []string // columns sent as metadata of each event
	Delimiter  rune     // between the fields of a row; 0 means a comma
	// TypeColumn has the type of a row: usage (or an empty field), correction or retraction; "": all rows are usage. RefColumn is the eventId of the
	// usage that a correction or a retraction names.
	TypeColumn, RefColumn string
}

// Types of rows.
const (
	typeCorrection = "correction"
	typeRetraction = "retraction"
)

// CheckColumns refuses a mapping whose corrections would name no usage.
func (m *Mapping) CheckColumns() error {
	switch {
	case (m.TypeColumn == "") != (m.RefColumn == ""):
		return errors.New("--type-column and --ref-column go together: a correction names the eventId of its usage")
	case m.TypeColumn != "" && len(m.Columns) != 1:
		return errors.New("--type-column needs one --map: a correction has the feature of its usage")
	}
	return nil
}

// ColumnMapping maps one column to the amount of one feature.
type ColumnMapping struct {
	Feature string `json:"feature"`
	Column  string `json:"column"`
}

// ParseColumns parses feature=column. A feature may be mapped only once: two amounts of
// one row would be one event id with two payloads.
func ParseColumns(texts []string) ([]ColumnMapping, error) {
	var columns []ColumnMapping
	for _, t := range texts {
		feature, column, ok := strings.Cut(t, "=")
		if !ok || feature == "" || column == "" || strings.Contains(feature, "|") {
			return nil, fmt.Errorf("--map %q: write feature=column", t)
		}
		if slices.ContainsFunc(columns, func(c ColumnMapping) bool { return c.Feature == feature }) {
			return nil, fmt.Errorf("--map names the feature %q twice", feature)
		}
		columns = append(columns, ColumnMapping{feature, column})
	}
	slices.SortFunc(columns, func(a, b ColumnMapping) int { return cmp.Compare(a.Feature, b.Feature) })
	return columns, nil
}

// amount is a row's amount of one feature.
type amount struct {
	feature string
	n       int64
	kind    string // typeCorrection or typeRetraction; "": usage
	ref     string // eventId of the usage to correct
}

// usageRow is a valid row. It may be used until the next row is read.
type usageRow struct {
	number   int64 // from 1, not counting the header
	line     int   // in the file
	fields   []string
	at       time.Time // truncated to microseconds, as in the service
	amounts  []amount  // of usage, all above 0
	zero     int       // number of amounts of 0, which are not sent
	metadata map[string]string
}

func (r *usageRow) clone() *usageRow {
	c := *r
	c.fields, c.amounts = slices.Clone(r.fields), slices.Clone(r.amounts)
	return &c
}

// badRow is the error of an invalid row.
type badRow struct {
	line   int
	reason string
}

func (e *badRow) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.reason) }

// rowReader reads rows one by one.
type rowReader struct {
	csv      *csv.Reader
	guard    *rowGuard
	mapping  *Mapping
	time     int
	kind     int // of TypeColumn, -1: none
	ref      int
	columns  []int
	metadata []int
	row      usageRow
}

// newRowReader reads the header. It detects gzip by the file's first bytes.
func newRowReader(file io.Reader, m *Mapping) (*rowReader, error) {
	plain, err := decompress(file)
	if err != nil {
		return nil, err
	}
	guard := &rowGuard{in: plain, left: maxRow}
	r := &rowReader{csv: csv.NewReader(guard), guard: guard, mapping: m}
	r.csv.ReuseRecord, r.csv.Comma = true, cmp.Or(m.Delimiter, ',')
	header, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: its first row has to name the columns")
	}
	if err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	return r, r.locate(slices.Clone(header))
}

// decompress decompresses gzip and removes a byte order mark.
func decompress(file io.Reader) (io.Reader, error) {
	in := bufio.NewReader(file)
	if head, _ := in.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		in = bufio.NewReader(z)
	}
	if err := noCSV(in); err != nil {
		return nil, err
	}
	if head, _ := in.Peek(3); string(head) == "\uFEFF" {
		if _, err := in.Discard(3); err != nil {
			return nil, fmt.Errorf("read the file: %w", err)
		}
	}
	return in, nil
}

// noCSV recognizes common files that are no CSV in UTF-8 by their first bytes.
func noCSV(in *bufio.Reader) error {
	head, _ := in.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return errors.New("the file is a workbook (.xlsx) or another ZIP archive: export its sheet as CSV in UTF-8")
	case bytes.HasPrefix(head, []byte("\xd0\xcf\x11\xe0")):
		return errors.New("the file is a workbook (.xls): export its sheet as CSV in UTF-8")
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")), bytes.IndexByte(head, 0) >= 0:
		return errors.New("the file is UTF-16: convert it to UTF-8, e.g. iconv -f UTF-16 -t UTF-8 FILE > NEW")
	}
	return nil
}

// ParseDelimiter parses the flag of a delimiter: one character, or tab.
func ParseDelimiter(text string) (rune, error) {
	if text == "tab" || text == `\t` {
		text = "\t"
	}
	r, size := utf8.DecodeRuneInString(text)
	if size == 0 || size != len(text) || r == utf8.RuneError || strings.ContainsRune("\"\r\n", r) {
		return 0, fmt.Errorf("--delimiter %q: give one character, e.g. ';', or tab", text)
	}
	return r, nil
}

// otherDelimiter advises a delimiter if the header has one field that another one would separate.
func otherDelimiter(header []string) string {
	if len(header) == 1 && strings.Contains(header[0], ";") {
		return ": is it separated by semicolons? Give --delimiter ';'"
	}
	if len(header) == 1 && strings.Contains(header[0], "\t") {
		return ": is it separated by tabs? Give --delimiter 'tab'"
	}
	return ""
}

// locate finds the columns that the mapping names.
func (r *rowReader) locate(header []string) (err error) {
	find := func(name string) int {
		i := slices.Index(header, name)
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("there is no column %q; the file has %s%s", name, quoteAll(header), otherDelimiter(header)))
		} else if slices.Contains(header[i+1:], name) {
			err = errors.Join(err, fmt.Errorf("there are two columns %q", name))
		}
		return i
	}
	r.time, r.kind, r.ref = find(r.mapping.TimeColumn), -1, -1
	if r.mapping.TypeColumn != "" {
		r.kind, r.ref = find(r.mapping.TypeColumn), find(r.mapping.RefColumn)
	}
	for _, c := range r.mapping.Columns {
		r.columns = append(r.columns, find(c.Column))
	}
	for _, name := range r.mapping.Metadata {
		r.metadata = append(r.metadata, find(name))
	}
	return err
}

func quoteAll(names []string) string {
	quoted := make([]string, 0, len(names))
	for _, n := range names {
		quoted = append(quoted, strconv.Quote(n))
	}
	return strings.Join(quoted, ", ")
}

// next returns a row, a *badRow error, io.EOF, or the error that makes the rest unreadable.
func (r *rowReader) next() (*usageRow, error) {
	r.guard.left = maxRow
	fields, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	r.row.number++
	if p, ok := errors.AsType[*csv.ParseError](err); ok {
		return nil, &badRow{p.StartLine, p.Err.Error()}
	}
	if err != nil {
		return nil, fmt.Errorf("read row %d: %w", r.row.number, err)
	}
	line, _ := r.csv.FieldPos(0)
	if err := r.read(fields); err != nil {
		return nil, &badRow{line, err.Error()}
	}
	r.row.line = line
	return &r.row, nil
}

func (r *rowReader) read(fields []string) (err error) {
	row := &r.row
	row.fields, row.amounts, row.zero, row.metadata = fields, row.amounts[:0], 0, nil
	if row.at, err = r.mapping.parseTime(fields[r.time]); err != nil {
		return fmt.Errorf("column %q: %w", r.mapping.TimeColumn, err)
	}
	for i, c := range r.mapping.Columns {
		a := amount{feature: c.Feature}
		if err := r.readType(&a, fields); err != nil {
			return err
		}
		if err := a.parse(fields[r.columns[i]]); err != nil {
			return fmt.Errorf("column %q: %w", c.Column, err)
		}
		if a.n == 0 && a.kind == "" {
			row.zero++
			continue
		}
		row.amounts = append(row.amounts, a)
	}
	if len(r.metadata) > 0 {
		row.metadata = make(map[string]string, len(r.metadata))
	}
	for i, name := range r.mapping.Metadata {
		v := fields[r.metadata[i]]
		if !utf8.ValidString(v) {
			return fmt.Errorf("column %q: not UTF-8", name)
		}
		row.metadata[name] = v
	}
	return nil
}

// readType reads the type of a row, and the usage that it corrects.
func (r *rowReader) readType(a *amount, fields []string) error {
	if r.kind < 0 {
		return nil
	}
	kind, ref := fields[r.kind], fields[r.ref]
	switch kind {
	case "", "usage":
		if ref != "" {
			return fmt.Errorf("column %q: usage corrects no other event: leave %s out, or name the type correction or retraction", r.mapping.RefColumn, clipped(ref))
		}
		return nil
	case typeCorrection, typeRetraction:
		if ref == "" {
			return fmt.Errorf("column %q: a %s names the eventId of its usage", r.mapping.RefColumn, kind)
		}
		a.kind, a.ref = kind, ref
		return nil
	}
	return fmt.Errorf("column %q: %s is not usage, correction or retraction", r.mapping.TypeColumn, clipped(kind))
}

// parse reads the amount. That of a correction is the new amount; a retraction has no amount.
func (a *amount) parse(field string) (err error) {
	if a.kind != typeRetraction {
		a.n, err = parseAmount(field)
	} else if field != "" {
		err = fmt.Errorf("a retraction has no amount: leave %s out", clipped(field))
	}
	return err
}

// parseAmount accepts only digits: amounts are money, so it must not guess.
func parseAmount(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || s[0] == '+' || n > maxAmount {
		return 0, fmt.Errorf("%s is not a whole number from 0 to %d", clipped(s), int64(maxAmount))
	}
	return int64(n), nil
}

func clipped(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "…"
	}
	return strconv.Quote(s)
}

// rowGuard fails the read of a row that is too long. The CSV reader reads ahead by
// one buffer, which is much smaller than maxRow.
type rowGuard struct {
	in   io.Reader
	left int
}

func (g *rowGuard) Read(p []byte) (int, error) {
	if g.left <= 0 {
		return 0, fmt.Errorf("it is longer than %d KiB: is a quote not closed?", maxRow>>10)
	}
	n, err := g.in.Read(p)
	g.left -= n
	return n, err
}
