package events

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// Every schemaUri that an embedded vocabulary names leads to the document with its hash. After
// a change of a schema its former document is kept beside the new one.
func TestEverySchemaURIOfAVocabularyHasItsDocument(t *testing.T) {
	byPath := map[string]*SchemaVersion{}
	for i := range SchemaVersions() {
		v := &SchemaVersions()[i]
		byPath[SchemaPath(v.Type, v.Version)] = v
	}
	named := map[string]bool{}
	for hash, v := range embedded() {
		for i := range v.terms {
			term := &v.terms[i]
			if term.Type == "" {
				continue
			}
			path, _, _ := strings.Cut(term.SchemaURI, "#")
			version := byPath[path]
			if version == nil {
				t.Errorf("vocabulary %.8s: %s is not listed", hash, path)
				continue
			}
			named[term.SchemaSum()] = true
			document, ok := version.Document(term.SchemaSum())
			var content struct{ Title string }
			if err := json.Unmarshal(document.Text, &content); !ok || err != nil || content.Title != term.Name() {
				t.Errorf("vocabulary %.8s: %s has no document (%v, title %q): keep the former one as events/schemas/%s.%s.json",
					hash, term.SchemaURI, err, content.Title, term.Name(), term.SchemaSum())
			}
		}
	}
	files, err := schemaFiles.ReadDir("schemas")
	must.OK(t, err)
	for _, file := range files {
		name, sum := strings.TrimSuffix(file.Name(), ".json"), readDocument("schemas/"+file.Name()).SHA256
		if former := name[strings.LastIndexByte(name, '.')+1:]; !named[sum] || len(former) == len(sum) && former != sum {
			t.Errorf("events/schemas/%s is named by no vocabulary, or does not have the hash of its name", file.Name())
		}
	}
}

// The list has each subject of this binary once, in order, under the schemaUri of its envelopes.
func TestSchemaVersionsListEverySubject(t *testing.T) {
	all := SchemaVersions()
	if len(all) < len(Subjects()) {
		t.Errorf("%d versions of %d subjects", len(all), len(Subjects()))
	}
	for i := range all {
		if i > 0 && all[i].URI() <= all[i-1].URI() {
			t.Errorf("%s follows %s", all[i].URI(), all[i-1].URI())
		}
		s, ok := SubjectOf(all[i].Type, all[i].Version)
		term, err := CurrentVocabulary().Term(s)
		if !ok || err != nil || term.SchemaURI != all[i].URI() || all[i].Trigger == "" || all[i].Topic != s.Topic().Name() {
			t.Errorf("%s: %v %+v", all[i].URI(), err, term)
		}
	}
}
