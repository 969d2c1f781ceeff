package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// progressEvery is how often progress is printed as a line, if there is no terminal.
const progressEvery = 10 * time.Second

// printer prints data in one format.
type printer struct {
	format string // table, json, ndjson or csv
	out    io.Writer
}

// rowPrinter prints rows, each a JSON object, in the requested format. Columns are
// the names of JSON members, as in the API.
type rowPrinter struct {
	format  string
	columns []string
	out     io.Writer
	table   *tabwriter.Writer
	csv     *csv.Writer
	headed  bool
	array   []json.RawMessage
}

// rows returns a printer for a list.
func (to printer) rows(columns ...string) *rowPrinter {
	p := &rowPrinter{format: to.format, columns: columns, out: to.out, array: []json.RawMessage{}}
	switch p.format {
	case "table":
		p.table = tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(p.table, strings.Join(columns, "\t"))
	case "csv":
		p.csv = csv.NewWriter(p.out)
	}
	return p
}

// row prints one row, or buffers it for the JSON array.
func (p *rowPrinter) row(raw json.RawMessage) error {
	switch p.format {
	case "json":
		p.array = append(p.array, raw)
		return nil
	case "ndjson":
		return printCompact(p.out, raw)
	}
	members, err := membersOf(raw)
	if err != nil {
		return err
	}
	cells := make([]string, len(p.columns))
	for i, name := range p.columns {
		cells[i] = cell(members.find(name), p.format)
	}
	if p.format == "csv" {
		return p.csvRow(cells)
	}
	_, err = fmt.Fprintln(p.table, strings.Join(cells, "\t"))
	return err
}

func (p *rowPrinter) csvRow(cells []string) error {
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
func (p *rowPrinter) csvHeader() error {
	if p.headed {
		return nil
	}
	p.headed = true
	return p.csv.Write(p.columns)
}

// close completes the list.
func (p *rowPrinter) close() error {
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
		all, err := json.Marshal(p.array)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		return printIndented(p.out, all)
	}
	return nil
}

// object prints one JSON object; a table has a line for each member.
func (to printer) object(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	switch to.format {
	case "json":
		return printIndented(to.out, raw)
	case "ndjson":
		return printCompact(to.out, raw)
	}
	members, err := membersOf(raw)
	if err != nil {
		return err
	}
	if to.format == "csv" {
		names := make([]string, len(members))
		for i, m := range members {
			names[i] = m.name
		}
		p := to.rows(names...)
		if err := p.row(raw); err != nil {
			return err
		}
		return p.close()
	}
	w := tabwriter.NewWriter(to.out, 0, 8, 2, ' ', 0)
	for _, m := range members {
		fmt.Fprintf(w, "%s\t%s\n", printable(m.name), cell(m.value, "table"))
	}
	return w.Flush()
}

// members are the members of a JSON object in their original order.
type members []member

type member struct {
	name  string
	value json.RawMessage
}

// membersOf parses a JSON object.
func membersOf(raw json.RawMessage) (members, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("the answer is no JSON object; try -o json")
	}
	var all members
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

// find returns the value of a member, or nil if there is no such member.
func (all members) find(name string) json.RawMessage {
	for _, m := range all {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// cell formats a value as one field: strings unquoted, other values as JSON.
func cell(raw json.RawMessage, format string) string {
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
		return printable(text)
	}
	return text
}

// printable replaces control characters, so that foreign text cannot control the
// terminal or break a table.
func printable(s string) string {
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

func printCompact(w io.Writer, raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// isTerminal reports whether w is a terminal, by its file mode.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
