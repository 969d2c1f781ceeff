package console

import (
	"encoding/csv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/internal/must"
)

// Any text of CSV of two columns or more (a reader skips an empty line), cut anywhere, has the same cells afterwards, except that a formula is quoted.
func TestAFileQuotesFormulas(t *testing.T) {
	cell := rapid.StringOf(rapid.SampledFrom([]rune("=+-@\t\r\n\",a' é")))
	rapid.Check(t, func(rt *rapid.T) {
		width := rapid.IntRange(2, 3).Draw(rt, "width")
		table := rapid.SliceOfN(rapid.SliceOfN(cell, width, width), 1, 4).Draw(rt, "table")
		var text strings.Builder
		must.OK(rt, csv.NewWriter(&text).WriteAll(table))
		c, quoted := &cells{first: true}, []byte(nil)
		for rest := text.String(); rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
			quoted, rest = append(quoted, c.quote([]byte(rest[:n]))...), rest[n:]
		}
		got, err := csv.NewReader(strings.NewReader(string(quoted))).ReadAll()
		if err != nil {
			rt.Fatalf("%q: %v", quoted, err)
		}
		plain, err := csv.NewReader(strings.NewReader(text.String())).ReadAll() // a reader changes \r\n in a cell
		must.OK(rt, err)
		for i := range plain {
			for j, want := range plain[i] {
				if strings.HasPrefix(table[i][j], "\r") && !strings.HasPrefix(want, "\r") {
					want = "'" + want
				} else if want != "" && strings.ContainsAny(want[:1], "=+-@\t\r") {
					want = "'" + want
				}
				if strings.ReplaceAll(got[i][j], "\r", "") != strings.ReplaceAll(want, "\r", "") {
					rt.Fatalf("the cell %q instead of %q in %q", got[i][j], want, quoted)
				}
			}
		}
	})
}
