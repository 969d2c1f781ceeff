package importer

import (
	"bufio"
	"cmp"
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

// usageRow is a valid row. It may be used until the next row is read.
type usageRow struct {
	number   int64 // from 1, not counting the header
	line     int   // in the file
	other    bool  // not selected by Where: only number and line are valid
	tenant   string
	id       string    // of IDColumn
	at       time.Time // truncated to microseconds, as in the service
	amounts  []amount  // of usage, all above 0
	zero     int       // number of amounts of 0, which are not sent
	metadata map[string]string
}

func (r *usageRow) clone() *usageRow {
	c := *r
	c.amounts = slices.Clone(r.amounts)
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
	csv     *csv.Reader
	guard   *rowGuard
	mapping *Mapping
	clock   *clock
	header  []string
	time    int
	kind    int // of TypeColumn; -1: none, as the others
	ref     int
	id      int
	tenant  int
	feature int
	amount  int
	columns []int
	// where has the values of columns, and metadata columns by Metadata's order.
	where    map[int][]string
	metadata []int
	row      usageRow
}

// newRowReader reads the header.
func newRowReader(text io.Reader, m *Mapping) (*rowReader, error) {
	in := bufio.NewReader(text)
	if err := skipMark(in); err != nil {
		return nil, err
	}
	guard := &rowGuard{in: in, left: maxRow}
	r := &rowReader{csv: csv.NewReader(guard), guard: guard, mapping: m}
	r.csv.ReuseRecord, r.csv.Comma = true, cmp.Or(m.Delimiter, ',')
	header, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: its first row has to name the columns")
	}
	if err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	if r.clock, err = m.newClock(); err != nil {
		return nil, err
	}
	r.header = slices.Clone(header)
	return r, r.locate()
}

// otherDelimiter advises a delimiter if the header has one field that another one would separate.
func otherDelimiter(header []string) string {
	switch {
	case len(header) == 1 && strings.HasPrefix(header[0], "sep="):
		return fmt.Sprintf(": remove this line, and give --delimiter '%s'", strings.TrimPrefix(header[0], "sep="))
	case len(header) == 1 && strings.Contains(header[0], ";"):
		return ": is it separated by semicolons? Give --delimiter ';'"
	case len(header) == 1 && strings.Contains(header[0], "\t"):
		return ": is it separated by tabs? Give --delimiter 'tab'"
	case !utf8.ValidString(strings.Join(header, "")):
		return ": convert it to UTF-8, e.g. iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"
	}
	return ""
}

// locate finds the columns that the mapping names.
func (r *rowReader) locate() (err error) {
	find := func(name string) int {
		i := slices.Index(r.header, name)
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("there is no column %q; the file has %s%s", name, quoteAll(r.header),
				otherDelimiter(r.header)))
		} else if slices.Contains(r.header[i+1:], name) {
			err = errors.Join(err, fmt.Errorf("there are two columns %q", name))
		}
		return i
	}
	maybe := func(name string) int {
		if name == "" {
			return -1
		}
		return find(name)
	}
	m := r.mapping
	r.time, r.kind, r.ref, r.id = find(m.TimeColumn), maybe(m.TypeColumn), maybe(m.RefColumn), maybe(m.IDColumn)
	r.tenant, r.feature, r.amount = maybe(m.TenantColumn), maybe(m.FeatureColumn), maybe(m.AmountColumn)
	for _, c := range m.Columns {
		r.columns = append(r.columns, find(c.Column))
	}
	for _, name := range m.Metadata {
		r.metadata = append(r.metadata, find(name))
	}
	r.where = map[int][]string{}
	for name, values := range m.Where {
		r.where[find(name)] = values
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
		reason := p.Err.Error()
		if errors.Is(err, csv.ErrFieldCount) {
			reason = fmt.Sprintf("%s: %d, the header has %d", reason, len(fields), len(r.header))
		}
		return nil, &badRow{p.StartLine, reason}
	}
	if err != nil {
		return nil, fmt.Errorf("read row %d: %w", r.row.number, err)
	}
	r.row.line, _ = r.csv.FieldPos(0)
	if err := r.read(fields); err != nil {
		return nil, &badRow{r.row.line, err.Error()}
	}
	return &r.row, nil
}

func (r *rowReader) read(fields []string) (err error) {
	row, m := &r.row, r.mapping
	row.amounts, row.zero, row.metadata = row.amounts[:0], 0, nil
	if row.other = !r.selected(fields); row.other {
		return nil
	}
	if row.at, err = r.clock.read(fields[r.time]); err != nil {
		return fmt.Errorf("column %q: %w", m.TimeColumn, err)
	}
	if r.tenant >= 0 {
		if row.tenant = fields[r.tenant]; row.tenant == "" {
			return fmt.Errorf("column %q is empty: it names the tenant", m.TenantColumn)
		}
	}
	if r.id >= 0 {
		if row.id, err = readID(fields[r.id]); err != nil {
			return fmt.Errorf("column %q: %w", m.IDColumn, err)
		}
	}
	if err := r.readAmounts(fields); err != nil {
		return err
	}
	return r.readMetadata(fields)
}

// selected reports whether a row has one of the values of each column of Where.
func (r *rowReader) selected(fields []string) bool {
	for column, values := range r.where {
		if !slices.Contains(values, fields[column]) {
			return false
		}
	}
	return true
}

func (r *rowReader) readAmounts(fields []string) error {
	if r.feature >= 0 {
		feature, err := r.mapping.readFeature(fields[r.feature])
		if err != nil {
			return fmt.Errorf("column %q: %w", r.mapping.FeatureColumn, err)
		}
		return r.readAmount(feature, r.mapping.AmountColumn, fields[r.amount], fields)
	}
	for i, c := range r.mapping.Columns {
		if err := r.readAmount(c.Feature, c.Column, fields[r.columns[i]], fields); err != nil {
			return err
		}
	}
	return nil
}

// readFeature returns the feature of a value.
func (m *Mapping) readFeature(value string) (string, error) {
	if feature, ok := m.Rename[value]; ok {
		return feature, nil
	}
	if !featureKey.MatchString(value) {
		return "", fmt.Errorf("%s is not the key of a feature: give --rename %q, or leave its rows out with --where", clipped(value),
			value+"=FEATURE")
	}
	return value, nil
}

func (r *rowReader) readAmount(feature, column, field string, fields []string) error {
	a := amount{feature: feature}
	if err := r.readType(&a, fields); err != nil {
		return err
	}
	if err := a.parse(field, r.mapping); err != nil {
		return fmt.Errorf("column %q: %w", column, err)
	}
	if a.n == 0 && a.kind == "" {
		r.row.zero++
		return nil
	}
	r.row.amounts = append(r.row.amounts, a)
	return nil
}

func (r *rowReader) readMetadata(fields []string) error {
	if len(r.metadata) > 0 {
		r.row.metadata = make(map[string]string, len(r.metadata))
	}
	for i, name := range r.mapping.Metadata {
		v := fields[r.metadata[i]]
		if !utf8.ValidString(v) {
			return fmt.Errorf("column %q: not UTF-8", name)
		}
		r.row.metadata[name] = v
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
			return fmt.Errorf("column %q: usage corrects no other event: leave %s out, or name the type correction or retraction",
				r.mapping.RefColumn, clipped(ref))
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
