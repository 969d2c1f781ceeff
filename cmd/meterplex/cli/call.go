package cli

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// call is one use of a command.
type call struct {
	command
	*operation
	flags reflect.Value
	match string // the header If-Match, "": none
}

// callOf returns the use of a command of one request, nil for another command.
func callOf(selected *kong.Node) *call {
	name := strings.TrimPrefix(selected.FullPath(), "meterplex ")
	at := slices.IndexFunc(requests(), func(c command) bool { return c.name == name })
	if at < 0 {
		return nil
	}
	l := &call{command: requests()[at], flags: selected.Target}
	id := l.op
	if flagOf[bool](l, "Operator") {
		id = l.operator
	}
	l.operation = operationOf(id)
	return l
}

// flagOf returns the value of a field of the flags, the zero value if the command does not have it.
func flagOf[T any](l *call, name string) (value T) {
	if field := l.flags.FieldByName(name); field.IsValid() {
		value, _ = field.Interface().(T)
	}
	return value
}

// given returns the value of an input, nil if it is not given.
func (l *call) given(in *input) (any, error) {
	field := l.flags.FieldByName(in.field())
	if !field.IsValid() || field.IsZero() {
		return nil, nil
	}
	value, read := reflect.Indirect(field).Interface(), l.read[in.Name]
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

// request returns the request that the flags make.
func (l *call) request(a *app) (r client.Request, err error) {
	values := map[string]any{}
	for i := range l.Inputs {
		in := &l.Inputs[i]
		value, err := l.given(in)
		if err != nil {
			return r, err
		}
		if value != nil {
			values[in.Name] = value
		}
	}
	if l.amend != nil {
		if err := l.amend(a, l, values); err != nil {
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
		case in.list():
			r.Query[in.Name], _ = value.([]string)
		default:
			r.Query.Set(in.Name, fmt.Sprint(value))
		}
	}
	if l.Once && l.Method == http.MethodPost {
		r.Header = http.Header{"Idempotency-Key": {cmp.Or(flagOf[string](l, "IdempotencyKey"), rand.Text())}}
	}
	if l.match != "" {
		r.Header.Set("If-Match", l.match)
	}
	fresh := flagOf[Fresh](l, "Own")
	fresh.add(&r)
	if body != nil {
		r.Body, err = l.body(body)
	}
	return r, err
}

// body returns the body of a request with these members, or that of the file.
func (l *call) body(members map[string]any) ([]byte, error) {
	file := flagOf[string](l, "File")
	if file != "" {
		if len(members) > 0 {
			return nil, errors.New("give --file, or the members of the body, not both")
		}
		raw, err := readFile(file)
		text, _ := raw.(json.RawMessage)
		return text, err
	}
	if l.Method == http.MethodPatch && len(members) == 0 {
		return nil, errors.New("give what is to be changed, by a flag")
	}
	for _, in := range l.Inputs {
		if _, given := members[in.Name]; given || !in.Required || in.In != "body" {
			continue
		}
		if !in.list() {
			name, _ := in.flag()
			return nil, fmt.Errorf("give --%s", name)
		}
		members[in.Name] = []string{}
	}
	return json.Marshal(members)
}

// readFile returns the JSON of a file.
func readFile(name string) (any, error) {
	text, err := os.ReadFile(name)
	if err == nil && !json.Valid(text) {
		err = fmt.Errorf("%s is not JSON", name)
	}
	return json.RawMessage(text), err
}

// send sends the request, and returns the answer.
func (l *call) send(a *app) (json.RawMessage, error) {
	cl, err := a.newClient()
	if err != nil {
		return nil, err
	}
	r, err := l.request(a)
	if err != nil {
		return nil, err
	}
	return cl.Do(a.ctx, r)
}

// pages sends the request for each of the largest pages of its answer.
func (l *call) pages(a *app, take func(page json.RawMessage) error) error {
	r, err := l.request(a)
	if err != nil {
		return err
	}
	r.Query.Set("limit", largestPage)
	return a.pages(r, take)
}

// largestPage is the largest number of rows of a page.
const largestPage = "1000"

// pages sends a request for each page of its answer.
func (a *app) pages(r client.Request, take func(page json.RawMessage) error) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	for {
		raw, err := cl.Do(a.ctx, r)
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

// execute runs the command.
func (l *call) execute(a *app) error {
	if l.Reasoned {
		a.reason = flagOf[string](l, "Reason")
	}
	switch {
	case l.run != nil:
		return l.run(a, l)
	case l.columns != "":
		r, err := l.request(a)
		if err != nil {
			return err
		}
		return l.list(a, r)
	}
	raw, err := l.send(a)
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		a.report("%s %s.", cmp.Or(l.done, "Removed"), l.last())
	}
	return a.object(raw)
}

// list prints the rows of a request.
func (l *call) list(a *app, r client.Request) error {
	return a.list(r.Path, r.Query, flagOf[int](l, "Limit"), strings.Fields(l.columns)...)
}

// last returns the last parameter of the path: what the request is about.
func (l *call) last() (last string) {
	for _, in := range l.Inputs {
		if in.In == "path" {
			last = *flagOf[*string](l, in.field())
		}
	}
	return last
}
