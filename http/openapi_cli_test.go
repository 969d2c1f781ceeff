package http

import (
	"cmp"
	"encoding/json"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/internal/must"
)

var updateCLI = flag.Bool("update-cli", false, "write cmd/meterplex/cli/app/operations.json from the OpenAPI document")

// cliOperation is an operation in cmd/meterplex/cli/app/operations.json: the part of the document that the command line reads.
type cliOperation struct {
	Method      string     `json:"method"`
	Path        string     `json:"path"` // below /api/v1
	Summary     string     `json:"summary"`
	Description string     `json:"description,omitempty"`
	Once        bool       `json:"once,omitempty"`     // it has Idempotency-Key
	Reasoned    bool       `json:"reasoned,omitempty"` // it has Meterplex-Reason
	Inputs      []cliInput `json:"inputs,omitempty"`
	Answer      []string   `json:"answer,omitempty"` // members of it, or of each entry of a list
}

// cliInput is a parameter of the path or the query, or a member of the body. Parameters of paging, waiting and form are left out.
type cliInput struct {
	Name        string   `json:"name"`
	In          string   `json:"in"`   // path, query or body
	Type        string   `json:"type"` // string, time, integer, boolean, map (of texts), object, or list of one of these
	Required    bool     `json:"required,omitempty"`
	Description string   `json:"description,omitempty"`
	Values      []string `json:"values,omitempty"`
}

// cliSchema is the part of a schema that decides how a flag looks.
type cliSchema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Format               string
	Description          string
	Enum                 []any
	Items                *cliSchema
	Properties           map[string]*cliSchema
	AdditionalProperties any
	Required             []string
	AnyOf                []*cliSchema
}

// TestTheCommandLineKnowsTheDocument: a change of an operation changes the flags and the help of its command.
func TestTheCommandLineKnowsTheDocument(t *testing.T) {
	d, _ := describe(t)
	all := map[string]cliOperation{}
	for path, item := range d.Paths {
		for method, call := range item {
			op := cliOperation{Method: strings.ToUpper(method), Path: strings.TrimPrefix(path, api.Prefix), Summary: call.Summary,
				Description: call.Description}
			for _, p := range call.Parameters {
				switch p.Name {
				case edge.HeaderReason:
					op.Reasoned = true
				case "Idempotency-Key":
					op.Once = true
				}
				if p.In == "header" || slices.Contains([]string{"cursor", "limit", "amounts", "format", "minPosition"}, p.Name) {
					continue
				}
				var schema cliSchema
				must.OK(t, json.Unmarshal(p.Schema, &schema))
				op.Inputs = append(op.Inputs, d.cliInput(t, p.Name, p.In, p.Required, cmp.Or(p.Description, schema.Description), &schema))
			}
			var body struct {
				Content map[string]struct{ Schema *cliSchema }
			}
			if call.RequestBody != nil {
				must.OK(t, json.Unmarshal(call.RequestBody, &body))
			}
			if schema := body.Content[api.MediaJSON].Schema; schema != nil {
				schema = d.cliResolve(t, schema)
				for _, name := range cliNames(schema) {
					member := schema.Properties[name]
					op.Inputs = append(op.Inputs, d.cliInput(t, name, "body", slices.Contains(schema.Required, name), member.Description,
						member))
				}
			}
			op.Answer = d.cliAnswer(t, call)
			all[call.OperationID] = op
		}
	}
	requireGenerated(t, "../cmd/meterplex/cli/app/operations.json", all, *updateCLI, "run make generate")
}

// cliNames lists the members: the required ones as declared, then the others by name.
func cliNames(s *cliSchema) []string {
	names := slices.Clone(s.Required)
	for name := range s.Properties {
		if !slices.Contains(s.Required, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names[len(s.Required):])
	return names
}

func (d *document) cliResolve(t *testing.T, s *cliSchema) *cliSchema {
	if s.Ref == "" {
		return s
	}
	var resolved cliSchema
	must.OK(t, json.Unmarshal(d.Components.Schemas[strings.TrimPrefix(s.Ref, api.SchemaPrefix)], &resolved))
	return &resolved
}

func (d *document) cliInput(t *testing.T, name, in string, required bool, description string, s *cliSchema) cliInput {
	kind, values := d.cliType(t, s)
	return cliInput{Name: name, In: in, Type: kind, Required: required, Description: description, Values: values}
}

// cliType returns the type of a schema, and the values of its enumeration.
func (d *document) cliType(t *testing.T, s *cliSchema) (kind string, values []string) {
	s = d.cliResolve(t, s)
	for _, value := range s.Enum {
		if text, ok := value.(string); ok {
			values = append(values, text)
		}
	}
	switch of := s.Type.(type) {
	case string:
		kind = of
	case []any:
		kind, _ = of[0].(string)
	}
	switch {
	case kind == "array":
		kind, values = d.cliType(t, s.Items)
		return "list of " + kind, values
	case kind == "object" && len(s.Properties) == 0 && s.AdditionalProperties != nil:
		return "map", nil
	case s.Format == "date-time":
		return "time", nil
	case len(values) == 2 && values[0] == "true" && values[1] == "false":
		return "boolean", nil
	}
	return kind, values
}

// cliAnswer lists the members of the answer, or of the entries of its data.
func (d *document) cliAnswer(t *testing.T, call documentedCall) []string {
	for status, response := range call.Responses {
		if status[0] != '2' || response.Content[api.MediaJSON] == nil {
			continue
		}
		var media struct{ Schema *cliSchema }
		must.OK(t, json.Unmarshal(response.Content[api.MediaJSON], &media))
		schema := d.cliResolve(t, media.Schema)
		if data := schema.Properties["data"]; data != nil && data.Items != nil {
			schema = d.cliResolve(t, data.Items)
		}
		names := cliNames(schema)
		slices.Sort(names)
		return names
	}
	return nil
}
