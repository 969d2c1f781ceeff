package codec

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// Each subject has a payload, a schema and a golden file: a payload with every member set. The
// file is read and written without a loss and is valid by the schema, so that a renamed member
// cannot rename history.
func TestEverySubjectHasAPayloadASchemaAndAGoldenFile(t *testing.T) {
	files := map[string]bool{}
	for _, info := range events.Subjects() {
		t.Run(info.Name(), func(t *testing.T) {
			path := filepath.Join("..", "testdata", info.Name()+".json")
			files[path] = true
			stored, err := os.ReadFile(path)
			must.OK(t, err)
			checkGolden(t, info, stored)
		})
	}
	all, err := filepath.Glob(filepath.Join("..", "testdata", "meterplex.*.json"))
	must.OK(t, err)
	for _, path := range all {
		if !files[path] {
			t.Errorf("%s is of no subject", path)
		}
	}
}

func checkGolden(t *testing.T, info events.SubjectInfo, stored []byte) {
	t.Helper()
	payload := reflect.New(info.Payload)
	d := json.NewDecoder(bytes.NewReader(stored))
	d.DisallowUnknownFields()
	if err := d.Decode(payload.Interface()); err != nil {
		t.Fatalf("the golden file is not a %s: %v", info.Payload, err)
	}
	for _, member := range membersOf(info) {
		if payload.Elem().FieldByIndex(member.Index).IsZero() {
			t.Errorf("the golden file has no %s", member.Name)
		}
	}
	for name, given := range map[string]any{"a value": payload.Elem().Interface(), "a pointer": payload.Interface()} {
		body, err := EncodePayload(info.Subject, given)
		must.OK(t, err)
		if v, ok := payload.Interface().(*events.Validated); ok {
			body = WholePayload(info.Subject, events.KeyValidated(v.RawPosition), v.Timestamp, body)
		}
		if got := indented(t, body); !bytes.Equal(got, stored) {
			t.Errorf("%s is written as %s\nthe golden file is %s", name, got, stored)
		}
	}
	if err := validate(t, info, stored); err != nil {
		t.Errorf("the golden file is not valid: %v", err)
	}
	var members map[string]json.RawMessage
	must.OK(t, json.Unmarshal(stored, &members))
	for _, required := range requiredBy(t, info) {
		less := map[string]json.RawMessage{}
		for name, value := range members {
			if name != required {
				less[name] = value
			}
		}
		body, err := json.Marshal(less)
		must.OK(t, err)
		if validate(t, info, body) == nil {
			t.Errorf("without %s it is valid, too", required)
		}
	}
}

// membersOf lists the fields of a payload, those of embedded structs too.
func membersOf(info events.SubjectInfo) (list []reflect.StructField) {
	for _, field := range reflect.VisibleFields(info.Payload) {
		if !field.Anonymous {
			list = append(list, field)
		}
	}
	return list
}

// validate validates a document by a subject's schema.
func validate(t *testing.T, info events.SubjectInfo, document []byte) error {
	t.Helper()
	schema, err := events.Schema(info.Subject)
	must.OK(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	must.OK(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must.OK(t, c.AddResource("schema.json", parsed))
	compiled, err := c.Compile("schema.json")
	must.OK(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	must.OK(t, err)
	return compiled.Validate(value)
}

// requiredBy lists the members that a subject's schema requires. The schema describes each
// member of the payload, and no other.
func requiredBy(t *testing.T, info events.SubjectInfo) []string {
	t.Helper()
	body, err := events.Schema(info.Subject)
	must.OK(t, err)
	var schema struct {
		Title      string
		Properties map[string]json.RawMessage
		Required   []string
	}
	must.OK(t, json.Unmarshal(body, &schema))
	if schema.Title != info.Name() {
		t.Errorf("the schema's title is %q", schema.Title)
	}
	for _, member := range membersOf(info) {
		name, _, _ := strings.Cut(member.Tag.Get("json"), ",")
		if schema.Properties[name] == nil {
			t.Errorf("the schema does not describe %s", name)
		}
		delete(schema.Properties, name)
	}
	if info.Subject.TakesReason() { // of the request, see WithReason
		delete(schema.Properties, "reason")
	}
	for name := range schema.Properties {
		t.Errorf("the schema describes %s, which the payload lacks", name)
	}
	return schema.Required
}

func indented(t *testing.T, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	must.OK(t, json.Indent(&out, body, "", "  "))
	return append(out.Bytes(), '\n')
}

// A payload of another subject's type is an error.
func TestPayloadTypesMatchTheirSubjects(t *testing.T) {
	for name, given := range map[string]struct {
		subject events.Subject
		payload any
	}{
		"another's":         {events.TenantChanged, events.Feature{}},
		"another's pointer": {events.UsageValidated, &events.Rejected{}},
		"a verdict":         {events.UsageRejected, &events.Validated{}},
		"a map":             {events.APIKeyRotated, map[string]any{}},
		"nothing":           {events.TenantChanged, nil},
		"no subject":        {0, events.Tenant{}},
		"invalid raw JSON":  {events.UsageConflicted, events.Conflicted{Payload: json.RawMessage("{")}},
	} {
		if body, err := EncodePayload(given.subject, given.payload); err == nil {
			t.Errorf("%s: %s", name, body)
		}
	}
}

// TestReasonsOfRequestsAreMembersOfPayloads: every subject that takes a reason has it in its schema, and the payload stays valid; no other
// payload changes.
func TestReasonsOfRequestsAreMembersOfPayloads(t *testing.T) {
	for _, info := range events.Subjects() {
		stored, err := os.ReadFile(filepath.Join("..", "testdata", info.Name()+".json"))
		must.OK(t, err)
		body := WithReason(info.Subject, bytes.TrimSpace(stored), "unpaid \"since\" May")
		var payload map[string]any
		must.OK(t, json.Unmarshal(body, &payload))
		if got := payload["reason"] == "unpaid \"since\" May"; got != info.Subject.TakesReason() {
			t.Errorf("%s: the payload has the reason: %v", info.Name(), got)
		}
		if err := validate(t, info, body); err != nil {
			t.Errorf("%s: %v", info.Name(), err)
		}
		if schema, _ := events.Schema(info.Subject); info.Subject.TakesReason() && !bytes.Contains(schema, []byte(`"reason"`)) {
			t.Errorf("%s: the schema has no reason", info.Name())
		}
	}
}
