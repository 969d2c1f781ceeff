package console

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// Action is a change that a page offers: one operation of the API. It has the operation's kind of key, scopes and members. A form asks for
// the reason.
type Action struct {
	Name   string // unique in the page
	Path   string // of POST, a pattern below the page's
	Label  string // of the button
	Warn   string // the effect that cannot be undone, shown above the button; "": it can
	Does   string // the operation of the API, as "POST /api/v1/tenants"
	Fields []Field
	Sets   map[string]any // members that each request has
	// Adds, if set, adds the members that no field alone holds, or refuses the form.
	Adds func(v *Visit, f Form, body map[string]any) error
	// Next returns the address of the page that shows the result; nil: the page of the action. The answer is nil if the form was used
	// before for another request.
	Next func(v *Visit, f Form, answer Doc) string
	// Secret is set if the answer holds a secret: the page shows it once.
	Secret bool
	// Matches is set if the request requires the state that the page displays: its form holds the entity tag, for If-Match.
	Matches bool
	// Creates is set if the request makes an entity, and never replaces one.
	Creates bool

	// Of the operation. bare is set if its body has no member reason: the header Meterplex-Reason holds it.
	Who    auth.Who // "": operator
	scopes []string
	bare   bool
}

// EtagField is the field that holds the entity tag of the displayed state.
const EtagField = "etag"

// inputs are the fields of the form beside those that every form has.
func (a *Action) inputs() []Field {
	if !a.Matches {
		return a.Fields
	}
	return append([]Field{{Name: EtagField, Label: "Displayed state", Kind: "displayed"}}, a.Fields...)
}

// Field is an input of a form beside the reason. Values that are not set follow from the member of the operation's body that has its name.
type Field struct {
	Name, Label, Hint string
	// text, number, hidden, displayed (hidden, and never of an earlier display), select, checkbox, checkboxes, area
	Kind     string
	Options  []string // of select and checkboxes
	Optional bool
	Is       string  // the parameter of the operation's path, if it has another name
	Rows     []Field // the members of a list of objects, which the form shows as rows of inputs; nil: as JSON
	holds    held
}

// Form holds the values of a form that was sent.
type Form struct{ values url.Values }

func (f Form) Get(name string) string   { return f.values.Get(name) }
func (f Form) All(name string) []string { return f.values[name] }

// failedAction is an action whose request was refused, or the secret that its answer holds: the page shows it above its content.
type failedAction struct {
	action  *Action
	values  url.Values
	refused *Refusal
	answer  Doc
}

func (a *Action) check(p *Page) error {
	route := auth.Route{Method: http.MethodPost, Path: a.Path, Who: a.Who, Scopes: a.scopes}
	if a.Name == "" || a.Label == "" || !strings.HasPrefix(a.Path, Prefix) {
		return errors.Join(route.Check(), fmt.Errorf("the action %q of the page %s lacks its name, path or label", a.Name, p.Path))
	}
	return route.Check()
}

// maxForm bounds the form of an action, in bytes.
const maxForm = 256 << 10

// action serves an action of a page.
func (c *Console) action(p *Page, a *Action) func(w http.ResponseWriter, r *http.Request) error {
	route := &auth.Route{Method: http.MethodPost, Path: a.Path, Who: a.Who, Scopes: a.scopes}
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := c.visit(w, r, route)
		if err != nil {
			return err
		}
		if _, err := parseQuery(r.URL.RawQuery, nil); err != nil {
			return err
		}
		f, err := c.formOf(w, r, v.visitor, a)
		if err != nil {
			return err
		}
		if err = v.read(f.Get("at"), p.parameters()); err != nil {
			return err
		}
		if err := c.used(r, v.visitor); err != nil {
			return err
		}
		answer, err := v.act(a, f)
		if ours := (*problem.Problem)(nil); errors.As(err, &ours) { // of the console itself
			err = c.refusalOf(r, err)
		}
		if refused := (*Refusal)(nil); errors.As(err, &refused) {
			if refused.Code == "idempotency_key_reused" { // another reason, or other fields, from the same state of the page
				return c.seeOther(v, a, f, p, nil, "repeated")
			}
			return c.show(v, p, refused.Status, &failedAction{action: a, values: f.values, refused: refused})
		}
		if err != nil {
			return err
		}
		if a.Secret {
			return c.show(v, p, http.StatusOK, &failedAction{action: a, answer: answer})
		}
		return c.seeOther(v, a, f, p, answer, a.Name)
	}
}

// seeOther leads the browser to the page that shows the result, so that reload does not send the form again.
func (c *Console) seeOther(v *Visit, a *Action, f Form, p *Page, answer Doc, done string) error {
	target := &url.URL{Path: v.Expand(p.Path)}
	if a.Next != nil {
		target.Path, target.RawPath = a.Next(v, f, answer), ""
	}
	if t, err := url.Parse(target.Path); err == nil {
		target = t
	}
	query := v.Query
	if a.Next != nil {
		query = target.Query()
	}
	query.Set("done", done)
	target.RawQuery = query.Encode()
	http.Redirect(v.w, v.r, target.String(), http.StatusSeeOther)
	return nil
}

// Made leads to the page of the entity that an action made, whose id is a member of the answer. Without an answer it leads to the list of
// the entities.
func Made(list, id string) func(v *Visit, f Form, answer Doc) string {
	return func(_ *Visit, _ Form, answer Doc) string {
		if answer == nil {
			return list
		}
		return list + PathOf(Text(answer[id]))
	}
}

// formOf reads and checks the form of an action.
func (c *Console) formOf(w http.ResponseWriter, r *http.Request, v *visitor, a *Action) (Form, error) {
	if err := parseForm(w, r, maxForm); err != nil {
		return Form{}, err
	}
	if err := checkForm(r, v); err != nil {
		return Form{}, err
	}
	known := []string{"token", "reason", "state", "at"}
	for _, f := range a.inputs() {
		known = append(known, f.Name)
	}
	for name, values := range r.PostForm {
		several := slices.ContainsFunc(a.Fields, func(f Field) bool { return f.Name == name && f.Kind == "checkboxes" })
		switch {
		case !slices.Contains(known, name) && !slices.ContainsFunc(a.Fields, func(f Field) bool { return f.owns(name) }):
			return Form{}, problem.New("unknown_member", "The form has a field that the action does not have")
		case len(values) > 1 && !several:
			return Form{}, problem.New("body_invalid", "The form has the field "+name+" more than once")
		}
	}
	return Form{r.PostForm}, nil
}

// complete refuses a form with an empty field, or with a reason that nobody can read. The page shows the form again.
func (f Form) complete(a *Action) error {
	for _, in := range a.inputs() {
		if !in.Optional && !in.inRows(f) && strings.TrimSpace(f.Get(in.Name)) == "" {
			return problem.New("member_missing", "The field "+in.Label+" is empty").At("/" + in.Name)
		}
	}
	if err := checkReason(f.Get("reason")); err != nil {
		return err
	}
	return nil
}

// parseForm reads a form of at most so many bytes.
func parseForm(w http.ResponseWriter, r *http.Request, most int64) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/x-www-form-urlencoded" {
		return problem.New("media_type_unsupported", "Send the form as application/x-www-form-urlencoded")
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if err := r.ParseForm(); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return problem.New("body_too_large", fmt.Sprintf("A form may have at most %d KiB", most>>10))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return problem.New("request_timeout", "The form did not arrive in time. Send it again")
		}
		return problem.New("malformed_request", "The form is not name=value pairs joined by &, percent-encoded")
	}
	return nil
}

// checkReason refuses a reason that nobody can read in the log.
func checkReason(reason string) *problem.Problem {
	if fault := domain.CheckReason(reason); fault != nil {
		return problem.New(fault.Code, fault.Message).At(fault.Pointer)
	}
	if strings.ContainsRune(reason, unicode.ReplacementChar) {
		return problem.New("reason_invalid", "A reason is text in UTF-8").At("/reason")
	}
	return nil
}

// act sends the request of an action under its Idempotency-Key: a double click, a reload and a second window execute it once.
func (v *Visit) act(a *Action, f Form) (Doc, error) {
	if err := f.complete(a); err != nil {
		return nil, err
	}
	req, err := a.requestOf(v, f)
	if err != nil {
		return nil, err
	}
	if req.header == nil {
		req.header = http.Header{}
	}
	if reason := strings.TrimSpace(f.Get("reason")); !a.bare {
		if req.Body == nil {
			req.Body = map[string]any{}
		}
		req.Body["reason"] = reason
	} else {
		req.header.Set("Meterplex-Reason", url.PathEscape(reason))
	}
	if a.Matches {
		req.header.Set("If-Match", f.Get(EtagField))
	}
	if a.Creates {
		req.header.Set("If-None-Match", "*")
	}
	key, err := a.key(&req, f)
	if err != nil {
		return nil, err
	}
	req.header.Set("Idempotency-Key", key)
	defer v.c.names.forget()
	return v.Do(req)
}

// key returns the Idempotency-Key of an action: a hash of the action, its target, and the state of the target as displayed. The state
// differs after each execution. A target that is removed does not return, so that its state does not matter. PUT and PATCH have their
// values in the key: other values from the same state are another change, which the API compares with the state.
func (a *Action) key(req *Request, f Form) (string, error) {
	parts := []string{a.Name, req.Method, req.Path}
	if req.Method != http.MethodDelete || a.Matches {
		parts = append(parts, f.Get("state"))
	}
	if req.Method == http.MethodPut || req.Method == http.MethodPatch {
		body, err := compact(req.Body)
		if err != nil {
			return "", err
		}
		parts = append(parts, body)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return "console-" + hex.EncodeToString(sum[:]), nil
}

// Expand replaces the parameters of a pattern by those of the request.
func (v *Visit) Expand(pattern string) string {
	for name := range strings.SplitSeq(pattern, "{") {
		if name, _, found := strings.Cut(name, "}"); found {
			pattern = strings.ReplaceAll(pattern, "{"+name+"}", url.PathEscape(v.Param(name)))
		}
	}
	return pattern
}

// integer returns a field that is an integer of 64 bits, written in digits.
func (f Form) integer(name string) (int64, error) {
	n, err := strconv.ParseInt(f.Get(name), 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != f.Get(name) {
		return 0, problem.New("body_invalid", "The field "+name+" must be an integer, written in digits only")
	}
	return n, nil
}

// lines returns a field of several lines, without the carriage returns that browsers send.
func (f Form) lines(name string) string {
	return strings.TrimSpace(strings.ReplaceAll(f.Get(name), "\r\n", "\n"))
}

// Fresh leads to the address of the page with a new Idempotency-Key, unless it has one.
func (v *Visit) Fresh() (Doc, error) {
	if v.Query.Get("key") != "" {
		return Doc{}, nil
	}
	token := v.c.NewToken()
	query := Clone(v.Query)
	query.Set("key", hex.EncodeToString(token[:16]))
	return nil, &elsewhere{v.Expand(v.r.URL.EscapedPath()) + "?" + query.Encode()}
}

// elsewhere is the error of a page that has another address.
type elsewhere struct{ address string }

func (e *elsewhere) Error() string { return "see " + e.address }
