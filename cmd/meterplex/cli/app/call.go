package app

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// Call is one use of a command.
type Call struct {
	Command
	*Operation
	flags reflect.Value
	Match string // the header If-Match; "": no header
}

// CallOf returns the use of a command of the list, nil for another command.
func CallOf(list []Command, selected *kong.Node) *Call {
	name := strings.TrimPrefix(selected.FullPath(), "meterplex ")
	at := slices.IndexFunc(list, func(c Command) bool { return c.Name == name })
	if at < 0 {
		return nil
	}
	l := &Call{Command: list[at], flags: selected.Target}
	id := l.Op
	if FlagOf[bool](l, "Operator") {
		id = l.Operator
	}
	l.Operation = OperationOf(id)
	return l
}

// FlagOf returns the value of a field of the flags, the zero value if the command does not have it.
func FlagOf[T any](l *Call, name string) (value T) {
	if field := l.flags.FieldByName(name); field.IsValid() {
		value, _ = field.Interface().(T)
	}
	return value
}

// Given returns the value of an input, nil if it is not given.
func (l *Call) Given(in *input) (any, error) {
	field := l.flags.FieldByName(in.field())
	if !field.IsValid() || field.IsZero() {
		return nil, nil
	}
	value, read := reflect.Indirect(field).Interface(), l.Read[in.Name]
	if read == nil {
		return value, nil
	}
	texts, several := value.([]string)
	if !several {
		return read(value.(string))
	}
	all := make([]any, len(texts))
	for i, text := range texts {
		var err error
		if all[i], err = read(text); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Request returns the request that the flags make.
func (l *Call) Request(a *App) (r client.Request, err error) {
	values := map[string]any{}
	for i := range l.Inputs {
		in := &l.Inputs[i]
		value, err := l.Given(in)
		if err != nil {
			return r, err
		}
		if value != nil {
			values[in.Name] = value
		}
	}
	if l.Amend != nil {
		if err := l.Amend(a, l, values); err != nil {
			return r, err
		}
	}
	r = client.Request{Method: l.Method, Path: l.Path, Query: url.Values{}}
	var body map[string]any
	for _, in := range l.Inputs {
		value, given := values[in.Name]
		if in.In == "body" && body == nil {
			body = map[string]any{}
		}
		switch {
		case !given:
		case in.In == "path":
			r.Path = strings.ReplaceAll(r.Path, "{"+in.Name+"}", url.PathEscape(fmt.Sprint(value)))
		case in.In == "body":
			body[in.Name] = value
		case in.List():
			r.Query[in.Name], _ = value.([]string)
		default:
			r.Query.Set(in.Name, fmt.Sprint(value))
		}
	}
	if l.Once && l.Method == http.MethodPost {
		r.Header = http.Header{"Idempotency-Key": {cmp.Or(FlagOf[string](l, "IdempotencyKey"), rand.Text())}}
	}
	if l.Match != "" {
		r.Header.Set("If-Match", l.Match)
	}
	fresh := FlagOf[Fresh](l, "Own")
	fresh.Add(&r)
	if body != nil {
		r.Body, err = l.body(body)
	}
	return r, err
}

// body returns the body of a request with these members, or that of the file.
func (l *Call) body(members map[string]any) ([]byte, error) {
	file := FlagOf[string](l, "File")
	if file != "" {
		if len(members) > 0 {
			return nil, errors.New("give --file, or the members of the body, not both")
		}
		raw, err := ReadFile(file)
		text, _ := raw.(json.RawMessage)
		return text, err
	}
	if l.Method == http.MethodPatch && len(members) == 0 {
		return nil, errors.New("name at least one change by a flag")
	}
	for _, in := range l.Inputs {
		if _, given := members[in.Name]; given || !in.Required || in.In != "body" {
			continue
		}
		if !in.List() {
			name, _ := in.flag()
			return nil, fmt.Errorf("give --%s", name)
		}
		members[in.Name] = []string{}
	}
	return json.Marshal(members)
}

// Send sends the request, and returns the answer.
func (l *Call) Send(a *App) (json.RawMessage, error) {
	cl, err := a.NewClient()
	if err != nil {
		return nil, err
	}
	r, err := l.Request(a)
	if err != nil {
		return nil, err
	}
	return cl.Do(a.Ctx, r)
}

// Pages sends the request for each of the largest pages of its answer.
func (l *Call) Pages(a *App, take func(page json.RawMessage) error) error {
	r, err := l.Request(a)
	if err != nil {
		return err
	}
	r.Query.Set("limit", LargestPage)
	return a.Pages(r, take)
}

// LargestPage is the largest number of rows of a page.
const LargestPage = "1000"

// Pages sends a request for each page of its answer.
func (a *App) Pages(r client.Request, take func(page json.RawMessage) error) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	for {
		raw, err := cl.Do(a.Ctx, r)
		if err != nil {
			return err
		}
		var page struct{ NextCursor string }
		if err := errors.Join(take(raw), json.Unmarshal(raw, &page)); err != nil || page.NextCursor == "" {
			return err
		}
		r.Query.Set("cursor", page.NextCursor)
	}
}

// Execute runs the command.
func (l *Call) Execute(a *App) error {
	if l.Reasoned {
		a.reason = FlagOf[string](l, "Reason")
	}
	switch {
	case l.Run != nil:
		return l.Run(a, l)
	case l.Columns != "":
		r, err := l.Request(a)
		if err != nil {
			return err
		}
		return l.List(a, r)
	}
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		a.Report("%s %s.", cmp.Or(l.Done, "Removed"), l.Last())
	}
	return a.Object(raw)
}

// List prints the rows of a request.
func (l *Call) List(a *App, r client.Request) error {
	return a.List(r.Path, r.Query, FlagOf[int](l, "Limit"), strings.Fields(l.Columns)...)
}

// Last returns the last parameter of the path: it names the resource of the request.
func (l *Call) Last() (last string) {
	for _, in := range l.Inputs {
		if in.In == "path" {
			last = *FlagOf[*string](l, in.field())
		}
	}
	return last
}
