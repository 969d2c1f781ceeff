package console

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"strings"
)

// formView is a form of an action, as the template "form" renders it.
type formView struct {
	Name, Path, Label, Warn string
	Token, State, At        string
	Reason                  string
	Fields                  []fieldView
	ID                      string   // unique in the page, for labels
	ReasonFault             string   // of the last attempt
	Refused                 *Refusal // the problem of the last attempt
}

type fieldView struct {
	ID, Name, Label, Hint, Kind, Value string
	Options                            []option
	Heads                              []string      // of Rows
	Rows                               [][]fieldView // of a list of objects
	List                               string        // the id of its suggestions
	Lists                              []suggestions // of Rows
	Optional                           bool
	Fault                              string // of the last attempt
	First                              bool   // the first field at fault
}

type option struct {
	Value  string
	Chosen bool
}

// Form returns the form of an action of the page, or nil if the visitor's key may not use it. target names the parameters of the action's
// path and its hidden fields, as pairs of name and value. state is the state of the target as the page displays it: it must differ after
// each execution of the action, e.g. by a time or a count, because a state that returns would be an Idempotency-Key that returns.
func (d *view) Form(name, state string, target ...any) (*formView, error) {
	for _, a := range d.Page.Actions {
		if a.Name == name {
			return d.form(a, state, dict(target...)), nil
		}
	}
	return nil, fmt.Errorf("the page %s has no action %q", d.Page.Path, name)
}

// NewForm returns the form of the page's first action, which makes something: filled with the page's data and parameters.
func (d *view) NewForm() *formView {
	filled := maps.Clone(d.Data)
	for _, name := range d.Page.Params {
		filled[name] = d.Query(name)
	}
	return d.form(d.Page.Actions[0], d.Query("key"), filled)
}

// Text explains the page.
func (d *view) Text() string { return d.Page.Text }

func (d *view) form(a *Action, state string, target Doc) *formView {
	if d.Visitor.allowed(&route{Who: a.Who, Scopes: a.scopes}) != nil {
		return nil
	}
	address := a.Path
	for name, value := range target {
		address = replaceParameter(address, name, Text(value))
	}
	address = d.v.Expand(address)
	f := &formView{Name: a.Name, Path: address, Label: a.Label, Warn: a.Warn, Token: d.Token(), State: Digest(state),
		ID: "f" + Digest(address)}
	at := Clone(d.v.Query)
	at.Del("done")
	f.At = at.Encode()
	var again url.Values // the values of the last attempt
	if d.failed != nil && d.failed.refused != nil && d.failed.action == a && d.r.URL.EscapedPath() == address {
		again, f.Refused = d.failed.values, d.failed.refused
		f.Reason = again.Get("reason")
	}
	for _, in := range a.inputs() {
		f.Fields = append(f.Fields, fieldOf(in, f.ID, target, again))
	}
	f.showFaults()
	return f
}

// showFaults shows the faults of the last attempt at their fields.
func (f *formView) showFaults() {
	if f.Refused == nil {
		return
	}
	first := true
	for _, fault := range f.Refused.Errors {
		name, _, _ := strings.Cut(strings.TrimPrefix(fault.Pointer, "/"), "/")
		if name == "reason" {
			f.ReasonFault = fault.Detail
		}
		for i := range f.Fields {
			if in := &f.Fields[i]; in.Name == name && in.Fault == "" {
				in.Fault, in.First, first = fault.Detail, first, false
				if parts := strings.Split(fault.Pointer, "/"); in.Rows != nil && len(parts) > 3 {
					in.Fault = labelOf(parts[3]) + ": " + fault.Detail
				}
			}
		}
	}
}

func fieldOf(in Field, form string, target Doc, again url.Values) fieldView {
	v := fieldView{ID: form + "-" + in.Name, Name: in.Name, Label: in.Label, Hint: in.Hint, Kind: in.Kind, Optional: in.Optional,
		Value: Text(target[in.Name])}
	chosen := map[string]bool{v.Value: true}
	for _, value := range Texts(Items(target[in.Name])) {
		chosen[value] = true
	}
	if again != nil && in.Kind != "displayed" {
		v.Value, chosen = again.Get(in.Name), map[string]bool{}
		for _, value := range again[in.Name] {
			chosen[value] = true
		}
	}
	if in.Rows != nil {
		if v.Rows = in.rowsOf(form, target, Form{again}); v.Rows == nil {
			v.Kind, v.Value = "area", listed(target[in.Name], again.Get(in.Name))
		}
		for _, cell := range in.Rows {
			v.Heads = append(v.Heads, cell.Label)
		}
		v.Lists = in.lists(form, target)
	}
	for _, o := range in.Options {
		v.Options = append(v.Options, option{o, chosen[o]})
	}
	return v
}

// listed returns a list as the JSON of a text field: that of the last attempt, if there is one.
func listed(list any, again string) string {
	if again != "" {
		return again
	}
	text, _ := Indented(list) // answers of the API never fail
	return text
}

// Digest returns a short name of a text, for ids in a page.
func Digest(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:8])
}

// Failed is the problem of an action whose form the page does not show any more.
func (d *view) Failed() *Refusal {
	if d.failed == nil {
		return nil
	}
	return d.failed.refused
}

// Secret is the answer of an action that holds a secret.
func (d *view) Secret() Doc {
	if d.failed == nil {
		return nil
	}
	return d.failed.answer
}

// Done says that an action has succeeded; "" if the page was not opened by one.
func (d *view) Done() string {
	if d.v == nil || d.Page == nil {
		return ""
	}
	done := d.v.Query.Get("done")
	if done == "repeated" {
		return "This was done already, from the same state of the page, and is not done again. The page shows the result, or lists it."
	}
	for _, p := range d.c.pages {
		for _, a := range p.Actions {
			if a.Name == done {
				return "Done: " + a.Label + "."
			}
		}
	}
	return ""
}
