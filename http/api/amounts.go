package api

import (
	"mime"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/problem"
)

// amountsParameter asks for amounts as texts: readers of JSON such as JavaScript's round integers above 2^53. A parameter of
// application/json in Accept has the same effect.
const (
	amountsParameter = "amounts"
	amountsAsTexts   = "string"
)

// amountExtension marks the members of answers that hold amounts.
const amountExtension = "x-amount"

// boundedAmounts names the members that hold an amount of at most 64 bits, by name or by schema and name. Other integers of 64 bits
// are counts, versions or times; integers without a format are sums of any size.
var boundedAmounts = map[string]bool{"amount": true, "effectiveAmount": true, "limit": true, "committed": true, "released": true,
	"before": true, "after": true, "delta": true, "DiffEvent.live": true, "DiffEvent.rebuilt": true}

// Amounts is the place of amounts in a JSON value; nil: the value has no amounts.
type Amounts struct {
	amount  bool
	members map[string]*Amounts
	items   *Amounts // of an array, or of an object with any members
}

// AmountReader finds the amounts of schemas, each named schema once: schemas may be recursive.
type AmountReader struct {
	Registry huma.Registry
	Named    map[string]*Amounts
}

func (r *AmountReader) Of(schema *huma.Schema, within, name string) *Amounts {
	switch {
	case schema == nil:
		return nil
	case schema.Ref != "":
		return r.ofNamed(schema.Ref[len(SchemaPrefix):])
	case len(schema.AnyOf) > 0: // a schema, or null
		return r.Of(schema.AnyOf[0], within, name)
	case schema.Type == huma.TypeInteger && (schema.Format == "" || boundedAmounts[name] || boundedAmounts[within+"."+name]):
		if schema.Extensions == nil {
			schema.Extensions = map[string]any{}
		}
		schema.Extensions[amountExtension] = true
		return &Amounts{amount: true}
	}
	found := &Amounts{members: map[string]*Amounts{}}
	for member, s := range schema.Properties {
		found.members[member] = r.Of(s, within, member)
	}
	if others, ok := schema.AdditionalProperties.(*huma.Schema); ok {
		found.items = r.Of(others, within, name)
	} else {
		found.items = r.Of(schema.Items, within, name)
	}
	return found
}

func (r *AmountReader) ofNamed(name string) *Amounts {
	if known, found := r.Named[name]; found {
		return known
	}
	r.Named[name] = new(Amounts)
	*r.Named[name] = *r.Of(r.Registry.Map()[name], name, "")
	return r.Named[name]
}

// any reports whether the value holds an amount.
func (a *Amounts) any(seen map[*Amounts]bool) bool {
	if a == nil || seen[a] {
		return false
	}
	seen[a] = true
	if a.amount || a.items.any(seen) {
		return true
	}
	for _, member := range a.members {
		if member.any(seen) {
			return true
		}
	}
	return false
}

// withAmounts adds the parameter amounts to an operation whose answer holds amounts, and returns its handler with the effect.
func (t *Site) withAmounts(op *huma.Operation, guard func() http.Handler) http.Handler {
	reader := &AmountReader{Registry: t.API.OpenAPI().Components.Schemas, Named: map[string]*Amounts{}}
	answer := reader.OfAnswer(op)
	if !answer.any(map[*Amounts]bool{}) {
		return guard()
	}
	op.Parameters = append(op.Parameters, &huma.Param{Name: amountsParameter, In: "query",
		Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{amountsAsTexts}},
		Description: "string: amounts (`x-amount`) are texts of digits, which clients that round integers above 2^53 read exactly. " +
			"`Accept: application/json; amounts=string` has the same effect."})
	return AsTexts(answer, reader.ofNamed("Problem"), guard())
}

// OfAnswer returns the amounts in the answer of success in JSON.
func (r *AmountReader) OfAnswer(op *huma.Operation) *Amounts {
	for status, response := range op.Responses {
		if media := response.Content[MediaJSON]; status[0] == '2' && media != nil {
			return r.Of(media.Schema, "", "") // each status of success has the same schema
		}
	}
	return nil
}

// AsTexts writes the amounts of next's answers as texts if the request asks for it.
func AsTexts(answer, refusal *Amounts, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wantsAmountsAsTexts(r) {
			w = &amountWriter{ResponseWriter: w, answer: answer, refusal: refusal}
		}
		next.ServeHTTP(w, r)
	})
}

func wantsAmountsAsTexts(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, amountsParameter) && r.URL.Query().Get(amountsParameter) == amountsAsTexts {
		return true
	}
	for _, value := range r.Header["Accept"] {
		for one := range strings.SplitSeq(value, ",") {
			if _, parameters, err := mime.ParseMediaType(one); err == nil && parameters[amountsParameter] == amountsAsTexts {
				return true
			}
		}
	}
	return false
}

// amountWriter writes the amounts of an answer in JSON as texts, as the answer is written.
type amountWriter struct {
	http.ResponseWriter
	answer, refusal *Amounts
	begun           bool
	text            *amountText // nil: the answer is no JSON
	out             []byte
}

// Unwrap lets http.ResponseController find the connection.
func (w *amountWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *amountWriter) WriteHeader(status int) {
	if !w.begun && status >= http.StatusOK {
		w.begun = true
		header := w.Header()
		header.Add("Vary", "Accept")
		switch media, _, _ := mime.ParseMediaType(header.Get("Content-Type")); media {
		case MediaJSON:
			w.text = &amountText{root: w.answer}
		case problem.MediaType:
			w.text = &amountText{root: w.refusal}
		}
		if w.text != nil {
			header.Del("Content-Length")
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *amountWriter) Write(body []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if w.text == nil {
		return w.ResponseWriter.Write(body)
	}
	w.out = w.text.append(w.out[:0], body)
	if _, err := w.ResponseWriter.Write(w.out); err != nil {
		return 0, err
	}
	return len(body), nil
}

// amountText copies a JSON document and puts its amounts in quotes. The document may arrive in any pieces.
type amountText struct {
	root    *Amounts
	open    []openValue
	key     []byte
	quoted  bool // within a string
	escaped bool
	number  bool // within an amount
}

// openValue is an object or array whose end has not arrived.
type openValue struct {
	in     *Amounts
	object bool
	value  *Amounts // of the member
}

func (d *amountText) append(dst, piece []byte) []byte {
	for _, c := range piece {
		if d.quoted {
			d.inString(c)
			dst = append(dst, c)
			continue
		}
		if d.number && !strings.ContainsRune("0123456789+-.eE", rune(c)) {
			d.number = false
			dst = append(dst, '"')
		}
		if (c == '-' || c >= '0' && c <= '9') && !d.number && d.Next().isAmount() {
			d.number = true
			dst = append(dst, '"')
		}
		dst = append(dst, c)
		d.structure(c)
	}
	return dst
}

func (d *amountText) inString(c byte) {
	switch {
	case d.escaped:
		d.escaped = false
	case c == '\\':
		d.escaped = true
	case c == '"':
		d.quoted = false
		return
	}
	d.key = append(d.key, c)
}

// structure follows the objects and arrays.
func (d *amountText) structure(c byte) {
	top := len(d.open) - 1
	switch c {
	case '"':
		d.quoted, d.key = true, d.key[:0]
	case '{', '[':
		d.open = append(d.open, openValue{in: d.Next(), object: c == '{'})
	case '}', ']':
		d.open = d.open[:max(top, 0)]
	case ':':
		d.open[top].value = d.open[top].in.member(d.key)
	}
}

// Next returns the place of the value that follows.
func (d *amountText) Next() *Amounts {
	if len(d.open) == 0 {
		return d.root
	}
	top := &d.open[len(d.open)-1]
	switch {
	case top.in == nil:
		return nil
	case top.object:
		return top.value
	}
	return top.in.items
}

func (a *Amounts) member(name []byte) *Amounts {
	if a == nil {
		return nil
	}
	if member, known := a.members[string(name)]; known {
		return member
	}
	return a.items
}

func (a *Amounts) isAmount() bool { return a != nil && a.amount }
