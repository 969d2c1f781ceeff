package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// TestListsAreStreamed: the printer of a list holds no more than a block of it.
func TestListsAreStreamed(t *testing.T) {
	for _, format := range []string{"table", "json", "ndjson", "csv"} {
		var out bytes.Buffer
		p := Printer{Format: format, Out: &out}.Rows("a", "b")
		var all []json.RawMessage
		for n := range 3 * tableBlock {
			all = append(all, json.RawMessage(fmt.Sprintf(`{"a":%d,"b":["<",{}]}`, n)))
			must.OK(t, p.Row(all[n]))
			if lines := bytes.Count(out.Bytes(), []byte("\n")); n >= tableBlock && lines < n-tableBlock {
				t.Fatalf("%s: %d lines after %d rows", format, lines, n)
			}
		}
		must.OK(t, p.Close())
		if format != "json" {
			continue
		}
		whole, err := json.MarshalIndent(all, "", "  ")
		if err != nil || out.String() != string(whole)+"\n" {
			t.Errorf("the streamed array is not the array: %v", err)
		}
	}
	var out bytes.Buffer
	if err := (Printer{Format: "json", Out: &out}).Rows().Close(); err != nil || out.String() != "[]\n" {
		t.Errorf("an empty list is %q, %v", out.String(), err)
	}
}

// TestCSVHasNoFormulas: -o csv writes the cells of lists and objects as the API's CSV does.
func TestCSVHasNoFormulas(t *testing.T) {
	var out bytes.Buffer
	must.OK(t, Printer{Format: "csv", Out: &out}.Object(json.RawMessage(`{"name":"=1+1","amount":-7}`)))
	if out.String() != "name,amount\n'=1+1,-7\n" {
		t.Errorf("%q", out.String())
	}
}
