package importer

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// Rows of each type become events of it; a row that is no valid event is named with its column.
func TestCorrectionsInCSV(t *testing.T) {
	m := &Mapping{Columns: []ColumnMapping{{"calls", "n"}}, TimeColumn: "at", Zone: time.UTC, TypeColumn: "type", RefColumn: "of"}
	const at = "2026-05-01T00:00:00Z"
	for row, want := range map[string]string{
		at + ",5,,":      `{"eventId":"*","feature":"calls","amount":5,"timestamp":"2026-05-01T00:00:00Z"}`,
		at + ",5,usage,": `{"eventId":"*","feature":"calls","amount":5,"timestamp":"2026-05-01T00:00:00Z"}`,
		at +
			",7,correction,order-1": `{"type":"correction","eventId":"*","correctionRef":"order-1","feature":"calls","amount":7,` +
			`"timestamp":"2026-05-01T00:00:00Z"}`,
		at +
			",0,correction,order-1": `{"type":"correction","eventId":"*","correctionRef":"order-1","feature":"calls","amount":0,` +
			`"timestamp":"2026-05-01T00:00:00Z"}`,
		at +
			",,retraction,order-1": `{"type":"retraction","eventId":"*","correctionRef":"order-1","feature":"calls",` +
			`"timestamp":"2026-05-01T00:00:00Z"}`,
		at + ",0,,":                   "", // no usage
		at + ",5,,order-1":            `column "of": usage corrects no other event`,
		at + ",5,correction,":         `column "of": a correction names the eventId`,
		at + ",,retraction,":          `column "of": a retraction names the eventId`,
		at + ",5,retraction,order-1":  `column "n": a retraction has no amount`,
		at + ",,correction,order-1":   `column "n": "" is not a whole number`,
		at + ",-1,correction,order-1": `column "n": "-1" is not a whole number`,
		at + ",5,Correction,order-1":  `column "type": "Correction" is not usage, correction or retraction`,
	} {
		rows, err := newRowReader(strings.NewReader("at,n,type,of\n"+row+"\n"), m)
		must.OK(t, err)
		r, err := rows.next()
		if bad, ok := errors.AsType[*badRow](err); ok {
			if want == "" || !strings.HasPrefix(bad.reason, want) {
				t.Errorf("%s: %s", row, bad.reason)
			}
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		got := ""
		if len(r.amounts) > 0 {
			event, err := eventOf("*", r.amounts[0], r, 0)
			must.OK(t, err)
			got = string(event)
		}
		if got != want {
			t.Errorf("%s: %s instead of %s", row, got, want)
		}
	}
	for _, bad := range []Mapping{
		{Columns: m.Columns, TypeColumn: "type"}, {Columns: m.Columns, RefColumn: "of"},
		{Columns: []ColumnMapping{{"a", "n"}, {"b", "n"}}, TypeColumn: "type", RefColumn: "of"},
		{}, {Columns: m.Columns, FeatureColumn: "f", AmountColumn: "n"}, {FeatureColumn: "f"}, {AmountColumn: "n"},
		{Columns: m.Columns, Rename: map[string]string{"a": "b"}},
	} {
		if bad.Check() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
