package http

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/events"
	"github.com/meterplex/meterplex/internal/must"
)

// TestEveryMemberAndParameterIsDescribed: by a doc tag, or in descriptions.json, in which no text is
// without use.
func TestEveryMemberAndParameterIsDescribed(t *testing.T) {
	d, raw := describe(t)
	for name, s := range d.Components.Schemas {
		var schema struct {
			Properties map[string]map[string]any
		}
		if err := json.Unmarshal(s, &schema); err != nil {
			t.Fatal(name, err)
		}
		for member, of := range schema.Properties {
			if of["description"] == nil && of["$ref"] == nil {
				t.Errorf("%s.%s has no description: add one to descriptions.json", name, member)
			}
		}
	}
	for path, item := range d.Paths {
		for method, call := range item {
			for _, p := range call.Parameters {
				if p.Description == "" {
					t.Errorf("%s %s: the parameter %s has no description: add one to descriptions.json", method, path, p.Name)
				}
			}
		}
	}
	var texts map[string]string
	must.OK(t, json.Unmarshal(api.DescriptionsFile, &texts))
	for name, text := range texts {
		if quoted, _ := json.Marshal(text); !strings.Contains(string(raw), `"description":`+string(quoted)) {
			t.Errorf("descriptions.json describes %s, which needs no description", name)
		}
	}
}

// TestEveryOperationHasExamples: of its body and of its answer, each as its media type.
func TestEveryOperationHasExamples(t *testing.T) {
	d, _ := describe(t)
	type content map[string]struct{ Example json.RawMessage }
	checked := 0
	for path, item := range d.Paths {
		for method, call := range item {
			var body struct{ Content content }
			if len(call.RequestBody) > 0 {
				must.OK(t, json.Unmarshal(call.RequestBody, &body))
			}
			for media, m := range body.Content {
				if checked++; m.Example == nil {
					t.Errorf("%s %s: the body has no example as %s", method, path, media)
				}
			}
			for status, response := range call.Responses {
				for media, raw := range response.Content {
					var m struct{ Example json.RawMessage }
					must.OK(t, json.Unmarshal(raw, &m))
					if checked++; status[0] == '2' && m.Example == nil {
						t.Errorf("%s %s: %s has no example as %s", method, path, status, media)
					}
				}
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d bodies and answers", checked)
	}
}

// TestStreamsAreText: a generated client cannot decode a stream of items as one object.
func TestStreamsAreText(t *testing.T) {
	d, raw := describe(t)
	streams := 0
	for path, item := range d.Paths {
		for _, call := range item {
			for _, response := range call.Responses {
				for media, content := range response.Content {
					if media != api.MediaEvents && media != events.MediaNDJSON {
						continue
					}
					var m struct {
						Schema struct{ Type string }
						Item   struct {
							Ref string `json:"$ref"`
						} `json:"x-item-schema"`
					}
					if err := json.Unmarshal(content, &m); err != nil || m.Schema.Type != "string" ||
						!strings.Contains(string(raw), `"`+strings.TrimPrefix(m.Item.Ref, api.SchemaPrefix)+`":{`) {
						t.Errorf("%s: %s is %+v, %v", path, media, m, err)
					}
					streams++
				}
			}
		}
	}
	if streams != 4 {
		t.Errorf("%d streams", streams)
	}
}
