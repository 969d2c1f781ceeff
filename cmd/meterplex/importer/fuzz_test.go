package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// FuzzImportOptions: for any file and mapping, two passes return the same result, and
// each accepted row becomes an exact event.
func FuzzImportOptions(f *testing.F) {
	const text = "t,n,m\n2026-05-04 10:00:00,5,x\n1777888800,9007199254740991,\n1777888800.5,-1,\"a\nb\"\n04.05.2026 10:00,1e3,\xff\n"
	for _, format := range []string{"", "rfc3339", "unix", "unix-ms", "unix-us", "unix-ns", "02.01.2006 15:04", "2006-01-02", "15:04",
		"yesterday", "Jan _2 2006", "\x00"} {
		f.Add(text, format, "a=n", "b=n", "t", "m", int16(0))
		f.Add("\uFEFF"+text, format, "a=n", "a=m", "t", "n", int16(840))
	}
	f.Add("\x1f\x8b\x08", "", "a=n", "", "t", "m", int16(-720))
	f.Add("t,t,n\n1,2,3\n", "unix", "=n", "a|b=n", "t", "t", int16(0))
	f.Add("n\n253402300800\n-1\n9223372036854775807\n", "unix-ns", "a=n", "b=n", "n", "n", int16(0))
	f.Fuzz(func(t *testing.T, text, format, first, second, timeColumn, metadata string, minutes int16) {
		columns, err := ParseColumns([]string{first, second})
		if err != nil {
			if columns, err = ParseColumns([]string{first}); err != nil {
				return
			}
		}
		m := Mapping{Columns: columns, TimeColumn: timeColumn, TimeFormat: format, Metadata: []string{metadata},
			Zone: time.FixedZone("x", int(minutes)*60)}
		if m.Check() != nil {
			return
		}
		job := Job{Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, Mapping: m}
		one, err := importedEvents(job)
		two, again := importedEvents(job)
		if !reflect.DeepEqual(one, two) || fmt.Sprint(err) != fmt.Sprint(again) || errors.Is(err, errOurs) {
			t.Fatalf("%v, %v\n%v, %v", one, err, two, again)
		}
	})
}

// importedEvents returns the events of a file, as they would be sent.
func importedEvents(job Job) (all []string, err error) {
	ids := eventIDs{seen: map[[16]byte]uint32{}}
	_, err = readRows(context.Background(), job, func(r *usageRow, bad error) error {
		if bad != nil {
			all = append(all, bad.Error())
			return nil
		}
		if !r.at.Equal(r.at.Truncate(time.Microsecond)) || r.at.Year() < 1990 || r.at.Year() > 2200 {
			return fmt.Errorf("the time %v: %w", r.at, errOurs)
		}
		for _, a := range r.amounts {
			id, err := ids.of(r, a, "")
			if err != nil {
				return errors.Join(err, errOurs)
			}
			event, err := eventOf(id, a, r, 0)
			var sent struct {
				EventID   string
				Amount    int64
				Timestamp time.Time
				Metadata  map[string]string
			}
			if err != nil || json.Unmarshal(event, &sent) != nil || sent.Amount != a.n || a.n < 1 || a.n > maxAmount ||
				!sent.Timestamp.Equal(r.at) || len(sent.EventID) != 32 ||
				!reflect.DeepEqual(sent.Metadata, r.metadata) {
				return fmt.Errorf("%s, %v: %w", event, err, errOurs)
			}
			all = append(all, string(event))
		}
		return nil
	})
	return all, err
}

// FuzzImportState: an import's state is read as it was written, and a damaged state is
// an error, never mistaken for a new import.
func FuzzImportState(f *testing.F) {
	for _, s := range []string{"", "{}", "null", "[]",
		`{"name":"a","sha256":"b","terms":{"columns":[{"feature":"f","column":"c"}],"timeZone":"UTC","metadata":[],"times":"shifted"},` +
			`"anchor":"2026-05-01T00:00:00Z"}`,
		`{"sha256":1.5}`, `{"anchor":"9999-12-31T23:59:59-14:00"}`, `{"terms":-1}`, `{"name":"a"`, "\x00\x00\x00",
		`{"name":"a"}{"name":"b"}`} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "state.json")
		must.OK(t, os.WriteFile(path, text, 0o600))
		st, err := readState(path)
		if err != nil {
			return
		}
		if st == nil {
			t.Fatalf("%q is an empty amount", text)
		}
		kept, err := json.Marshal(st)
		if err != nil {
			t.Fatalf("%q cannot be kept: %v", text, err)
		}
		must.OK(t, os.WriteFile(path, kept, 0o600))
		again, err := readState(path)
		if second, e := json.Marshal(again); err != nil || e != nil || string(second) != string(kept) {
			t.Fatalf("%q is kept as %s, then %s, %v", text, kept, second, err)
		}
	})
}
