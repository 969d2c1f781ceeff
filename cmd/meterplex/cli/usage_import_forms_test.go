package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

const plainRows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,2\n2023-11-16 18:17:04,3,4\n"

// TestImportReadsOtherDelimiters: they are part of the import's terms; a file with another one names the flag.
func TestImportReadsOtherDelimiters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.csv")
	for name, of := range map[string]string{";": ";", "|": "|", "tab": "\t"} {
		must.OK(t, os.WriteFile(file, []byte(strings.ReplaceAll(plainRows, ",", of)), 0o600))
		p := newFakeService(t)
		c := newConsole(t, p)
		if of != "|" { // it may be part of a column's name
			code, _, errs := c.run(traceArgs(file, "--backfill")...)
			if code != app.ExitUnknown || !strings.Contains(errs, "--delimiter '"+name+"'") {
				t.Errorf("%s: exit code %d\n%s", name, code, errs)
			}
		}
		code, out, errs := c.run(traceArgs(file, "--backfill", "--delimiter", name)...)
		if s := summaryOf(t, out); code != app.ExitYes || s.Accepted != 4 || s.Features["output_tokens"].Amount != 6 {
			t.Errorf("%s: exit code %d, %+v\n%s", name, code, s, errs)
		}
	}
	for _, bad := range []string{"", "ab", "\"", "\n"} {
		if code, _, errs := newConsole(t, newFakeService(t)).
			run(traceArgs(file, "--backfill", "--delimiter="+bad)...); code != app.ExitUnknown || !strings.Contains(errs, "delimiter") {
			t.Errorf("%q: exit code %d\n%s", bad, code, errs)
		}
	}
}

// TestImportNamesFilesThatAreNoCSV: with the remedy.
func TestImportNamesFilesThatAreNoCSV(t *testing.T) {
	wide := func(first, second byte, at int) (text string) {
		b := []byte{first, second}
		for _, c := range []byte(plainRows) {
			pair := []byte{0, 0}
			pair[at] = c
			b = append(b, pair...)
		}
		return string(b)
	}
	file := filepath.Join(t.TempDir(), "a.csv")
	for want, text := range map[string]string{
		"UTF-16": wide(0xff, 0xfe, 0), "UTF-16 ": wide(0xfe, 0xff, 1), " UTF-16": wide(0xff, 0xfe, 0)[2:],
		".xlsx": "PK\x03\x04" + strings.Repeat("x", 100), ".xls": "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
		"xz -dc": "\xfd7zXZ\x00\x00\x04", "zstd -dc": "\x28\xb5\x2f\xfd\x24\x13", "bzip2 -dc": "BZh91AY&SY\x01",
		"is Parquet": "PAR1\x15\x04",
		"is JSON":    `{"TIMESTAMP":"2023-11-16"}` + "\n", "is JSON ": "[\n  {\n", "is HTML": "<!DOCTYPE html>\n",
		"with CR alone":   strings.ReplaceAll(plainRows, "\n", "\r"),
		"--delimiter ';'": "sep=;\na;b\n", "iconv -f WINDOWS-1252": "gr\xf6\xdfe,n\n",
	} {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		p := newFakeService(t)
		code, out, errs := newConsole(t, p).run(traceArgs(file, "--backfill", "--skip-bad")...)
		if code != app.ExitUnknown || out != "" || p.ingests != 0 || !strings.Contains(errs, strings.TrimSpace(want)) {
			t.Errorf("%s: exit code %d\n%s%s", want, code, out, errs)
		}
	}
}

// TestImportReadsStandardInput: it needs a name, and the same input again counts once.
func TestImportReadsStandardInput(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	for _, known := range []int64{0, 4} {
		c.app.Stdin = strings.NewReader(plainRows)
		code, out, errs := c.run(traceArgs("-", "--backfill")...)
		if s := summaryOf(t, out); code != app.ExitYes || s.Accepted != 4-known || s.Duplicates != known {
			t.Errorf("exit code %d, %+v\n%s", code, s, errs)
		}
	}
	code, _, errs := c.run("usage", "import", "-", "--time-column", "TIMESTAMP", "--map", "a=ContextTokens")
	if code != app.ExitUnknown || !strings.Contains(errs, "--name") {
		t.Errorf("without a name: exit code %d\n%s", code, errs)
	}
}

// TestImportSaysCountedOnlyOfFigures: accepted events are not in the figures yet; with --wait they are, up to the last position.
func TestImportSaysCountedOnlyOfFigures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.csv")
	must.OK(t, os.WriteFile(file, []byte(plainRows), 0o600))
	p := newFakeService(t)
	c := newConsole(t, p)
	code, _, errs := c.run(traceArgs(file, "--backfill")...)
	if code != app.ExitYes || !strings.Contains(errs, "All 4 events are accepted") || strings.Contains(errs, "are counted") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	code, _, errs = c.run(traceArgs(file, "--backfill", "--again", "--name", "again", "--wait", "20s")...)
	if code != app.ExitYes || !strings.Contains(errs, "All 4 events are counted") || p.awaited != "3-8 wait=20" {
		t.Errorf("exit code %d, waited for %q\n%s", code, p.awaited, errs)
	}
	p.catalog["behind"] = json.RawMessage(`{}`)
	code, out, errs := c.run(traceArgs(file, "--backfill", "--again", "--name", "third", "--wait", "1ms")...)
	if summaryOf(t, out); code != app.ExitUnknown || strings.Contains(errs, "are counted") ||
		!strings.Contains(errs, "projection_behind") || !strings.Contains(errs, "All 4 events are accepted") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// TestImportNamesEventsThatAreNotCounted: the figures have passed an event that the validator rejected, and one that is a dead
// letter. Events of others, and refused ones, are not counted among them.
func TestImportNamesEventsThatAreNotCounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.csv")
	must.OK(t, os.WriteFile(file, []byte(plainRows), 0o600))
	p := newFakeService(t)
	for i := range 3 { // events of others, before the import
		p.known[fmt.Sprint("other", i)] = event{}
	}
	listed := func(positions ...string) json.RawMessage {
		var rows []string
		for _, at := range positions {
			rows = append(rows, `{"eventId":"x","position":"`+at+`"}`)
		}
		return json.RawMessage(`{"data":[` + strings.Join(rows, ",") + `],"nextCursor":null}`)
	}
	c := newConsole(t, p)
	p.catalog["/api/v1/usage/events REJECTED"] = listed("3-9", "3-3", "3-2")
	if code, _, errs := c.run(traceArgs(file, "--backfill", "--wait", "20s")...); code != app.ExitYes ||
		!strings.Contains(errs, "All 4 events are counted") {
		t.Fatalf("rejected ones of others: exit code %d\n%s", code, errs)
	}
	p.catalog["/api/v1/usage/events REJECTED"] = listed("3-12", "3-11", "3-8", "3-7")
	p.catalog["/api/v1/usage/events DEAD_LETTERED"] = listed("3-9", "3-1")
	code, _, errs := c.run(traceArgs(file, "--backfill", "--again", "--name", "again", "--wait", "20s")...)
	for _, want := range []string{
		"1 of 4 events are counted, up to position 3-11; 3 are NOT counted.",
		"\n2 are REJECTED: meterplex usage list --status REJECTED\n",
		"\n1 are DEAD_LETTERED: meterplex usage list --status DEAD_LETTERED\n",
	} {
		if code != app.ExitNo || !strings.Contains(errs, want) {
			t.Errorf("exit code %d, %q is not in\n%s", code, want, errs)
		}
	}
	p.tooOld = time.Date(2023, 11, 16, 18, 17, 4, 0, time.UTC) // of another name, two are refused
	clear(p.catalog)
	code, _, errs = c.run(traceArgs(file, "--backfill", "--again", "--name", "old", "--wait", "20s")...)
	if code != app.ExitNo || strings.Contains(errs, "All ") || !strings.Contains(errs, "2 of 4 events are counted") ||
		!strings.Contains(errs, "2 are not recorded") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	p.refuse = func(w http.ResponseWriter) { refuse(w, http.StatusForbidden, "scope_missing", "needs usage:read") }
	code, _, errs = c.run(traceArgs(file, "--backfill", "--again", "--name", "unknown", "--wait", "20s")...)
	if code == app.ExitYes || strings.Contains(errs, "are counted,") ||
		!strings.Contains(errs, "not known whether all events are counted") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}
