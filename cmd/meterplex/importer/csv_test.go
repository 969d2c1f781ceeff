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
		if r.number < 1 || r.line < 2 || len(r.metadata) != 1 {
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
		"CRLF":               {"t,n,m\r\n" + strings.ReplaceAll(row, "\n", "\r\n"), 1, 0, false},
		"two other columns":  {"a,t,a,n,m\n,2026-05-04 10:00:00,,5,x\n", 1, 0, false},
		"lines end with CR":  {"t,n,m\r" + strings.ReplaceAll(row, "\n", "\r"), 0, 0, true},
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
