package app

import (
	_ "embed" // for operationsFile
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// operationsFile holds the operations of the OpenAPI document. A test of package http writes it.
//
//go:embed operations.json
var operationsFile []byte

// Operation is an operation of the API, by its id.
type Operation struct {
	Method, Path         string // Path is below /api/v1
	Summary, Description string
	Once                 bool     // it has an Idempotency-Key
	Reasoned             bool     // it has a reason beside its body
	Inputs               []input  // of the path, the query and the body
	Answer               []string // members of the answer, or of the entries of a list
}

// input is a parameter of an operation, or a member of its body.
type input struct {
	Name, In    string // In is path, query or body
	Type        string // string, time, integer, boolean, map (of texts), object, or list of one of these
	Required    bool
	Description string
	Values      []string // of an enumeration
}

// List reports whether the input has any number of values.
func (in *input) List() bool { return strings.HasPrefix(in.Type, "list of ") }

// field returns the name of the input's field among the flags of a command.
func (in *input) field() string { return "In" + strings.ToUpper(in.Name[:1]) + in.Name[1:] }

// help describes the input and its values.
func (in *input) help() string {
	text := plainly(in.Description)
	if len(in.Values) < 2 || in.Type == "boolean" || strings.Contains(text, in.Values[0]) {
		return text
	}
	last := len(in.Values) - 1
	return strings.TrimSuffix(text, ".") + ": " + strings.Join(in.Values[:last], ", ") + " or " + in.Values[last] + "."
}

// ofHTTP matches sentences that say how HTTP carries something.
var ofHTTP = regexp.MustCompile(`\b(20[0-9]|4[0-9][0-9])\b|Accept:|Idempotency-Key|If-Match|If-None-Match|nextCursor`)

// plainly returns a description without the sentences about HTTP.
func plainly(description string) string {
	sentences := slices.DeleteFunc(strings.SplitAfter(description, ". "), ofHTTP.MatchString)
	return strings.TrimSpace(strings.Join(sentences, ""))
}

// flag returns the name of the input's flag, and the other name that it goes by.
func (in *input) flag() (name, alias string) {
	for _, r := range in.Name {
		if 'A' <= r && r <= 'Z' {
			name += "-"
		}
		name += strings.ToLower(string(r))
	}
	if in.List() {
		name = strings.TrimSuffix(name, "s")
	}
	switch name {
	case "tenant-id", "period-key":
		short, _, _ := strings.Cut(name, "-")
		return short, name
	}
	return name, ""
}

// placeholder stands for the value of the input's flag.
func (in *input) placeholder() string {
	switch {
	case in.Type == "integer":
		return "N"
	case in.Type == "time":
		return "TIME"
	case in.Type == "map":
		return "KEY=VALUE"
	case strings.HasSuffix(in.Name, "Id"), strings.HasSuffix(in.Name, "Ids"), in.Name == "ids":
		return "ID"
	}
	name, _ := in.flag()
	return strings.ToUpper(name[strings.LastIndexByte(name, '-')+1:])
}

var operations = sync.OnceValue(func() (all map[string]json.RawMessage) {
	if err := json.Unmarshal(operationsFile, &all); err != nil {
		panic(err) // of the program's own file
	}
	return all
})

// OperationOf returns the operation with an id.
func OperationOf(id string) *Operation {
	o := new(Operation)
	if err := json.Unmarshal(operations()[id], o); err != nil {
		panic(fmt.Sprintf("the operation %s of the command line: %v", id, err))
	}
	return o
}
