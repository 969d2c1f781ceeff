// Package jsonschema compares payloads of events with their JSON Schemas, in tests.
package jsonschema

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meterplex/meterplex/events"
)

// compiled returns the schemas of this binary by the SHA-256 of their documents. Each is compiled at its first use.
var compiled = sync.OnceValue(func() map[string]func() (*jsonschema.Schema, error) {
	schemas := map[string]func() (*jsonschema.Schema, error){}
	for _, v := range events.SchemaVersions() {
		for _, d := range v.Documents() {
			schemas[d.SHA256] = sync.OnceValues(func() (*jsonschema.Schema, error) { return Compile(d.Text) })
		}
	}
	return schemas
})

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

// Check compares a payload with the schema of its subject in the vocabulary that it was recorded under; nil is that of this binary.
func Check(subject events.Subject, v *events.Vocabulary, payload []byte) error {
	if v == nil {
		v = events.CurrentVocabulary()
	}
	term, err := v.Term(subject)
	if err != nil {
		return ErrUnknown
	}
	compile, ok := compiled()[term.SchemaSum()]
	if !ok {
		return ErrUnknown
	}
	schema, err := compile()
	if err != nil {
		return fmt.Errorf("the schema of %s: %w", term.Name(), err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return fmt.Errorf("the payload is not JSON: %w", err)
	}
	return schema.Validate(value)
}
