package shape

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
)

// checkOf is the body of a check of several features: a list of objects, with a table.
type checkOf struct {
	Features []featureOf       `json:"features" minItems:"1" maxItems:"100"`
	Lines    []string          `json:"lines,omitempty" required:"false"`
	Labels   map[string]string `json:"labels,omitempty" required:"false"`
	Strict   bool              `json:"strict,omitempty" required:"false"`
}

type featureOf struct {
	Feature string `json:"feature" minLength:"1" maxLength:"64"`
	Amount  int    `json:"amount,omitempty" required:"false" minimum:"0" maximum:"1000"`
	Mode    string `json:"mode,omitempty" required:"false" enum:"soft,hard"`
}

func bodyOf(of any) *Body {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	return &Body{schema: registry.Schema(reflect.TypeOf(of), true, "Body"), registry: registry}
}

const smallBody = `{"features":[{"feature":"api_calls","amount":5},{"feature":"storage","mode":"hard"},{"feature":"seats"}],` +
	`"labels":{"team":"a"}}`

func BenchmarkCheckSmallBody(b *testing.B) {
	check, raw := bodyOf(checkOf{}), []byte(smallBody)
	b.ReportAllocs()
	for b.Loop() {
		if p := check.Check(raw); p != nil {
			b.Fatal(p)
		}
	}
}

// largest is the size of the largest body of the API.
const largest = 4 << 20

// repeated returns the largest body that begins and ends with these texts, with a text repeated between them.
func repeated(begin, text, end string) []byte {
	return []byte(begin + strings.Repeat(text, (largest-len(begin)-len(end))/len(text)) + end)
}

// numbered returns the largest object that begins with these texts and has members of different names.
func numbered(begin, value, end string) []byte {
	var out strings.Builder
	out.WriteString(begin)
	for n := 0; out.Len() < largest-len(end)-64; n++ {
		if n > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, `"%d":%s`, n, value)
	}
	return []byte(out.String() + end)
}

// P9: a body takes memory in proportion to its size, whatever its content: else a few requests of one key could end the
// process of all.
func TestP9_ACheckHoldsNoMoreThanItsBody(t *testing.T) {
	nested := strings.Repeat(`{"":`, 50) + "0" + strings.Repeat("}", 50)
	for name, c := range map[string]struct {
		raw   []byte
		times uint64 // how much may be allocated, in sizes of the body
	}{
		"nested objects":  {repeated(`{"features":[`+nested, ","+nested, `]}`), 1},
		"empty objects":   {repeated(`{"features":[{}`, `,{}`, `]}`), 1},
		"empty arrays":    {repeated(`{"lines":[[]`, `,[]`, `]}`), 1},
		"many elements":   {repeated(`{"features":[{"feature":"a"}],"lines":[""`, `,""`, `]}`), 1},
		"many escapes":    {repeated(`{"features":[{"feature":"a"}],"lines":["`, `\u0061`, `"]}`), 2},
		"a long number":   {repeated(`{"features":[{"feature":"a","amount":1`, `0`, `}]}`), 4},
		"unknown members": {numbered(`{`, "{}", `}`), 1},
		"table":           {numbered(`{"features":[{"feature":"a"}],"labels":{`, `""`, `}}`), 1},
		"invalid table":   {numbered(`{"features":[{"feature":"a"}],"labels":{`, "{}", `}}`), 1},
	} {
		var before, after runtime.MemStats
		check := bodyOf(checkOf{})
		if !json.Valid(c.raw) || len(c.raw) > largest || len(c.raw) < largest-1000 {
			t.Fatalf("%s: %d bytes are no body", name, len(c.raw))
		}
		runtime.ReadMemStats(&before)
		p := check.Check(c.raw)
		runtime.ReadMemStats(&after)
		took := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %.2f times the body: %v", name, float64(took)/largest, p)
		if took > c.times*largest {
			t.Errorf("%s: the check of %d bytes allocates %d, more than %d times as much", name, len(c.raw), took, c.times)
		}
	}
}

// The fault that is reported does not depend on the order of members: an unknown member comes before a missing one, and that
// before a wrong value.
func TestFaultsOfABodyHaveAnOrder(t *testing.T) {
	for raw, want := range map[string]string{
		`{"zz":1,"features":5,"yy":{"":[]}}`:                             "unknown_member /yy",
		`{"strict":5,"lines":7}`:                                         "member_missing /features",
		`{"strict":5,"lines":7,"features":[]}`:                           "features_invalid /features",
		`{"features":[{"feature":""},{"x":1}],"lines":7}`:                "feature_invalid /features/0/feature",
		`{"features":[{"amount":1001,"a/b~\u0063":0}]}`:                  "unknown_member /features/0/a~1b~0c",
		` {"features": [ {"feature":"a","mode":null} , {"feature":5}]} `: "feature_invalid /features/1/feature",
		`{"features":[{"feature":"a"}],"labels":{"c":"","b":1,"a":2}}`:   "labels_invalid /labels/b",
		`{"features":[{"feature":"a","mode":"h\u0061rd"}],"lines":null}`: "",
		`[]`: "body_invalid ",
	} {
		got := ""
		if p := bodyOf(checkOf{}).Check([]byte(raw)); p != nil {
			got = p.Code + " "
			for _, fault := range p.Errors {
				got += fault.Pointer
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}
