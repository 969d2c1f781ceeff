package events

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A document that was replaced by one with more optional members stays as SUBJECT.SHA256.json: envelopes that were recorded
// under it name it.
//
//go:embed schemas/*.json
var schemaFiles embed.FS

// Schema returns the embedded JSON Schema of a subject's payload.
func Schema(s Subject) ([]byte, error) {
	info, ok := s.Info()
	if !ok {
		return nil, fmt.Errorf("events: subject %d is not registered", s)
	}
	return schemaFiles.ReadFile("schemas/" + info.Name() + ".json")
}

// SchemaPath is the path at which the API serves a schema. It is frozen: the envelope of each
// event holds it.
func SchemaPath(eventType string, version int) string {
	return fmt.Sprintf("/api/v1/schemas/%s/v%d", eventType, version)
}

func schemaURI(eventType string, version int, sum string) string {
	return SchemaPath(eventType, version) + schemaSum + sum
}

// schemaSum begins the fragment of a schemaUri.
const schemaSum = "#sha256="

// SchemaSum returns the SHA-256 of the schema under which events with this term are recorded.
func (t *Term) SchemaSum() string {
	_, sum, _ := strings.Cut(t.SchemaURI, schemaSum)
	return sum
}

// SchemaDocument is a JSON Schema and its SHA-256 in hex.
type SchemaDocument struct {
	SHA256 string
	Text   []byte
}

// SchemaVersion is a version of a subject with the documents of its schema. The newest describes
// payloads of the earlier ones, too: it only has more optional members.
type SchemaVersion struct {
	Type      string
	Version   int
	Topic     string
	Retention string
	Trigger   string // when the event is recorded; "" if this binary records no such event
	Newest    SchemaDocument
	Earlier   []SchemaDocument // by hash
}

// URI is the schemaUri of events that are recorded under the newest document.
func (v *SchemaVersion) URI() string { return schemaURI(v.Type, v.Version, v.Newest.SHA256) }

// Documents returns all documents of the version, the newest first.
func (v *SchemaVersion) Documents() []SchemaDocument {
	return append([]SchemaDocument{v.Newest}, v.Earlier...)
}

// Document returns the document with a hash.
func (v *SchemaVersion) Document(sum string) (SchemaDocument, bool) {
	for _, d := range v.Documents() {
		if d.SHA256 == sum {
			return d, true
		}
	}
	return SchemaDocument{}, false
}

// SchemaVersions lists the schemas that the embedded vocabularies name, by type and version.
var SchemaVersions = sync.OnceValue(func() []SchemaVersion {
	var all []SchemaVersion
	for _, v := range embedded() {
		for i := range v.terms {
			if t := &v.terms[i]; t.Type != "" && !slices.ContainsFunc(all, t.names) {
				all = append(all, t.schemaVersion())
			}
		}
	}
	slices.SortFunc(all, func(a, b SchemaVersion) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Version, b.Version))
	})
	return all
})

func (t *Term) names(v SchemaVersion) bool { return v.Type == t.Type && v.Version == t.Version }

// schemaVersion reads the documents of a term. The topic and the retention class are those of
// events that this binary records.
func (t *Term) schemaVersion() SchemaVersion {
	info := t.SubjectInfo
	if s, ok := SubjectOf(t.Type, t.Version); ok {
		info, _ = s.Info()
	}
	v := SchemaVersion{Type: info.Type, Version: info.Version, Topic: info.Topic.Name(), Retention: info.Retention, Trigger: info.Trigger,
		Newest: readDocument("schemas/" + info.Name() + ".json")}
	files, err := schemaFiles.ReadDir("schemas")
	if err != nil {
		panic(err.Error()) // the folder is embedded
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), info.Name()+".") && file.Name() != info.Name()+".json" {
			v.Earlier = append(v.Earlier, readDocument("schemas/"+file.Name()))
		}
	}
	return v
}

func readDocument(path string) SchemaDocument {
	text, err := schemaFiles.ReadFile(path)
	if err != nil {
		panic(err.Error()) // the tests fail for a missing file
	}
	sum := sha256.Sum256(text)
	return SchemaDocument{hex.EncodeToString(sum[:]), text}
}
