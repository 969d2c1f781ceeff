package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestRequestsNameWhatTheirOperationsHave: a misspelt name of an input would set nothing, and a misspelt column would be empty for ever.
func TestRequestsNameWhatTheirOperationsHave(t *testing.T) {
	for _, c := range requests() {
		o := operationOf(c.op)
		var inputs []string
		for _, in := range o.Inputs {
			inputs = append(inputs, in.Name)
		}
		named := append(slices.Collect(maps.Keys(c.tags)), slices.Collect(maps.Keys(c.read))...)
		for _, name := range append(named, strings.Fields(strings.ReplaceAll(c.args, "?", ""))...) {
			if !slices.Contains(inputs, name) && name != "--limit" {
				t.Errorf("%s: %s has no %s", c.name, c.op, name)
			}
		}
		for column := range strings.FieldsSeq(c.columns) {
			if !slices.Contains(o.Answer, column) {
				t.Errorf("%s: an entry of %s has no %s", c.name, c.op, column)
			}
		}
	}
}
