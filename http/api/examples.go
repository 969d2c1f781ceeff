package api

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
)

// exampleFiles holds one example of each operation, which a test sends: NAME.json, by operation id.
//
//go:embed examples/*.json
var exampleFiles embed.FS

// Example is a request of an operation and its answer.
type Example struct {
	Path   map[string]string `json:"path,omitempty"`
	Query  map[string]string `json:"query,omitempty"`
	Body   json.RawMessage   `json:"body,omitempty"`
	Answer json.RawMessage   `json:"answer,omitempty"` // a string if the answer is no JSON; absent if it has no body
	More   []MediaExample    `json:"more,omitempty"`
}

// MediaExample is the body or the answer of an operation in another media type.
type MediaExample struct {
	Media  string            `json:"media"`
	Query  map[string]string `json:"query,omitempty"`
	Body   json.RawMessage   `json:"body,omitempty"`
	Answer json.RawMessage   `json:"answer,omitempty"`
}

// ExampleOf returns the example of an operation.
func ExampleOf(operation string) (*Example, error) {
	text, err := exampleFiles.ReadFile("examples/" + operation + ".json")
	if err != nil {
		return nil, fmt.Errorf("the operation %s has no example in http/examples: %w", operation, err)
	}
	var e Example
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("read the example of %s: %w", operation, err)
	}
	return &e, nil
}

// addExamples adds the examples to the document. A test requires that each operation has one.
func addExamples(api *huma.OpenAPI) error {
	for _, op := range OperationsOf(api) {
		e, err := ExampleOf(op.OperationID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		e.parameters(op)
		if op.RequestBody != nil {
			add(op.RequestBody.Content, MediaJSON, e.Body)
		}
		for status, response := range op.Responses {
			if status[0] != '2' {
				continue
			}
			for media := range response.Content {
				if media != MediaEvents || len(e.Answer) > 0 && e.Answer[0] == '"' { // a stream is text
					add(response.Content, media, e.Answer)
				}
			}
		}
		e.others(op)
	}
	return nil
}

// others adds the examples of other media types.
func (e *Example) others(op *huma.Operation) {
	for _, other := range e.More {
		if op.RequestBody != nil {
			add(op.RequestBody.Content, other.Media, other.Body)
		}
		for _, response := range op.Responses {
			if media := response.Content[other.Media]; media != nil && other.Answer != nil {
				media.Example = other.Answer
			}
		}
	}
}

// add sets the example of a media type without one.
func add(content map[string]*huma.MediaType, name string, example json.RawMessage) {
	if media := content[name]; media != nil && media.Example == nil && example != nil {
		media.Example = example
	}
}

func (e *Example) parameters(op *huma.Operation) {
	for _, p := range op.Parameters {
		value, sent := e.Path[p.Name]
		if p.In == "query" {
			value, sent = e.Query[p.Name]
		}
		if !sent || p.In == "header" {
			continue
		}
		p.Example = value
		switch p.Schema.Type {
		case huma.TypeInteger:
			if n, err := strconv.Atoi(value); err == nil {
				p.Example = n
			}
		case huma.TypeBoolean:
			p.Example = value == "true"
		}
	}
}

// OperationsOf lists the operations of a document.
func OperationsOf(api *huma.OpenAPI) (all []*huma.Operation) {
	for _, item := range api.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op != nil {
				all = append(all, op)
			}
		}
	}
	return all
}
