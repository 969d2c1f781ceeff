// Package csvtext writes CSV in which no cell is a formula: texts are those of customers, and spreadsheets execute them. It knows no
// resource of the API.
package csvtext

import (
	"encoding/csv"
	"io"
	"regexp"
	"strings"
)

// Writer writes records as CSV.
type Writer struct{ *csv.Writer }

// NewWriter returns a writer to w.
func NewWriter(w io.Writer) Writer { return Writer{csv.NewWriter(w)} }

// Write writes a record. Texts that a spreadsheet would execute get a leading apostrophe; numbers below 0 stay. It changes cells.
func (w Writer) Write(cells []string) error {
	for i, cell := range cells {
		if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n") && !belowZero.MatchString(cell) {
			cells[i] = "'" + cell
		}
	}
	return w.Writer.Write(cells)
}

// belowZero matches numbers below 0.
var belowZero = regexp.MustCompile(`^-[0-9]+(\.[0-9]+)?$`)
