package csvtext

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// TestNoCellOfCSVIsAFormula: texts that a spreadsheet would execute get an apostrophe; numbers stay numbers.
func TestNoCellOfCSVIsAFormula(t *testing.T) {
	for cell, want := range map[string]string{
		`=HYPERLINK("http://x.example","total")`: `"'=HYPERLINK(""http://x.example"",""total"")"`, "@SUM(1+1)": "'@SUM(1+1)",
		"+1+1": "'+1+1", "-2+3": "'-2+3", "\tx": "'\tx", "\r=1": "\"'\r=1\"",
		"-17": "-17", "-0.30": "-0.30", "0": "0", "": "", "a=b": "a=b", "'=1": "'=1", "-": "'-",
	} {
		var text strings.Builder
		w := NewWriter(&text)
		must.OK(t, w.Write([]string{"x", cell}))
		w.Flush()
		if got := text.String(); got != "x,"+want+"\n" {
			t.Errorf("%q is written as %q, want %q", cell, got, want)
		}
	}
}
