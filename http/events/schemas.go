package events

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

func (s *handlers) schemaOperations(t *api.Site) {
	const path = api.Prefix + "/schemas"
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.AnyKey, ID: "listSchemas", Tag: "Schemas",
		Summary:     "List the schemas of events",
		Description: "Each version of each subject, with its topic and its schemaUri. Any valid key may read them."}, s.listSchemas)
	t.ServeRaw(api.Operation{Method: http.MethodGet, Path: path + "/{subject}/v{n}", Who: auth.AnyKey, ID: "getSchema", Tag: "Schemas",
		Summary: "Read the schema of an event's payload",
		Description: "The path is that of the schemaUri in the event's envelope. A version only ever gets more optional members, so its " +
			"newest document is the answer and also describes " +
			"payloads that were recorded before. With the sha256 of a schemaUri the answer is the very document that the event was " +
			"recorded under.",
		Problems: []int{http.StatusNotFound}}, describeSchema, s.schema)
}

// schemaEntry is a version of a subject in the list.
type schemaEntry struct {
	Subject   string   `json:"subject" example:"meterplex.usage.event.recorded"`
	Version   int      `json:"version" example:"1"`
	Topic     string   `json:"topic" example:"usage.raw"`
	Retention string   `json:"retention" enum:"hot,warm,cold"`
	Recorded  string   `json:"recorded" doc:"When the event is recorded."`
	SchemaURI string   `json:"schemaUri" doc:"Path and SHA-256 of the schema, as in the envelopes of new events." example:"/api/v1/schemas/meterplex.usage.event.recorded/v1#sha256=84f96ca9e18cde0c17460dd019baf9ed69d49887ddb50046830222b7f5a93ec5"`
	SHA256    string   `json:"sha256" doc:"Of the newest document of the version."`
	Earlier   []string `json:"earlier" nullable:"false" doc:"SHA-256 of the earlier documents of the version."`
}

func (s *handlers) listSchemas(_ context.Context, in *struct{ api.Paging }) (*api.Listed[schemaEntry], error) {
	var all []schemaEntry
	for _, v := range events.SchemaVersions() {
		all = append(all, schemaEntry{Subject: v.Type, Version: v.Version, Topic: v.Topic, Retention: v.Retention, Recorded: v.Trigger,
			SchemaURI: v.URI(), SHA256: v.Newest.SHA256, Earlier: sumsOf(v.Earlier)})
	}
	key := func(e *schemaEntry) string { return fmt.Sprintf("%s/v%09d", e.Subject, e.Version) }
	return api.ListCatalogue(api.List{"schemas"}, in.Paging, func(p commands.Page) ([]schemaEntry, error) {
		return api.Behind(all, p.After, key), nil
	}, key)
}

const mediaSchema = "application/schema+json"

// Caching of schemas. A document named by its hash never changes; a version may get another
// optional member with a later release.
const (
	keepDocument = "private, max-age=31536000, immutable"
	keepVersion  = "private, max-age=86400"
)

// schema needs no database: consumers of the topics also read it while the database is away.
func (s *handlers) schema(w http.ResponseWriter, r *http.Request) error {
	version, err := findSchema(api.PathValue(r, "subject"), api.PathValue(r, "n"))
	if err != nil {
		return err
	}
	document, keep := version.Newest, keepVersion
	params, _ := url.ParseQuery(r.URL.RawQuery) // the guard has validated it
	if sum := params.Get("sha256"); sum != "" {
		var ok bool
		if document, ok = version.Document(sum); !ok {
			return schemaNotFound("%s/v%d has no document with this SHA-256; it has: %s", version.Type, version.Version,
				strings.Join(sumsOf(version.Documents()), ", "))
		}
		keep = keepDocument
	}
	tag := `"` + document.SHA256 + `"`
	header := w.Header()
	header.Set("ETag", tag)
	header.Set("Cache-Control", keep)
	header.Set("Vary", "Authorization")
	if api.Unchanged(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	header.Set("Content-Type", mediaSchema)
	header.Set("Content-Length", strconv.Itoa(len(document.Text)))
	_, _ = w.Write(document.Text)
	return nil
}

const schemaAbsent = "schema_not_found"

func schemaNotFound(format string, args ...any) error {
	return &domain.Error{Code: schemaAbsent, Message: fmt.Sprintf(format, args...)}
}

// findSchema finds a version by the segments of its path. The error lists the existing subjects or versions.
func findSchema(subject, number string) (*events.SchemaVersion, error) {
	var subjects, versions []string
	all := events.SchemaVersions()
	for i := range all {
		v := &all[i]
		if v.Type == subject {
			if strconv.Itoa(v.Version) == number {
				return v, nil
			}
			versions = append(versions, "v"+strconv.Itoa(v.Version))
		}
		if !slices.Contains(subjects, v.Type) {
			subjects = append(subjects, v.Type)
		}
	}
	if versions != nil {
		return nil, schemaNotFound("%s has no such version; it has: %s", subject, strings.Join(versions, ", "))
	}
	// The list is too long for the detail of a problem.
	p := problem.New(schemaAbsent, "Subject not found; errors has the subjects, and GET /api/v1/schemas lists them")
	p.Errors = append(p.Errors, problem.Fault{Code: "subjects", Detail: strings.Join(subjects, ", ")})
	return nil, p
}

func sumsOf(documents []events.SchemaDocument) []string {
	sums := make([]string, 0, len(documents)) // an empty list is [] in JSON
	for _, d := range documents {
		sums = append(sums, d.SHA256)
	}
	return sums
}

func describeSchema(op *huma.Operation, _ api.Schemas) {
	const subject = "meterplex.usage.event.recorded"
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	op.Parameters = []*huma.Param{
		{Name: "subject", In: "path", Required: true, Schema: text(), Description: "The eventType of an envelope.", Example: subject},
		{Name: "n", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0)},
			Description: "The eventVersion of an envelope.", Example: 1},
		{Name: "sha256", In: "query", Schema: &huma.Schema{Type: huma.TypeString, Pattern: "^[0-9a-f]{64}$"},
			Description: "The document with this hash, as the fragment of a schemaUri names it."},
		{Name: "If-None-Match", In: "header", Schema: text(), Description: "The ETag of a document that is known."},
	}
	var example json.RawMessage
	if recorded, err := findSchema(subject, "1"); err == nil {
		example = recorded.Newest.Text
	}
	op.Responses["200"] = &huma.Response{
		Description: "A JSON Schema (draft 2020-12).",
		Headers: map[string]*huma.Param{"ETag": {Schema: text(), Description: "The SHA-256 of the document."},
			"Cache-Control": {Schema: text()}},
		Content: map[string]*huma.MediaType{mediaSchema: {Schema: &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true},
			Example: example}},
	}
	op.Responses["304"] = &huma.Response{Description: "The document that If-None-Match names is unchanged."}
}
