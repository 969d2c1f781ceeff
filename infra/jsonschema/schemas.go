// Package jsonschema validates payloads of events against their JSON Schemas: every payload in tests, a
// sample in production. It never refuses an event. It counts and logs an invalid payload.
package jsonschema

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meterplex/meterplex/events"
)

// Schemas holds the compiled schemas of all subjects. Each is compiled at its first use.
type Schemas struct {
	compiled map[string]func() (*jsonschema.Schema, error) // by the document's SHA-256
}

// New finds the documents of all schemas that this binary embeds.
func New() *Schemas {
	s := &Schemas{compiled: map[string]func() (*jsonschema.Schema, error){}}
	for _, v := range events.SchemaVersions() {
		for _, d := range v.Documents() {
			s.compiled[d.SHA256] = sync.OnceValues(func() (*jsonschema.Schema, error) { return Compile(d.Text) })
		}
	}
	return s
}

// Compile compiles a document. Formats are checked, too.
func Compile(document []byte) (*jsonschema.Schema, error) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return nil, fmt.Errorf("parse a schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	const name = "schema.json"
	if err := c.AddResource(name, parsed); err != nil {
		return nil, fmt.Errorf("add a schema: %w", err)
	}
	return c.Compile(name)
}

// ErrUnknown means that this binary does not have the schema of an event: a later release recorded it.
var ErrUnknown = errors.New("this release does not have the schema of the event")

// Check compares a payload with the schema of its subject in the vocabulary that it was recorded under; nil
// is that of this binary. Errors say which member breaks which rule. They contain no values, because logs must
// not contain payloads.
func (s *Schemas) Check(subject events.Subject, v *events.Vocabulary, payload []byte) (err error) {
	if v == nil {
		v = events.CurrentVocabulary()
	}
	term, err := v.Term(subject)
	if err != nil {
		return ErrUnknown
	}
	compile, ok := s.compiled[term.SchemaSum()]
	if !ok {
		return ErrUnknown
	}
	schema, err := compile()
	if err != nil {
		return fmt.Errorf("the schema of %s: %w", term.Name(), err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return errors.New("the payload is not JSON")
	}
	if failed, ok := errors.AsType[*jsonschema.ValidationError](schema.Validate(value)); ok {
		return errors.New(strings.Join(rules(failed, nil), "; "))
	}
	return nil
}

// maxRules bounds the broken rules in one error.
const maxRules = 5

// rules lists the members and rules at the leaves of an error.
func rules(e *jsonschema.ValidationError, list []string) []string {
	if len(list) == maxRules {
		return list
	}
	if len(e.Causes) == 0 {
		return append(list, fmt.Sprintf("/%s breaks %s", strings.Join(e.InstanceLocation, "/"), strings.Join(e.ErrorKind.KeywordPath(), "/")))
	}
	for _, cause := range e.Causes {
		list = rules(cause, list)
	}
	return list
}
