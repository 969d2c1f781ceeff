package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no zones on this machine")
	}
	for _, c := range []struct {
		format, in, want string
		zone             *time.Location
	}{
		{"", "2023-11-16 18:17:03.9799609", "2023-11-16T18:17:03.97996Z", time.UTC},
		{"", "2023-11-16T18:17:03", "2023-11-16T18:17:03Z", time.UTC},
		{"", "2023-11-16T18:17:03+02:00", "2023-11-16T16:17:03Z", time.UTC},
		{"", "2023-11-16 18:17:03", "2023-11-16T17:17:03Z", berlin},
		{"", "2023-11-16 18:17:03Z", "2023-11-16T18:17:03Z", berlin},
		{"rfc3339", "2023-11-16 18:17:03", "", time.UTC},
		{"02.01.2006 15:04", "16.11.2023 18:17", "2023-11-16T18:17:00Z", time.UTC},
		{"2006-01-02 15:04:05.999999999 -0700 MST", "2026-05-31 21:00:00 -0800 PST", "2026-06-01T05:00:00Z", berlin},
		{"unix", "1700158623", "2023-11-16T18:17:03Z", time.UTC},
		{"unix-ms", "1700158623979", "2023-11-16T18:17:03.979Z", time.UTC},
		{"unix-ns", "1700158623979960123", "2023-11-16T18:17:03.97996Z", time.UTC},
		{"unix", "-1", "", time.UTC},
		{"", "2023-11-16 18:17:03,5", "", time.UTC},
		{"", "2023-02-30 00:00:00", "", time.UTC},
		{"", "9999-12-31 00:00:00", "", time.UTC},
		{"", "", "", time.UTC},
	} {
		m := Mapping{TimeFormat: c.format, Zone: c.zone}
		got, err := m.parseTime(c.in)
		if c.want == "" && err == nil {
			t.Errorf("%q as %q is %v", c.in, c.format, got)
		}
		if c.want != "" && (err != nil || got.Format(time.RFC3339Nano) != c.want) {
			t.Errorf("%q as %q is %v, %v; want %s", c.in, c.format, got, err, c.want)
		}
	}
}

func TestParseAmount(t *testing.T) {
	for _, bad := range []string{"", "-1", "+1", "1.0", "1e3", " 1", "1,000", "0x10", "9007199254740992", "٣", "1_000", "NaN"} {
		if n, err := parseAmount(bad); err == nil {
			t.Errorf("%q is %d", bad, n)
		}
	}
	for in, want := range map[string]int64{"0": 0, "1": 1, "007": 7, "9007199254740991": maxAmount} {
		if n, err := parseAmount(in); err != nil || n != want {
			t.Errorf("%q is %d, %v", in, n, err)
		}
	}
}

func TestEventIDs(t *testing.T) {
	r := &usageRow{number: 1, fields: []string{"2023-11-16 18:17:03.9799600", "4808", "10"}}
	// Frozen: a different id would count every earlier import again.
	if got := eventID("trace", "input_tokens", r); got != "ee785fa3462dcb9d6de03a5ca889fc0a" {
		t.Errorf("the id is %s", got)
	}
	ids := map[string]bool{}
	for n := range int64(3) {
		for _, f := range []string{"a", "b"} {
			for _, name := range []string{"x", "y"} {
				r.number = n
				ids[eventID(name, f, r)] = true
			}
		}
	}
	if len(ids) != 12 {
		t.Errorf("%d ids for 12 events", len(ids))
	}
}

func TestMapping(t *testing.T) {
	if m, err := ParseColumns([]string{"b=B", "a=A=A"}); err != nil || m[0] != (ColumnMapping{"a", "A=A"}) || m[1].Feature != "b" {
		t.Errorf("%v, %v", m, err)
	}
	for _, bad := range [][]string{{"a"}, {"=A"}, {"a="}, {"a=A", "a=B"}, {"a|b=A"}} {
		if _, err := ParseColumns(bad); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	for format, ok := range map[string]bool{"": true, "unix-us": true, "2006-01-02": true, "15:04": false, "yesterday": false} {
		if err := (&Mapping{TimeFormat: format}).CheckFormat(); (err == nil) != ok {
			t.Errorf("%q: %v", format, err)
		}
	}
}

// TestFormatsWithZoneNames: a name without an offset is refused, because Go reads an unknown one as UTC.
func TestFormatsWithZoneNames(t *testing.T) {
	for format, ok := range map[string]bool{
		"2006-01-02 15:04:05 MST": false, time.RFC1123: false, time.RFC850: false, time.UnixDate: false, "MST 2006-01-02": false,
		"2006-01-02 15:04:05Z07:00": true, "2006-01-02 15:04:05 -0700": true, time.RFC1123Z: true, "2006-01-02 15:04:05.999999999 -0700 MST": true,
		"02 MS 2006-01": true, "2006-01-02 03:04:05PMST": true, // no zone names: Go reads the latter as PM and ST
	} {
		if err := (&Mapping{TimeFormat: format}).CheckFormat(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "-07:00") {
			t.Errorf("%q: %v", format, err)
		}
	}
}

// errOurs is a bug of the reader, not an error of the file.
var errOurs = errors.New("the reader is wrong")

// readAll reads a text as a file with the columns t, n and m.
func readAll(text string) (rows, bad int, err error) {
	job := Job{
		Open:    func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil },
		Mapping: Mapping{Columns: []ColumnMapping{{"n", "n"}}, TimeColumn: "t", Zone: time.UTC, Metadata: []string{"m"}},
	}
	_, err = readRows(context.Background(), job, func(r *usageRow, b error) error {
		if b != nil {
			bad++
			return nil
		}
		rows++
		if r.number < 1 || r.line < 2 || len(r.fields) < 3 || len(r.metadata) != 1 {
			return fmt.Errorf("a row without its place: %w", errOurs)
		}
		for _, a := range r.amounts {
			if a.n < 1 || a.n > maxAmount {
				return fmt.Errorf("an amount out of range: %w", errOurs)
			}
			if _, err := eventOf("x", a, r, time.Hour); err != nil {
				return errors.Join(err, errOurs)
			}
		}
		return nil
	})
	return rows, bad, err
}

func TestReadRows(t *testing.T) {
	const row = "2026-05-04 10:00:00,5,x\n"
	for name, c := range map[string]struct {
		text      string
		rows, bad int
		fails     bool
	}{
		"plain":              {"t,n,m\n" + row + row, 2, 0, false},
		"byte order mark":    {"\uFEFFt,n,m\n" + row, 1, 0, false},
		"other order":        {"m,z,n,t\nx,y,1,2026-05-04 10:00:00\n", 1, 0, false},
		"quoted, two lines":  {"t,n,m\n2026-05-04 10:00:00,5,\"a\nb\"\n", 1, 0, false},
		"no last line break": {"t,n,m\n" + strings.TrimSpace(row), 1, 0, false},
		"bare quote":         {"t,n,m\n2026-05-04 10:00:00,5,a\"b\n" + row, 1, 1, false},
		"too few":            {"t,n,m\n2026-05-04 10:00:00,5\n" + row, 1, 1, false},
		"not UTF-8":          {"t,n,m\n2026-05-04 10:00:00,5,\xff\n", 0, 1, false},
		"no rows":            {"t,n,m\n", 0, 0, false},
		"empty":              {"", 0, 0, true},
		"no such column":     {"t,n\n", 0, 0, true},
		"a column twice":     {"t,n,m,n\n", 0, 0, true},
		"endless row":        {"t,n,m\n2026-05-04 10:00:00,5,\"" + strings.Repeat(row, 100_000), 0, 0, true},
		"gzip of nothing":    {"\x1f\x8b", 0, 0, true},
	} {
		rows, bad, err := readAll(c.text)
		if rows != c.rows || bad != c.bad || (err != nil) != c.fails {
			t.Errorf("%s: %d rows, %d bad, %v", name, rows, bad, err)
		}
	}
}

func FuzzReadRows(f *testing.F) {
	f.Add("t,n,m\n2026-05-04 10:00:00,5,x\n")
	f.Add("\uFEFFt,n,m\r\n2026-05-04T10:00:00Z,0,\"a\"\"b\"\r\n,,\n")
	f.Add("t,n,m\n\"")
	f.Add("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		rows, bad, err := readAll(text)
		again, badAgain, errAgain := readAll(text)
		if rows != again || bad != badAgain || (err == nil) != (errAgain == nil) {
			t.Errorf("two passes differ: %d %d %v, %d %d %v", rows, bad, err, again, badAgain, errAgain)
		}
		if errors.Is(err, errOurs) {
			t.Error(err)
		}
	})
}
