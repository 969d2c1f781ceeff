package events

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Vocabulary defines how the records of each subject are rendered: type, version,
// topic, schema and retention class. An event keeps the vocabulary of the binary that recorded it, so every later release renders the same
// bytes. The SHA-256 of its document identifies a vocabulary.
type Vocabulary struct {
	hash     string
	document string
	terms    []Term // indexed by subject number; empty for unused numbers
}

// Term is a subject in a vocabulary. Topic is 0 if this binary lacks the topic.
type Term struct {
	SubjectInfo
	SchemaURI      string
	Prefix, Suffix string // the members of the envelope that depend only on the subject
}

// Entry is the form of a term in the document.
type Entry struct {
	Subject   Subject `json:"subject"`
	Type      string  `json:"type"`
	Version   int     `json:"version"`
	Topic     string  `json:"topic"`
	Retention string  `json:"retention"`
	SchemaURI string  `json:"schemaUri"` // includes the SHA-256 of the schema
}

// Hash identifies the vocabulary.
func (v *Vocabulary) Hash() string { return v.hash }

// Document is the text from which the hash is computed.
func (v *Vocabulary) Document() string { return v.document }

// CurrentVocabulary returns the vocabulary under which this binary records events.
var CurrentVocabulary = sync.OnceValue(func() *Vocabulary {
	entries := make([]Entry, len(registry))
	for i, info := range registry {
		schema, err := Schema(info.Subject)
		if err != nil {
			panic(fmt.Sprintf("events: %s has no schema: %v", info.Name(), err)) // the tests fail for such a build
		}
		sum := sha256.Sum256(schema)
		uri := schemaURI(info.Type, info.Version, hex.EncodeToString(sum[:]))
		entries[i] = Entry{info.Subject, info.Type, info.Version, info.Topic.Name(), info.Retention, uri}
	}
	v, err := newVocabulary(writeDocument(entries))
	if err != nil {
		panic(err.Error()) // the tests fail for a malformed registry
	}
	return v
})

// writeDocument returns the text of a vocabulary, with one line for each subject.
func writeDocument(entries []Entry) string {
	var b bytes.Buffer
	b.WriteString(`{"subjects":[`)
	for i := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		line, _ := json.Marshal(entries[i]) // numbers and strings never fail
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.String()
}

//go:embed vocabularies/*.json
var vocabularyFiles embed.FS

// embedded returns the vocabularies of all releases up to this one, by hash.
var embedded = sync.OnceValue(func() map[string]*Vocabulary {
	files, err := vocabularyFiles.ReadDir("vocabularies")
	if err != nil {
		panic(err.Error()) // the folder is embedded
	}
	known := make(map[string]*Vocabulary, len(files)+1)
	for _, file := range files {
		document, err := vocabularyFiles.ReadFile("vocabularies/" + file.Name())
		if err != nil {
			panic(err.Error())
		}
		hash := strings.TrimSuffix(file.Name(), ".json")
		v, err := ParseVocabulary(hash, string(document))
		if err != nil {
			panic(err.Error()) // the tests fail for a damaged file
		}
		known[hash] = v
	}
	current := CurrentVocabulary()
	known[current.hash] = current
	return known
})

// EmbeddedVocabulary returns a vocabulary that is embedded in this binary. The log
// stores the others in log_vocabularies.
func EmbeddedVocabulary(hash string) (v *Vocabulary, ok bool) {
	v, ok = embedded()[hash]
	return v, ok
}

// ParseVocabulary reads a document and checks that it has the given hash.
func ParseVocabulary(hash, document string) (*Vocabulary, error) {
	v, err := newVocabulary(document)
	if err == nil && v.hash != hash {
		err = fmt.Errorf("events: the document of the vocabulary %.80q has the hash %s", hash, v.hash)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

func newVocabulary(document string) (*Vocabulary, error) {
	sum := sha256.Sum256([]byte(document))
	v := &Vocabulary{hash: hex.EncodeToString(sum[:]), document: document}
	var content struct {
		Subjects []Entry `json:"subjects"`
	}
	// An unknown member could change how envelopes are rendered.
	d := json.NewDecoder(strings.NewReader(document))
	d.DisallowUnknownFields()
	if err := d.Decode(&content); err != nil {
		return nil, fmt.Errorf("events: the vocabulary %s does not decode: %w", v.hash, err)
	}
	for i := range content.Subjects {
		e := &content.Subjects[i]
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("events: the vocabulary %s, entry %d: %w", v.hash, i, err)
		}
		if missing := int(e.Subject) + 1 - len(v.terms); missing > 0 {
			v.terms = append(v.terms, make([]Term, missing)...)
		}
		if v.terms[e.Subject].Type != "" {
			return nil, fmt.Errorf("events: the vocabulary %s has subject %d twice", v.hash, e.Subject)
		}
		v.terms[e.Subject] = e.term()
	}
	return v, nil
}

// check refuses numbers below 1, and texts that would need an escape in an envelope.
func (e *Entry) check() error {
	if e.Subject < 1 || e.Version < 1 {
		return fmt.Errorf("subject %d and version %d must be above zero", e.Subject, e.Version)
	}
	for _, text := range []string{e.Type, e.Topic, e.Retention, e.SchemaURI} {
		if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
			return fmt.Errorf("subject %d: %.80q is empty, or cannot be in an envelope as it is", e.Subject, text)
		}
	}
	return nil
}

func (e *Entry) term() Term {
	topic, _ := TopicOf(e.Topic)
	return Term{
		SubjectInfo: SubjectInfo{Subject: e.Subject, Type: e.Type, Version: e.Version, Topic: topic, Retention: e.Retention},
		SchemaURI:   e.SchemaURI,
		Prefix: `","eventType":"` + e.Type + `","eventVersion":` + strconv.Itoa(e.Version) + `,"schemaUri":"` + e.SchemaURI +
			`","tenantId":"`,
		Suffix: e.Retention + `","dataResidency":"`,
	}
}

// ErrNoVocabulary means that an event has no vocabulary.
var ErrNoVocabulary = errors.New("events: the event has no vocabulary to be rendered with")

// Term returns the term of a subject. It fails if the vocabulary is nil or lacks the
// subject, because another vocabulary would give different bytes.
func (v *Vocabulary) Term(s Subject) (*Term, error) {
	if v == nil {
		return nil, ErrNoVocabulary
	}
	if s < 1 || int(s) >= len(v.terms) || v.terms[s].Type == "" {
		return nil, fmt.Errorf("events: subject %d is not in the vocabulary %s of the event", s, v.hash)
	}
	return &v.terms[s], nil
}
