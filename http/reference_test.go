package http

import (
	"encoding/json"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
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
	if err := json.Unmarshal(descriptionsFile, &texts); err != nil {
		t.Fatal(err)
	}
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
				if err := json.Unmarshal(call.RequestBody, &body); err != nil {
					t.Fatal(err)
				}
			}
			for media, m := range body.Content {
				if checked++; m.Example == nil {
					t.Errorf("%s %s: the body has no example as %s", method, path, media)
				}
			}
			for status, response := range call.Responses {
				for media, raw := range response.Content {
					var m struct{ Example json.RawMessage }
					if err := json.Unmarshal(raw, &m); err != nil {
						t.Fatal(err)
					}
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

// TestThePageIsAccessible finds the faults that axe found before in the source of the page.
func TestThePageIsAccessible(t *testing.T) {
	for fault, of := range map[string]string{
		`table\(\[[^\]]*""[^\]]*\]`: "a table header is empty", `"pre", \{\}`: "a scrollable example cannot be reached by the keyboard", `<th[^>]*></th>`: "a table header is empty",
		`(^|\n)a \{[^}]*text-decoration: none`: "links in text differ by colour only",
	} {
		if found := regexp.MustCompile(fault).FindString(referencePage + codeTable()); found != "" {
			t.Errorf("%s: %q", of, found)
		}
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
					if media != mediaEvents && media != mediaNDJSON {
						continue
					}
					var m struct {
						Schema struct{ Type string }
						Item   struct {
							Ref string `json:"$ref"`
						} `json:"x-item-schema"`
					}
					if err := json.Unmarshal(content, &m); err != nil || m.Schema.Type != "string" || !strings.Contains(string(raw), `"`+strings.TrimPrefix(m.Item.Ref, schemaPrefix)+`":{`) {
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

// TestThePageBeginsWithAQuickStart: authentication, a batch by curl with a rejected event, its verdicts; / leads there.
func TestThePageBeginsWithAQuickStart(t *testing.T) {
	h := handlerWithoutDependencies(t, &Server{})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 302 || w.Header().Get("Location") != "/docs" {
		t.Errorf("/ answers %d %v", w.Code, w.Header())
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/docs", nil))
	rest := w.Body.String()
	for _, next := range []string{`id="quick-start"`, "Authorization: Bearer", "curl", "/api/v1/usage/events", "202 does not mean", "minPosition", `id="operations"`, `id="problems"`} {
		_, after, found := strings.Cut(rest, next)
		if !found {
			t.Fatalf("%s is missing, or not in its place", next)
		}
		rest = after
	}
}
