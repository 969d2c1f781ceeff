package cli

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

const (
	onceHeader = "id,at,n,region\n"
	onceRows   = "r1,2026-11-20 12:00:00,100,eu\nr2,2026-11-20 12:00:01,200,eu\nr3,2026-11-20 12:00:01,200,eu\n"
)

// onceArgs returns the arguments that import a file with these rows.
func onceArgs(file string, more ...string) []string {
	return append([]string{"usage", "import", file, "-o", "json", "--time-column", "at", "--map", "tokens=n", "--backfill"}, more...)
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestImportCountsARowOnceInEveryFile: compressed, longer, in another form or order, under another name, and from another machine; equal
// rows of one file count each.
func TestImportCountsARowOnceInEveryFile(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write([]byte(onceHeader + onceRows))
	must.OK(t, z.Close())
	lines := strings.SplitAfter(onceRows, "\n")
	files := []string{
		writeFile(t, "spend (1).csv", onceHeader+onceRows),
		writeFile(t, "spend.csv.gz", zipped.String()),
		writeFile(t, "windows.csv", "\uFEFF"+strings.ReplaceAll(onceHeader+onceRows, "\n", "\r\n")),
		writeFile(t, "postgres.csv", "n,at,id,region\n200,2026-11-20T12:00:01Z,r3,eu\n100.0,2026-11-20 "+
			"12:00:00+00,r1,eu\n\"200\",2026-11-20 12:00:01 UTC,r2,eu\n"),
		writeFile(t, "later.csv", onceHeader+"r4,2026-11-20 13:00:00,1,us\n"+lines[1]+lines[0]+lines[2]),
	}
	half := writeFile(t, "half.csv.gz", zipped.String()[:zipped.Len()/2])
	if code, _, errs := newConsole(t, newFakeService(t)).run(onceArgs(half)...); code != app.ExitUnknown {
		t.Errorf("half a file: exit code %d\n%s", code, errs)
	}
	for name, more := range map[string][]string{"values": nil, "metadata": {"--metadata", "region"}, "id": {"--id-column", "id"},
		"id in metadata": {"--metadata", "id"}} {
		p := newFakeService(t)
		same := newConsole(t, p)
		for i, file := range files {
			for _, c := range []*console{same, newConsole(t, p)} { // the second is on another machine
				if code, _, errs := c.run(onceArgs(file, more...)...); code != app.ExitYes {
					t.Fatalf("%s, %s: exit code %d\n%s", name, file, code, errs)
				}
			}
			want := int64(500)
			if i == len(files)-1 {
				want = 501
			}
			if _, sums := p.totals(); sums["tokens"] != want {
				t.Errorf("%s, %s: %v", name, filepath.Base(file), sums)
			}
		}
	}
}

// TestImportRefusesToCountRowsAgain: with options under which the rows of a file have other ids, whatever the name, unless --again is
// given.
func TestImportRefusesToCountRowsAgain(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	file := writeFile(t, "spend.csv", onceHeader+onceRows)
	run := func(want int, sum int64, text string, more ...string) {
		t.Helper()
		code, out, errs := c.run(onceArgs(file, more...)...)
		if _, sums := p.totals(); code != want || sums["tokens"] != sum || !strings.Contains(errs, text) ||
			(out == "") != (want == app.ExitUnknown) {
			t.Errorf("%s: exit code %d, %v\n%s%s", more, code, sums, out, errs)
		}
	}
	run(app.ExitYes, 500, "All 3 events are accepted")
	run(app.ExitYes, 500, "No new events", "--name", "second")
	for _, more := range [][]string{{"--time-zone", "Europe/Berlin"}, {"--metadata", "region"}, {"--scale", "2"}, {"--id-column", "id"}} {
		run(app.ExitUnknown, 500, "--again", more...)
		run(app.ExitUnknown, 500, "--again", append(more, "--name", "third")...)
	}
	run(app.ExitUnknown, 500, "--again needs a --name", "--again")
	run(app.ExitUnknown, 500, "again: true, then false", "--again", "--name", "second")
	run(app.ExitYes, 1000, "All 3 events are accepted", "--again", "--name", "third")
	run(app.ExitYes, 1000, "No new events", "--again", "--name", "third")
	run(app.ExitYes, 1500, "All 3 events are accepted", "--again", "--name", "fourth", "--metadata", "region")
	run(app.ExitYes, 1500, "All 6 events are accepted", "--map", "calls=n") // another feature
}

// TestImportOfACloudBill: each row names its tenant and its feature; other rows are left out, keys end with the import.
func TestImportOfACloudBill(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	p.catalog["/api/v1/tenants/111"], p.catalog["/api/v1/tenants/222"] = json.RawMessage(`{"id":"t1","mode":"live"}`),
		json.RawMessage(`{"id":"t2"}`)
	const bill = "account,date,product,type,hours\n" +
		"111,2026-11-01,BoxUsage:t3.micro,Usage,0.25\n222,2026-11-01,storage,Usage,3\n111,2026-11-02,storage,Usage,2\n222,2026-11-02,,Tax," +
		"-17.3\n111,2026-11-03,storage,Credit,0\n"
	args := func(text string, more ...string) []string {
		return append([]string{"usage", "import", writeFile(t, "bill.csv", text), "-o", "json", "--time-column", "date", "--tenant-column",
			"account",
			"--feature-column", "product", "--amount-column", "hours", "--scale", "100", "--backfill", "--where", "type=Usage", "--where",
			"type=Credit"}, more...)
	}
	code, out, errs := c.run(args(bill)...)
	if code != app.ExitUnknown || out != "" || p.ingests != 0 ||
		!strings.Contains(errs,
			`line 2: column "product": "BoxUsage:t3.micro" is not the key of a feature: give --rename "BoxUsage:t3.micro=FEATURE"`) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	code, out, errs = c.run(args(strings.ReplaceAll(bill, "222", "333"), "--rename", "BoxUsage:t3.micro=compute")...)
	if code != app.ExitUnknown || out != "" || p.ingests != 0 ||
		!strings.Contains(errs, `line 3: no tenant has the id or external id "333"`) || len(p.requests) != 2 {
		t.Errorf("exit code %d, %q\n%s%s", code, p.requests, out, errs)
	}
	code, out, errs = c.run(args(bill, "--rename", "BoxUsage:t3.micro=compute")...)
	s := summaryOf(t, out)
	if code != app.ExitYes || s.Accepted != 3 || s.OtherRows != 1 || s.SkippedZeroAmounts != 1 || s.Features["compute"].Amount != 25 ||
		s.Features["storage"].Amount != 500 {
		t.Errorf("exit code %d, %+v\n%s", code, s, errs)
	}
	made, revoked := 0, 0
	for _, r := range p.requests {
		if strings.Contains(r, `POST`) && strings.Contains(r, `"scopes":["usage:write","usage:read","usage:backfill"]`) &&
			strings.Contains(r, "expiresAt") {
			made++
		}
		if strings.HasPrefix(r, "DELETE /api/v1/tenants/t") {
			revoked++
		}
	}
	if made != 2 || revoked != 2 {
		t.Errorf("%d keys made, %d revoked: %q", made, revoked, p.requests)
	}
	code, out, errs = c.run(onceArgs(writeFile(t, "a.csv", onceHeader+onceRows), "--where", "region=mars")...)
	if code != app.ExitUnknown || out != "" || !strings.Contains(errs, `no row of 3 is one of --where "region=mars"`) {
		t.Errorf("nothing selected: exit code %d\n%s%s", code, out, errs)
	}
}
