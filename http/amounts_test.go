package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/internal/must"
)

// Every documented amount of an answer, and no other number, becomes a text: by the example of each operation and its schema.
func TestP3_AmountsOfEveryAnswerAsTexts(t *testing.T) {
	d, _ := describe(t)
	site, err := api.Build(&api.Dependencies{}, operations)
	must.OK(t, err)
	operations := map[string]*huma.Operation{}
	for _, op := range api.OperationsOf(site.API.OpenAPI()) {
		operations[op.OperationID] = op
	}
	checked := 0
	for path, item := range d.Paths {
		for method, call := range item {
			takes := strings.Contains(fmt.Sprint(call.Parameters), "{amounts query")
			for status, response := range call.Responses {
				var media struct {
					Schema  any
					Example any
				}
				if status[0] != '2' || response.Content[api.MediaJSON] == nil {
					continue
				}
				decodeExact(t, string(response.Content[api.MediaJSON]), &media)
				o := oracle{t: t, d: d}
				want := o.texts(media.Schema, media.Example)
				if o.amounts == 0 {
					continue
				}
				checked += o.amounts
				if !takes {
					t.Errorf("%s %s answers amounts and has no parameter amounts", method, path)
					continue
				}
				if got := sentAsTexts(t, site, operations[call.OperationID], media.Example); got != encoded(t, want) {
					t.Errorf("%s %s:\n got %s\nwant %s", method, path, got, encoded(t, want))
				}
			}
		}
	}
	if checked < 60 {
		t.Errorf("only %d amounts were checked", checked)
	}
}

// oracle reads the documented schemas: it writes each integer as a text that is marked as an amount.
type oracle struct {
	t       *testing.T
	d       document
	amounts int
}

func (o *oracle) texts(schema, value any) any {
	s, _ := schema.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		var named any
		decodeExact(o.t, string(o.d.Components.Schemas[ref[len(api.SchemaPrefix):]]), &named)
		return o.texts(named, value)
	}
	for _, one := range asList(s["anyOf"]) {
		if one.(map[string]any)["type"] != "null" {
			return o.texts(one, value)
		}
	}
	switch v := value.(type) {
	case json.Number:
		if s["x-amount"] == true {
			o.amounts++
			return v.String()
		}
	case []any:
		list := []any{}
		for _, one := range v {
			list = append(list, o.texts(s["items"], one))
		}
		return list
	case map[string]any:
		members, _ := s["properties"].(map[string]any)
		object := map[string]any{}
		for name, one := range v {
			object[name] = one
			if member, documented := members[name]; documented {
				object[name] = o.texts(member, one)
			}
		}
		return object
	}
	return value
}

func asList(v any) []any { list, _ := v.([]any); return list }

func decodeExact(t *testing.T, text string, to any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(to); err != nil {
		t.Fatal(err, text)
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// sentAsTexts returns the example as a client receives it, in pieces of each small size.
func sentAsTexts(t *testing.T, s *api.Site, op *huma.Operation, example any) (got string) {
	t.Helper()
	reader := &api.AmountReader{Registry: s.API.OpenAPI().Components.Schemas, Named: map[string]*api.Amounts{}}
	body := encoded(t, example)
	for size := 1; size < 8; size++ {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", "text/plain;q=0.5, application/json; amounts=string")
		api.AsTexts(reader.OfAnswer(op), nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.MediaJSON)
			for piece := range slices.Chunk([]byte(body), size) {
				_, _ = w.Write(piece)
			}
		})).ServeHTTP(w, r)
		var v any
		decodeExact(t, w.Body.String(), &v)
		if one := encoded(t, v); size > 1 && one != got {
			t.Errorf("%s in pieces of %d bytes: %s", op.OperationID, size, one)
		} else {
			got = one
		}
	}
	return got
}
