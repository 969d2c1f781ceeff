package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// TestRequestsNameWhatTheirOperationsHave: a misspelt name of an input would have no effect, and a misspelt column would be empty for ever.
func TestRequestsNameWhatTheirOperationsHave(t *testing.T) {
	for _, c := range requests() {
		o := app.OperationOf(c.Op)
		var inputs []string
		for _, in := range o.Inputs {
			inputs = append(inputs, in.Name)
		}
		named := append(slices.Collect(maps.Keys(c.Tags)), slices.Collect(maps.Keys(c.Read))...)
		for _, name := range append(named, strings.Fields(strings.ReplaceAll(c.Args, "?", ""))...) {
			if !slices.Contains(inputs, name) && name != "--limit" {
				t.Errorf("%s: %s has no %s", c.Name, c.Op, name)
			}
		}
		for column := range strings.FieldsSeq(c.Columns) {
			if !slices.Contains(o.Answer, column) {
				t.Errorf("%s: an entry of %s has no %s", c.Name, c.Op, column)
			}
		}
	}
}
