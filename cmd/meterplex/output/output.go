// Package output prints JSON objects and lists of them as tables, JSON, NDJSON or CSV. It
// knows no resource of the API.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/meterplex/meterplex/domain/csvtext"
)

// ProgressEvery is how often progress is printed as a line, if there is no terminal.
const ProgressEvery = 10 * time.Second

// Printer prints data in one format.
type Printer struct {
	Format string // table, json, ndjson or csv
	Out    io.Writer
}

// Rows prints rows, each a JSON object, in the requested format. Columns are
// the names of JSON members, as in the API.
type Rows struct {
	format  string
	columns []string
	out     io.Writer
	table   *tabwriter.Writer
	csv     csvtext.Writer
	headed  bool
	written int
}

// tableBlock is how many rows of a table are aligned together. A longer table is written block by
// block, so that it takes no more memory.
const tableBlock = 1000

// Rows returns a printer of a list.
func (to Printer) Rows(columns ...string) *Rows {
	p := &Rows{format: to.Format, columns: columns, out: to.Out}
	switch p.format {
	case "table":
		p.table = tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(p.table, strings.Join(columns, "\t"))
	case "csv":
		p.csv = csvtext.NewWriter(p.out)
	}
	return p
}

// Row prints one row, and buffers only the rows of a table's block.
func (p *Rows) Row(raw json.RawMessage) error {
	switch p.format {
	case "json":
		return p.element(raw)
	case "ndjson":
		return PrintCompact(p.out, raw)
	}
	members, err := ParseMembers(raw)
	if err != nil {
		return err
	}
	cells := make([]string, len(p.columns))
	for i, name := range p.columns {
		cells[i] = Cell(members.Find(name), p.format)
	}
	if p.format == "csv" {
		return p.csvRow(cells)
	}
	if _, err = fmt.Fprintln(p.table, strings.Join(cells, "\t")); err != nil {
		return err
	}
	if p.written++; p.written%tableBlock == 0 {
		return p.table.Flush()
	}
	return nil
}

// element prints one element of the JSON array, indented as in the whole array.
func (p *Rows) element(raw json.RawMessage) error {
	compact, err := json.Marshal(raw)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	var b bytes.Buffer
	b.WriteString("[\n  ")
	if p.written++; p.written > 1 {
		b.Reset()
		b.WriteString(",\n  ")
	}
	if err := json.Indent(&b, compact, "  ", "  "); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = p.out.Write(b.Bytes())
	return err
}

func (p *Rows) csvRow(cells []string) error {
	if err := p.csvHeader(); err != nil {
		return err
	}
	if err := p.csv.Write(cells); err != nil {
		return err
	}
	p.csv.Flush()
	return p.csv.Error()
}

// csvHeader writes the header once, before the first row or for an empty list.
func (p *Rows) csvHeader() error {
	if p.headed {
		return nil
	}
	p.headed = true
	return p.csv.Write(p.columns)
}

// Empty reports whether a table has no rows.
func (p *Rows) Empty() bool { return p.format == "table" && p.written == 0 }

// Close completes the list.
func (p *Rows) Close() error {
	switch p.format {
	case "table":
		return p.table.Flush()
	case "csv":
		if err := p.csvHeader(); err != nil {
			return err
		}
		p.csv.Flush()
		return p.csv.Error()
	case "json":
		end := "\n]\n"
		if p.written == 0 {
			end = "[]\n"
		}
		_, err := io.WriteString(p.out, end)
		return err
	}
	return nil
}

// Object prints one JSON object; a table has a line for each member.
func (to Printer) Object(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	switch to.Format {
	case "json":
		return printIndented(to.Out, raw)
	case "ndjson":
		return PrintCompact(to.Out, raw)
	}
	members, err := ParseMembers(raw)
	if err != nil {
		return err
	}
	if to.Format == "csv" {
		names := make([]string, len(members))
		for i, m := range members {
			names[i] = m.name
		}
		p := to.Rows(names...)
		if err := p.Row(raw); err != nil {
			return err
		}
		return p.Close()
	}
	w := tabwriter.NewWriter(to.Out, 0, 8, 2, ' ', 0)
	for _, m := range members {
		fmt.Fprintf(w, "%s\t%s\n", Printable(m.name), Cell(m.value, "table"))
	}
	return w.Flush()
}

// Members are the members of a JSON object in their original order.
type Members []member

type member struct {
	name  string
	value json.RawMessage
}

// ParseMembers parses a JSON object.
func ParseMembers(raw json.RawMessage) (Members, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("the answer is no JSON object; try -o json")
	}
	var all Members
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		var m member
		m.name, _ = name.(string)
		if err := d.Decode(&m.value); err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		all = append(all, m)
	}
	return all, nil
}

// With returns the object with another value of a member.
func (all Members) With(of string, value json.RawMessage) json.RawMessage {
	text := []byte{'{'}
	for i, m := range all {
		if i > 0 {
			text = append(text, ',')
		}
		if m.name == of {
			m.value = value
		}
		name, _ := json.Marshal(m.name) // a string has a form
		text = append(append(append(text, name...), ':'), m.value...)
	}
	return append(text, '}')
}

// Find returns the value of a member, or nil if there is no such member.
func (all Members) Find(name string) json.RawMessage {
	for _, m := range all {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// Cell formats a value as one field: strings unquoted, other values as JSON.
func Cell(raw json.RawMessage, format string) string {
	if len(raw) == 0 || string(raw) == "null" {
		if format == "table" {
			return "-"
		}
		return ""
	}
	text := string(raw)
	var s string
	if json.Unmarshal(raw, &s) == nil {
		text = s
	} else {
		var compact bytes.Buffer
		if json.Compact(&compact, raw) == nil {
			text = compact.String()
		}
	}
	if format == "table" {
		return Printable(text)
	}
	return text
}

// Printable replaces control characters, so that foreign text cannot control the
// terminal or break a table.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

func printIndented(w io.Writer, raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// PrintCompact prints JSON on one line.
func PrintCompact(w io.Writer, raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// IsTerminal reports whether w is a terminal, by its file mode.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
