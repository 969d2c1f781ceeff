package http_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	library "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/jsonschema"
)

// TestTheSchemaURIOfEachEventLeadsToItsSchema follows the schemaUri of envelopes, as a consumer of the topics does.
func TestTheSchemaURIOfEachEventLeadsToItsSchema(t *testing.T) {
	w := newTestService(t)
	for _, info := range events.Subjects() {
		term, err := events.CurrentVocabulary().Term(info.Subject)
		w.must(err)
		path, _, _ := strings.Cut(term.SchemaURI, "#") // a client does not send the fragment
		newest := w.do(call{method: "GET", path: path, key: bootstrap})
		if newest.status != 200 || newest.header.Get("Content-Type") != "application/schema+json" || newest.header.Get("ETag") == "" {
			t.Errorf("%s: %d %v", term.SchemaURI, newest.status, newest.header)
		}
		own := w.do(call{method: "GET", path: path + "?sha256=" + term.SchemaSum(), key: bootstrap})
		if own.status != 200 || own.header.Get("ETag") != `"`+term.SchemaSum()+`"` ||
			!strings.Contains(string(own.body), `"title": "`+info.Name()+`"`) || string(own.body) != string(newest.body) {
			t.Errorf("%s: %d %v %s", term.SchemaURI, own.status, own.header, own.body)
		}
	}
}

func TestSchemasAreListed(t *testing.T) {
	w, a := newServiceWithAccount(t)
	paths := map[string]bool{}
	for _, row := range w.entries(a.reader, "/api/v1/schemas?limit=10") {
		path, _, _ := strings.Cut(row["schemaUri"].(string), "#")
		if paths[path] || row["topic"] == "" || row["recorded"] == "" || row["earlier"] == nil {
			t.Errorf("%v", row)
		}
		paths[path] = true
		w.want(200, call{method: "GET", path: path, key: a.reader})
	}
	for _, info := range events.Subjects() {
		if path := events.SchemaPath(info.Type, info.Version); !paths[path] {
			t.Errorf("%s is not listed", path)
		}
	}
}

func TestSchemasAreCached(t *testing.T) {
	w := newTestService(t)
	path := events.SchemaPath("meterplex.catalogue.tenant.created", 1)
	first := w.do(call{method: "GET", path: path, key: bootstrap})
	tag := first.header.Get("ETag")
	w.same("a version: Cache-Control", first.header.Get("Cache-Control"), "private, max-age=86400")
	again := w.do(call{method: "GET", path: path, key: bootstrap, header: map[string]string{"If-None-Match": tag}})
	if again.status != 304 || len(again.body) > 0 || again.header.Get("ETag") != tag {
		t.Errorf("%d %v %s", again.status, again.header, again.body)
	}
	document := w.do(call{method: "GET", path: path + "?sha256=" + strings.Trim(tag, `"`), key: bootstrap})
	if document.status != 200 || document.header.Get("Cache-Control") != "private, max-age=31536000, immutable" {
		t.Errorf("a document: %d %v %s", document.status, document.header, document.body)
	}
}

// TestSchemasThatDoNotExist: the answer lists the existing subjects, versions or documents.
func TestSchemasThatDoNotExist(t *testing.T) {
	w := newTestService(t)
	unknown := w.do(call{method: "GET", path: "/api/v1/schemas/nothing/v1", key: bootstrap})
	p := w.refused(unknown, 404, "schema_not_found")
	for _, info := range events.Subjects() {
		if len(p.Errors) != 1 || !strings.Contains(string(unknown.body), info.Type) {
			t.Errorf("%s is not listed: %s", info.Type, unknown.body)
		}
	}
	for path, want := range map[string]string{
		"/api/v1/schemas/meterplex.usage.event.recorded/v2":           "it has: v1",
		"/api/v1/schemas/meterplex.usage.event.recorded/v1?sha256=00": "84f96ca9e18cde0c17460dd019baf9ed69d49887ddb50046830222b7f5a93ec5",
	} {
		got := w.do(call{method: "GET", path: path, key: bootstrap})
		w.holds(path, w.refused(got, 404, "schema_not_found").Detail, want)
	}
}

// TestTheSchemaURIOfARecordDescribesItsPayload publishes an event of each subject, follows the
// schemaUri of its record, and compares the payload with the schema found there.
func TestTheSchemaURIOfARecordDescribesItsPayload(t *testing.T) {
	w := newTestService(t)
	for i, info := range events.Subjects() {
		payload, err := os.ReadFile(filepath.Join("..", "events", "testdata", info.Name()+".json"))
		w.must(err)
		w.must(pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
			appended, err := w.log.AppendEventsTx(t.Context(), tx, []events.Pending{{EventID: newID(), Subject: info.Subject,
				TenantID:  events.Platform,
				DedupeKey: fmt.Sprint("e/", i), Actor: events.Actor{Type: "system", ID: "test"}, OccurredAt: time.Now(), Payload: payload}})
			if err == nil {
				w.followSchemaURI(&appended[0])
			}
			return err
		}))
	}
}

func (w *testService) followSchemaURI(e *events.Envelope) {
	w.Helper()
	record, err := codec.ToRecord(e)
	w.must(err)
	var read struct {
		SchemaURI string
		Payload   json.RawMessage
	}
	w.must(json.Unmarshal(record.Value, &read))
	uri, err := url.Parse(read.SchemaURI)
	w.must(err)
	got := w.do(call{method: "GET", path: uri.Path, key: bootstrap})
	if sum := sha256.Sum256(got.body); got.status != 200 || uri.Fragment != "sha256="+hex.EncodeToString(sum[:]) {
		w.Errorf("%s: %d with the SHA-256 %x", read.SchemaURI, got.status, sum)
		return
	}
	schema, err := jsonschema.Compile(got.body)
	w.must(err)
	for _, payload := range []struct {
		text  []byte
		valid bool
	}{{read.Payload, true}, {[]byte(`{}`), false}} {
		value, err := library.UnmarshalJSON(bytes.NewReader(payload.text))
		w.must(err)
		if err := schema.Validate(value); (err == nil) != payload.valid {
			w.Errorf("%s: %s: %v", read.SchemaURI, payload.text, err)
		}
	}
}
