package http

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/internal/must"
)

var updateSDK = flag.Bool("update-sdk", false, "write sdk/operations.json from the OpenAPI document")

// operationsOfSDKs are those that the SDKs of sdk/ send.
var operationsOfSDKs = []string{"ingestUsage", "checkEntitlement", "listEntitlements", "consume", "reserve", "commitReservation",
	"extendReservation", "releaseReservation",
	"listReservations", "listUsageEvents", "getReceipt", "listAggregates", "getSeries"}

// sdkOperation is an operation in sdk/operations.json. Members are paths and types: "data[].amount integer".
type sdkOperation struct {
	Operation  string   `json:"operation"`
	Request    string   `json:"request"`
	Parameters []string `json:"parameters,omitempty"`
	Body       []string `json:"body,omitempty"`
	Answer     []string `json:"answer"`
}

// TestTheSDKsKnowTheDocument: a change of the SDKs' requests or answers changes sdk/operations.json, which the tests of sdk/ compare with
// each SDK.
func TestTheSDKsKnowTheDocument(t *testing.T) {
	d, _ := describe(t)
	var all []sdkOperation
	for path, item := range d.Paths {
		for method, call := range item {
			if !slices.Contains(operationsOfSDKs, call.OperationID) {
				continue
			}
			op := sdkOperation{Operation: call.OperationID, Request: strings.ToUpper(method) + " " + path}
			for _, p := range call.Parameters {
				op.Parameters = append(op.Parameters, p.In+" "+p.Name)
			}
			var body struct{ Content map[string]mediaOfSDK }
			if call.RequestBody != nil {
				must.OK(t, json.Unmarshal(call.RequestBody, &body))
				op.Body = d.members(t, body.Content[api.MediaJSON].Schema)
			}
			for status, response := range call.Responses {
				if status[0] == '2' && response.Content[api.MediaJSON] != nil {
					var media mediaOfSDK
					must.OK(t, json.Unmarshal(response.Content[api.MediaJSON], &media))
					op.Answer = append(op.Answer, d.members(t, media.Schema)...)
				}
			}
			slices.Sort(op.Parameters)
			slices.Sort(op.Answer)
			op.Answer = slices.Compact(op.Answer)
			all = append(all, op)
		}
	}
	slices.SortFunc(all, func(a, b sdkOperation) int { return strings.Compare(a.Operation, b.Operation) })
	if len(all) != len(operationsOfSDKs) {
		t.Errorf("the document has %d of the %d operations of the SDKs", len(all), len(operationsOfSDKs))
	}
	requireGenerated(t, "../sdk/operations.json", all, *updateSDK, "run make generate, and let the SDKs know the change")
}

// requireGenerated requires a file to hold the content that follows from the document, as JSON. If update is set it is written.
func requireGenerated(t *testing.T, file string, content any, update bool, remedy string) {
	t.Helper()
	text, err := json.MarshalIndent(content, "", " ")
	must.OK(t, err)
	text = append(text, '\n')
	if update {
		must.OK(t, os.WriteFile(file, text, 0o644))
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != string(text) {
		t.Errorf("%s differs from the document (%v): %s", file, err, remedy)
	}
}

type mediaOfSDK struct{ Schema json.RawMessage }

// members returns the paths and types of the members of a schema, sorted.
func (d *document) members(t *testing.T, schema json.RawMessage) []string {
	var list []string
	d.walkMembers(t, schema, "", &list)
	slices.Sort(list)
	return slices.Compact(list)
}

func (d *document) walkMembers(t *testing.T, raw json.RawMessage, path string, list *[]string) {
	var s struct {
		Ref        string `json:"$ref"`
		Type       any
		Properties map[string]json.RawMessage
		Items      json.RawMessage
		OneOf      []json.RawMessage
		AnyOf      []json.RawMessage
	}
	if raw == nil {
		return
	}
	must.OK(t, json.Unmarshal(raw, &s))
	if s.Ref != "" {
		name := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		if strings.Count(path, ".") < 8 {
			d.walkMembers(t, d.Components.Schemas[name], path, list)
		}
		return
	}
	for _, other := range slices.Concat(s.OneOf, s.AnyOf) {
		d.walkMembers(t, other, path, list)
	}
	if s.Items != nil {
		d.walkMembers(t, s.Items, path+"[]", list)
	}
	for name, member := range s.Properties {
		d.walkMembers(t, member, strings.TrimPrefix(path+"."+name, "."), list)
	}
	if path != "" && s.Type != nil && s.Properties == nil && s.Items == nil {
		kind, _ := json.Marshal(s.Type)
		*list = append(*list, path+" "+strings.Trim(strings.NewReplacer(`"`, "", ",", " or ").Replace(string(kind)), "[]"))
	}
}
