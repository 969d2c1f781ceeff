package events

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the file of the vocabulary of this binary")

// The vocabulary of this binary has a file, so that every later release embeds it. A
// file never changes: its name is its hash.
func TestEveryVocabularyIsEmbedded(t *testing.T) {
	current := CurrentVocabulary()
	path := filepath.Join("vocabularies", current.Hash()+".json")
	if *update {
		if err := os.WriteFile(path, []byte(current.Document()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	document, err := os.ReadFile(path)
	if err != nil || string(document) != current.Document() {
		t.Errorf("events/%s, the vocabulary of this binary, is missing or differs (%v): run make vocabulary and commit the file", path, err)
	}
	files, err := os.ReadDir("vocabularies")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		document, err := os.ReadFile(filepath.Join("vocabularies", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(document)
		hash := hex.EncodeToString(sum[:])
		if file.Name() != hash+".json" {
			t.Errorf("events/vocabularies/%s has the hash %s: a vocabulary that was used never changes", file.Name(), hash)
			continue
		}
		if v, err := ParseVocabulary(hash, string(document)); err != nil || v.Document() != string(document) {
			t.Errorf("events/vocabularies/%s: %v", file.Name(), err)
		}
		if _, ok := EmbeddedVocabulary(hash); !ok && !*update {
			t.Errorf("events/vocabularies/%s is not embedded", file.Name())
		}
	}
	if _, ok := EmbeddedVocabulary(FirstVocabulary); !ok {
		t.Error("the first vocabulary is not embedded: events of before could not be rendered")
	}
	if v, ok := EmbeddedVocabulary(current.Hash()); v != current || !ok {
		t.Error("the vocabulary of this binary is not found by its hash")
	}
}

// Envelopes from before the introduction of vocabularies are rendered unchanged,
// although schemas have changed since.
func TestWireIsAsItWasBeforeVocabularies(t *testing.T) {
	first, ok := EmbeddedVocabulary(FirstVocabulary)
	if !ok {
		t.Fatal("the first vocabulary is not embedded")
	}
	usage := sample()
	changed := sample()
	changed.Subject, changed.TenantID, changed.Position.Partition = TenantChanged, Platform, 0
	changed.Replay, changed.DedupeKey, changed.CausationID = "", "e/1", changed.EventID
	for name, e := range map[string]*Envelope{"usage": &usage, "tenant changed": &changed} {
		golden, err := os.ReadFile(filepath.Join("testdata", strings.ReplaceAll(name, " ", "_")+".golden.json"))
		if err != nil {
			t.Fatal(err)
		}
		e.Vocabulary = first
		r, err := ToRecord(e)
		if err != nil || string(r.Value)+"\n" != string(golden) {
			t.Errorf("%s: %v\nrendered %s\n     was %s", name, err, r.Value, golden)
		}
	}
	if r, _ := ToRecord(&changed); string(r.Header(HeaderSubject)) != "meterplex.catalogue.tenant.changed.v1" || r.Topic != TopicCatalogue {
		t.Errorf("subject %s of topic %s", r.Header(HeaderSubject), r.Topic.Name())
	}
	changed.Vocabulary = CurrentVocabulary()
	if r, _ := ToRecord(&changed); strings.Contains(string(r.Value), "a33b89a9dbecd850525d53ee20da9d9e9c2ae14a70187bafc42880bddd2e9d47") {
		t.Error("the schema that has a new member has the name of the one before")
	}
}

// An envelope is rendered with its own vocabulary, as read from the document, even if
// the registry of a later release differs.
func TestAnEnvelopeKeepsItsVocabulary(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	before := registry
	defer func() { registry = before }()
	old := CurrentVocabulary()
	for n := range 200 {
		registry = before
		e := sample()
		info := before[rng.IntN(len(before))]
		e.Subject, e.Residency = info.Subject, []string{"unspecified", "eu-central-1", "x"}[rng.IntN(3)]
		first, err := ToRecord(&e)
		if err != nil {
			t.Fatal(err)
		}
		for i := range registry {
			switch rng.IntN(4) {
			case 0:
				registry[i].Retention = "hot"
			case 1:
				registry[i].Type, registry[i].Version = registry[i].Type+"_now", 2
			case 2:
				registry[i].Topic = TopicBilling
			}
		}
		e.Vocabulary, err = ParseVocabulary(old.Hash(), old.Document()) // as a later release reads it
		if err != nil {
			t.Fatal(err)
		}
		again, err := ToRecord(&e)
		if err != nil || !reflect.DeepEqual(first, again) {
			t.Fatalf("seed %d, %d: %v\nfirst %s\nagain %s", seed, n, err, first.Value, again.Value)
		}
		entries := entriesOf(t, old)
		i := int(info.Subject)
		var said struct {
			EventType, SchemaURI string
			EventVersion         int
			Metadata             Metadata
		}
		if err := json.Unmarshal(again.Value, &said); err != nil {
			t.Fatal(err)
		}
		if said.EventType != entries[i].Type || said.EventVersion != entries[i].Version || said.SchemaURI != entries[i].SchemaURI ||
			said.Metadata.RetentionClass != entries[i].Retention || said.Metadata.DataResidency != e.Residency || again.Topic.Name() != entries[i].Topic {
			t.Fatalf("seed %d: %s is not what its vocabulary says: %+v", seed, again.Value, entries[i])
		}
	}
}

// entriesOf reads a document independently of the code that renders envelopes.
func entriesOf(t *testing.T, v *Vocabulary) map[int]entry {
	t.Helper()
	var content struct{ Subjects []entry }
	if err := json.Unmarshal([]byte(v.Document()), &content); err != nil {
		t.Fatal(err)
	}
	by := map[int]entry{}
	for _, e := range content.Subjects {
		by[int(e.Subject)] = e
	}
	return by
}

// There is no default for a missing vocabulary, subject or residency.
func TestWhatAVocabularyLacksIsAnError(t *testing.T) {
	for name, change := range map[string]func(*Envelope){
		"no vocabulary":     func(e *Envelope) { e.Vocabulary = nil },
		"no such subject":   func(e *Envelope) { e.Subject = 29 },
		"beyond the last":   func(e *Envelope) { e.Subject = 999 },
		"no subject":        func(e *Envelope) { e.Subject = 0 },
		"negative":          func(e *Envelope) { e.Subject = -1 },
		"no residency":      func(e *Envelope) { e.Residency = "" },
		"no such residency": func(e *Envelope) { e.Residency = `eu"` },
	} {
		e := sample()
		change(&e)
		if _, err := AppendWire(nil, &e); err == nil {
			t.Errorf("%s: an envelope was rendered", name)
		}
		if r, err := ToRecord(&e); err == nil {
			t.Errorf("%s: a record was made: %s", name, r.Value)
		}
	}
	e := sample()
	_, err := AppendWire(nil, &Envelope{Subject: e.Subject, Residency: "x"})
	if !errors.Is(err, errNoVocabulary) {
		t.Errorf("without a vocabulary: %v", err)
	}
}

func TestVocabulariesThatCannotBeUsed(t *testing.T) {
	line := `{"subject":1,"type":"a.b","version":1,"topic":"usage.raw","retention":"cold","schemaUri":"/x#sha256=1"}`
	for name, document := range map[string]string{
		"not JSON":          `{`,
		"a member unknown":  `{"subjects":[],"envelope":2}`,
		"a subject twice":   `{"subjects":[` + line + `,` + line + `]}`,
		"no number":         `{"subjects":[` + strings.Replace(line, `"subject":1`, `"subject":0`, 1) + `]}`,
		"no version":        `{"subjects":[` + strings.Replace(line, `"version":1`, `"version":0`, 1) + `]}`,
		"a quote in a type": `{"subjects":[` + strings.Replace(line, `a.b`, `a\"b`, 1) + `]}`,
		"no retention":      `{"subjects":[` + strings.Replace(line, `cold`, ``, 1) + `]}`,
	} {
		sum := sha256.Sum256([]byte(document))
		if _, err := ParseVocabulary(hex.EncodeToString(sum[:]), document); err == nil {
			t.Errorf("%s: %s was taken", name, document)
		}
	}
	if _, err := ParseVocabulary(FirstVocabulary, CurrentVocabulary().Document()); err == nil {
		t.Error("a document was taken for another one's hash")
	}
	// An event of a topic that only a later release has can be shown, but not published.
	document := `{"subjects":[` + strings.Replace(line, "usage.raw", "usage.next", 1) + `]}`
	sum := sha256.Sum256([]byte(document))
	v, err := ParseVocabulary(hex.EncodeToString(sum[:]), document)
	if err != nil {
		t.Fatal(err)
	}
	e := sample()
	e.Vocabulary = v
	if _, err := AppendWire(nil, &e); err != nil {
		t.Error(err)
	}
	if r, err := ToRecord(&e); err == nil {
		t.Errorf("a record of topic %d was made", r.Topic)
	}
}

func TestResidencies(t *testing.T) {
	for text, ok := range map[string]bool{
		"unspecified": true, "eu": true, "eu-central-1": true, "a": true, "a-": true, strings.Repeat("a", 32): true,
		"": false, strings.Repeat("a", 33): false, "EU": false, "1a": false, "-a": false, "a_b": false, "a b": false, "ä": false, "a\"": false, "eu\n": false,
	} {
		if IsResidency(text) != ok {
			t.Errorf("%q: %v, want %v", text, !ok, ok)
		}
	}
}

func BenchmarkAppendWire(b *testing.B) {
	e := sample()
	e.Replay, e.Actor.ID, e.DedupeKey = "", "k", "u/a"
	buf := make([]byte, 0, 2000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := AppendWire(buf[:0], &e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseWireOfARegion(b *testing.B) {
	e := sample()
	e.Replay, e.Actor.ID, e.DedupeKey, e.Residency = "", "k", "u/a", "eu-central-1"
	value, err := AppendWire(nil, &e)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseWire(value); err != nil {
			b.Fatal(err)
		}
	}
}
