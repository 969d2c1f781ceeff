package http

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/operate"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/internal/must"
)

// document holds the parts of the description that the tests read.
type document struct {
	OpenAPI string `json:"openapi"`
	Info    struct {
		Title, Version   string
		License, Contact struct{ Name, Identifier string }
	} `json:"info"`
	Tags       []struct{ Name string }              `json:"tags"`
	Paths      map[string]map[string]documentedCall `json:"paths"`
	Components struct {
		Schemas         map[string]json.RawMessage `json:"schemas"`
		SecuritySchemes map[string]struct {
			Scopes map[string]string `json:"x-scopes"`
		} `json:"securitySchemes"`
	} `json:"components"`
}

type documentedCall struct {
	OperationID string                `json:"operationId"`
	Summary     string                `json:"summary"`
	Tags        []string              `json:"tags"`
	Security    []map[string][]string `json:"security"`
	Scopes      map[string][]string   `json:"x-required-scopes"`
	Description string                `json:"description"`
	Parameters  []struct {
		Name, In, Description string
		Required              bool
		Schema                json.RawMessage
	} `json:"parameters"`
	RequestBody json.RawMessage `json:"requestBody"`
	Responses   map[string]struct {
		Description string                     `json:"description"`
		Headers     map[string]json.RawMessage `json:"headers"`
		Content     map[string]json.RawMessage `json:"content"`
	} `json:"responses"`
}

func describe(t *testing.T) (document, []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	handlerWithoutDependencies(t, &Server{}).ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	var d document
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || w.Code != 200 {
		t.Fatal(w.Code, err)
	}
	return d, w.Body.Bytes()
}

// TestNullableMembersAreDescribed: shape treats null as absent for an optional member.
func TestNullableMembersAreDescribed(t *testing.T) {
	d, _ := describe(t)
	for _, c := range []struct{ schema, want string }{
		{"SubscriptionChange", `"plan":{"description":"The key of the plan.","maxLength":64,"minLength":1,"type":["string","null"]}`},
		{"SubscriptionChange", `"enum":["ACTIVE","TRIALING","PAST_DUE","CANCELLED","EXPIRED",null]`},
		{"NewVerify", `"repair":{"description":"Replace the live rows where they differ.","type":["boolean","null"]}`},
		{"NewKey", `"name":{"description":"A name for people.","maxLength":200,"minLength":1,"type":"string"}`}, // required
		// not the account of quota_exceeded
		{"Problem", `"required":["type","title","status","detail","instance","code","errors","traceId"]`},
		{"Consumption",
			`"used":{"description":"After this amount; null for METERED features, which have no account.","type":["integer","null"],` +
				`"x-amount":true}`},
		{"NewItem", `"required":["feature","eventId","amount"]`},
	} {
		if got := string(d.Components.Schemas[c.schema]); !strings.Contains(got, c.want) {
			t.Errorf("%s has no %s: %s", c.schema, c.want, got)
		}
	}
}

// A member that may be null says so in its schema, not only in words.
func TestMembersDescribedAsNullAllowNull(t *testing.T) {
	d, _ := describe(t)
	described := 0
	for name, body := range d.Components.Schemas {
		var schema struct {
			Properties map[string]struct {
				Description string
				Type        json.RawMessage
				Enum        json.RawMessage
			}
		}
		must.OK(t, json.Unmarshal(body, &schema))
		for member, p := range schema.Properties {
			if strings.Contains(p.Description, "; null while ") && len(p.Type) > 0 {
				if described++; !strings.Contains(string(p.Type)+string(p.Enum), "null") {
					t.Errorf("%s.%s is described as null (%s), and its type is %s", name, member, p.Description, p.Type)
				}
			}
		}
	}
	if described == 0 {
		t.Errorf("no member is described as null")
	}
}

// Lists of bodies are bounded, so that decoding one takes memory in proportion to its size.
func TestP9_EveryListOfABodyIsBounded(t *testing.T) {
	d, _ := describe(t)
	lists := 0
	seen := map[string]bool{}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case []any:
			for _, element := range v {
				walk(at, element)
			}
		case map[string]any:
			if name, is := v["$ref"].(string); is && !seen[name] {
				seen[name] = true
				var schema any
				name = strings.TrimPrefix(name, "#/components/schemas/")
				must.OK(t, json.Unmarshal(d.Components.Schemas[name], &schema))
				walk(name, schema)
			}
			if strings.Contains(fmt.Sprint(v["type"]), "array") {
				if lists++; v["maxItems"] == nil {
					t.Errorf("%s is a list without maxItems", at)
				}
			}
			for name, member := range v {
				walk(at+"/"+name, member)
			}
		}
	}
	for path, calls := range d.Paths {
		for method, call := range calls {
			var body any
			if call.RequestBody != nil {
				must.OK(t, json.Unmarshal(call.RequestBody, &body))
			}
			walk(method+" "+path, body)
		}
	}
	if lists < 10 {
		t.Errorf("only %d lists are found", lists)
	}
}

func TestTheOpenAPIDocumentIsComplete(t *testing.T) {
	d, raw := describe(t)
	if d.OpenAPI != "3.1.0" || d.Info.Version != domain.Version || d.Info.License.Identifier != "Apache-2.0" || d.Info.Contact.Name == "" {
		t.Errorf("%s %v", d.OpenAPI, d.Info)
	}
	ids := map[string]bool{}
	rows := map[string]auth.Route{}
	for _, row := range Routes() {
		rows[row.Name()] = row
	}
	for path, item := range d.Paths {
		for method, call := range item {
			name := strings.ToUpper(method) + " " + path
			if call.OperationID == "" || ids[call.OperationID] || call.Summary == "" || call.Description == "" || len(call.Tags) != 1 {
				t.Errorf("%s: id %q, summary %q, tags %v", name, call.OperationID, call.Summary, call.Tags)
			}
			ids[call.OperationID] = true
			if !slices.ContainsFunc(d.Tags, func(tag struct{ Name string }) bool { return tag.Name == call.Tags[0] }) {
				t.Errorf("%s: the tag %s is not explained", name, call.Tags[0])
			}
			checkDocumented(t, name, path, call)
			if got := requiredOf(t, d, call); !slices.Equal(got, rows[name].Scopes) {
				t.Errorf("%s: scopes %v in the description, %v in the table", name, got, rows[name].Scopes)
			}
		}
	}
	for ref := range strings.SplitSeq(string(raw), `"$ref":"#/components/schemas/`) {
		if name, _, _ := strings.Cut(ref, `"`); !strings.HasPrefix(ref, "{") && d.Components.Schemas[name] == nil {
			t.Errorf("the schema %s is referred to and missing", name)
		}
	}
	if strings.Contains(string(raw), "ErrorModel") || len(d.Components.SecuritySchemes) != 2 {
		t.Error("huma's own errors are described, or a scheme is missing")
	}
}

// requiredOf returns the scopes of a call, in the order of its security requirements.
func requiredOf(t *testing.T, d document, call documentedCall) (scopes []string) {
	t.Helper()
	for _, alternative := range call.Security {
		for scheme, of := range alternative {
			if len(of) > 0 {
				t.Errorf("%s: %s has scopes %v, which only OAuth 2 may have", call.OperationID, scheme, of)
			}
			for _, scope := range call.Scopes[scheme] {
				if scopes = append(scopes, scope); d.Components.SecuritySchemes[scheme].Scopes[scope] == "" {
					t.Errorf("%s: %s does not declare the scope %s", call.OperationID, scheme, scope)
				}
			}
		}
	}
	return scopes
}

// checkExamples: the example of an answer that is a text, e.g. CSV, is a text.
func checkExamples(t *testing.T, name string, content map[string]json.RawMessage) {
	t.Helper()
	for media, raw := range content {
		var described struct {
			Schema  struct{ Type any }
			Example any
		}
		if err := json.Unmarshal(raw, &described); err != nil {
			t.Errorf("%s: %s: %v", name, media, err)
		}
		if _, isText := described.Example.(string); described.Schema.Type == "string" && described.Example != nil && !isText {
			t.Errorf("%s: the example of %s is no text", name, media)
		}
	}
}

func checkDocumented(t *testing.T, name, path string, call documentedCall) {
	t.Helper()
	inPath, success := strings.Count(path, "{"), false
	for _, p := range call.Parameters {
		if p.Name == "" || len(p.Schema) == 0 {
			t.Errorf("%s: the parameter %q has no schema", name, p.Name)
		}
		if p.In == "path" {
			inPath--
			if !p.Required || !strings.Contains(path, "{"+p.Name+"}") {
				t.Errorf("%s: the parameter %s is not in the path, or not required", name, p.Name)
			}
		}
	}
	for status, response := range call.Responses {
		checkExamples(t, name+" "+status, response.Content)
		success = success || status[0] == '2'
		if response.Description == "" || status[0] >= '4' && response.Content[problem.MediaType] == nil {
			t.Errorf("%s: the answer %s is not described", name, status)
		}
		if (status == "429" || status == "503") != (response.Headers["Retry-After"] != nil) {
			t.Errorf("%s: when to come again after %s: %v", name, status, response.Headers)
		}
	}
	if inPath != 0 || !success {
		t.Errorf("%s: %d parameters of the path are missing; success described: %v", name, inPath, success)
	}
}

func TestTheReferencePageLoadsNothingFromElsewhere(t *testing.T) {
	w := httptest.NewRecorder()
	handlerWithoutDependencies(t, &Server{}).ServeHTTP(w, httptest.NewRequest("GET", "/docs", nil))
	policy := w.Header().Get("Content-Security-Policy")
	for _, word := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'",
		"frame-ancestors 'none'"} {
		if !strings.Contains(policy, word) {
			t.Errorf("%q is not in the policy %q", word, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(operate.ReferencePage, "http://") ||
		strings.Contains(operate.ReferencePage, "https://") || strings.Contains(operate.ReferencePage, "innerHTML") {
		t.Error("the page reaches out, or trusts what it reads")
	}
	if strings.Count(operate.ReferencePage, "<script>") != 1 || strings.Count(operate.ReferencePage, "<style>") != 1 ||
		strings.Contains(operate.ReferencePage, " style=") || strings.Contains(operate.ReferencePage, " onclick=") {
		t.Error("something on the page has no hash in the policy")
	}
}

// TestTheTypeOfEveryProblemIsExplainedOnThePage: type is where the code is explained.
func TestTheTypeOfEveryProblemIsExplainedOnThePage(t *testing.T) {
	w := httptest.NewRecorder()
	handlerWithoutDependencies(t, &Server{}).ServeHTTP(w, httptest.NewRequest("GET", "/docs", nil))
	for _, c := range codes.All() {
		page, anchor, _ := strings.Cut(problem.New(c.Name, "").Type, "#")
		_, row, found := strings.Cut(w.Body.String(), `id="`+anchor+`"`)
		row, _, _ = strings.Cut(row, "</tr>")
		if page != "/docs" || anchor == "" || !found || !strings.Contains(row, html.EscapeString(c.Meaning)) ||
			!strings.Contains(row, html.EscapeString(c.Remedy)) {
			t.Errorf("%s leads to %s#%s, which explains: %s", c.Name, page, anchor, row)
		}
	}
}

// TestEveryDocumentedCodeIsOfTheTable: clients are generated from the lists.
func TestEveryDocumentedCodeIsOfTheTable(t *testing.T) {
	d, _ := describe(t)
	members := 0
	for name, raw := range d.Components.Schemas {
		var s struct {
			Properties map[string]struct {
				Known []string `json:"x-extensible-enum"`
			}
		}
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(name, err)
		}
		code, has := s.Properties["code"]
		if !has {
			continue
		}
		members++
		for _, one := range code.Known {
			if _, found := codes.Find(one); !found {
				t.Errorf("%s: the table has no code %s", name, one)
			}
		}
		for _, sample := range map[string][]string{"Problem": {"unauthenticated", "feature_not_found"},
			"EventVerdict": {"payload_conflict", "timestamp_too_old"},
			"Fault":        {"dependency_failed"}, "DeadLetter": {"fold_failed", "payload_conflict"}}[name] {
			if !slices.Contains(code.Known, sample) {
				t.Errorf("%s does not list %s: %v", name, sample, code.Known)
			}
		}
	}
	if members < 8 {
		t.Errorf("only %d members hold codes", members)
	}
}

// Later releases may add codes, states and kinds. A generated client refuses an answer with a value that enum does not list.
func TestMembersOfAnswersHaveOpenValues(t *testing.T) {
	d, raw := describe(t)
	answers := map[string]bool{}
	var find func(raw json.RawMessage)
	find = func(raw json.RawMessage) {
		for ref := range strings.SplitSeq(string(raw), `"$ref":"`+api.SchemaPrefix) {
			if name, _, found := strings.Cut(ref, `"`); found && d.Components.Schemas[name] != nil && !answers[name] {
				answers[name] = true
				find(d.Components.Schemas[name])
			}
		}
	}
	for _, item := range d.Paths {
		for _, call := range item {
			for _, response := range call.Responses {
				for _, media := range response.Content {
					find(media)
				}
			}
		}
	}
	for name := range answers {
		if strings.Contains(string(d.Components.Schemas[name]), `"enum"`) {
			t.Errorf("%s has a closed list: %s", name, d.Components.Schemas[name])
		}
	}
	if len(answers) < 80 || strings.Count(string(raw), `"x-extensible-enum"`) < 40 {
		t.Errorf("only %d schemas of answers", len(answers))
	}
}

// Generators take the first media type as the default, and leave out one without a schema.
func TestEachBodyHasASchemaAndBeginsWithJSON(t *testing.T) {
	_, raw := describe(t)
	var d struct {
		Paths map[string]map[string]struct {
			RequestBody struct{ Content json.RawMessage }
		}
	}
	must.OK(t, json.Unmarshal(raw, &d))
	several := 0
	for path, item := range d.Paths {
		for method, call := range item {
			var content map[string]struct{ Schema json.RawMessage }
			if len(call.RequestBody.Content) == 0 {
				continue
			}
			must.OK(t, json.Unmarshal(call.RequestBody.Content, &content))
			if len(content) > 1 {
				several++
			}
			for media, one := range content {
				if one.Schema == nil {
					t.Errorf("%s %s: %s has no schema", method, path, media)
				}
			}
			if !strings.HasPrefix(string(call.RequestBody.Content), `{"application/json":`) {
				t.Errorf("%s %s begins with another type: %.60s", method, path, call.RequestBody.Content)
			}
		}
	}
	if several == 0 {
		t.Error("no body has several media types")
	}
}

func TestAnswersAreJSONForAnyAcceptHeader(t *testing.T) {
	h := handlerWithoutDependencies(t, &Server{})
	for _, accept := range []string{"", "*/*", "application/json", "application/problem+json", "application/xml", "text/html", "json",
		"application/cbor", ";;;"} {
		for path, media := range map[string]string{"/livez": "application/json", "/livez?x=1": problem.MediaType} {
			r := httptest.NewRequest("GET", path, nil)
			r.Header.Set("Accept", accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Header().Get("Content-Type"); got != media || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s, Accept %q: %s %s", path, accept, got, w.Body)
			}
		}
	}
}
