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

// action is a change that a page offers: one operation of the API. It has the operation's kind of key, scopes and members. A form asks for the reason.
type action struct {
	name   string // unique in the page
	path   string // of POST, a pattern below the page's
	label  string // of the button
	warn   string // what cannot be undone, shown above the button; "": it can
	does   string // the operation of the API, as "POST /api/v1/tenants"
	fields []field
	sets   map[string]any // members that each request has
	// adds, if set, adds the members that no field alone holds, or refuses the form.
	adds func(v *visit, f form, body map[string]any) error
	// next returns the address of the page that shows the result; nil: the page of the action. The answer is nil if the form was used before for another request.
	next func(v *visit, f form, answer doc) string
	// secret is set if the answer holds a secret: the page shows it once.
	secret bool
	// matches is set if the request requires the state that the page displays: its form holds the entity tag, for If-Match.
	matches bool
	// creates is set if the request makes an entity, and replaces none.
	creates bool

	// Of the operation. bare is set if its body has no member reason: the header Meterplex-Reason holds it.
	who    auth.Who // "": operator
	scopes []string
	bare   bool
}

// etagField is the field that holds the entity tag of the displayed state.
const etagField = "etag"

// inputs are the fields of the form beside those that every form has.
func (a *action) inputs() []field {
	if !a.matches {
		return a.fields
	}
	return append([]field{{name: etagField, label: "Displayed state", kind: "displayed"}}, a.fields...)
}

// field is an input of a form beside the reason. What it does not say follows from the member of the operation's body that has its name.
type field struct {
	name, label, hint string
	kind              string   // text, number, hidden, displayed (hidden, and never of an earlier display), select, checkbox, checkboxes, area
	options           []string // of select and checkboxes
	optional          bool
	is                string // the parameter of the operation's path, if it has another name
	holds             held
}

// form holds the values of a form that was sent.
type form struct{ values url.Values }

func (f form) get(name string) string   { return f.values.Get(name) }
func (f form) all(name string) []string { return f.values[name] }

// failedAction is an action whose request was refused, or the secret that its answer holds: the page shows it above its content.
type failedAction struct {
	action  *action
	values  url.Values
	refused *refusal
	answer  doc
}

func (a *action) check(p *page) error {
	route := auth.Route{Method: http.MethodPost, Path: a.path, Who: a.who, Scopes: a.scopes}
	if a.name == "" || a.label == "" || !strings.HasPrefix(a.path, Prefix) {
		return errors.Join(route.Check(), fmt.Errorf("the action %q of the page %s lacks its name, path or label", a.name, p.path))
	}
	return route.Check()
}

// maxForm bounds the form of an action, in bytes.
const maxForm = 256 << 10

// action serves an action of a page.
func (c *Console) action(p *page, a *action) func(w http.ResponseWriter, r *http.Request) error {
	route := &auth.Route{Method: http.MethodPost, Path: a.path, Who: a.who, Scopes: a.scopes}
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
		if err = v.read(f.get("at"), p.parameters()); err != nil {
			return err
		}
		if err := c.used(r, v.visitor); err != nil {
			return err
		}
		answer, err := v.act(a, f)
		if ours := (*problem.Problem)(nil); errors.As(err, &ours) { // of the console itself
			err = c.refusalOf(r, err)
		}
		if refused := (*refusal)(nil); errors.As(err, &refused) {
			if refused.Code == "idempotency_key_reused" { // another reason, or other fields, from the same state of the page
				return c.seeOther(v, a, f, p, nil, "repeated")
			}
			return c.show(v, p, refused.Status, &failedAction{action: a, values: f.values, refused: refused})
		}
		if err != nil {
			return err
		}
		if a.secret {
			return c.show(v, p, http.StatusOK, &failedAction{action: a, answer: answer})
		}
		return c.seeOther(v, a, f, p, answer, a.name)
	}
}

// seeOther leads the browser to the page that shows the result, so that reload does not send the form again.
func (c *Console) seeOther(v *visit, a *action, f form, p *page, answer doc, done string) error {
	target := &url.URL{Path: v.expand(p.path)}
	if a.next != nil {
		target.Path, target.RawPath = a.next(v, f, answer), ""
	}
	if t, err := url.Parse(target.Path); err == nil {
		target = t
	}
	query := v.query
	if a.next != nil {
		query = target.Query()
	}
	query.Set("done", done)
	target.RawQuery = query.Encode()
	http.Redirect(v.w, v.r, target.String(), http.StatusSeeOther)
	return nil
}

// made leads to the page of the entity that an action made, whose id is a member of the answer. Without an answer it leads to the list of the entities.
func made(list, id string) func(v *visit, f form, answer doc) string {
	return func(_ *visit, _ form, answer doc) string {
		if answer == nil {
			return list
		}
		return list + pathOf(text(answer[id]))
	}
}

// formOf reads and checks the form of an action.
func (c *Console) formOf(w http.ResponseWriter, r *http.Request, v *visitor, a *action) (form, error) {
	if err := parseForm(w, r, maxForm); err != nil {
		return form{}, err
	}
	if err := checkForm(r, v); err != nil {
		return form{}, err
	}
	known := []string{"token", "reason", "state", "at"}
	for _, f := range a.inputs() {
		known = append(known, f.name)
	}
	for name, values := range r.PostForm {
		several := slices.ContainsFunc(a.fields, func(f field) bool { return f.name == name && f.kind == "checkboxes" })
		switch {
		case !slices.Contains(known, name):
			return form{}, problem.New("unknown_member", "The form has a field that the action does not have")
		case len(values) > 1 && !several:
			return form{}, problem.New("body_invalid", "The form has the field "+name+" more than once")
		}
	}
	return form{r.PostForm}, nil
}

// complete refuses a form with an empty field, or with a reason that nobody can read. The page shows the form again.
func (f form) complete(a *action) error {
	for _, in := range a.inputs() {
		if !in.optional && strings.TrimSpace(f.get(in.name)) == "" {
			return problem.New("member_missing", "The field "+in.label+" is empty").At("/" + in.name)
		}
	}
	if err := checkReason(f.get("reason")); err != nil {
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
func (v *visit) act(a *action, f form) (doc, error) {
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
	if reason := strings.TrimSpace(f.get("reason")); !a.bare {
		if req.Body == nil {
			req.Body = map[string]any{}
		}
		req.Body["reason"] = reason
	} else {
		req.header.Set("Meterplex-Reason", url.PathEscape(reason))
	}
	if a.matches {
		req.header.Set("If-Match", f.get(etagField))
	}
	if a.creates {
		req.header.Set("If-None-Match", "*")
	}
	key, err := a.key(&req, f)
	if err != nil {
		return nil, err
	}
	req.header.Set("Idempotency-Key", key)
	return v.do(req)
}

// key returns the Idempotency-Key of an action: a hash of the action, its target, and the state of the target as displayed. The state differs after each
// execution. A target that is removed does not return, so that its state does not matter. PUT and PATCH have their values in the key: other values
// from the same state are another change, which the API compares with the state.
func (a *action) key(req *request, f form) (string, error) {
	parts := []string{a.name, req.Method, req.Path}
	if req.Method != http.MethodDelete || a.matches {
		parts = append(parts, f.get("state"))
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

// expand replaces the parameters of a pattern by those of the request.
func (v *visit) expand(pattern string) string {
	for name := range strings.SplitSeq(pattern, "{") {
		if name, _, found := strings.Cut(name, "}"); found {
			pattern = strings.ReplaceAll(pattern, "{"+name+"}", url.PathEscape(v.param(name)))
		}
	}
	return pattern
}

// integer returns a field that is an integer of 64 bits, written in digits.
func (f form) integer(name string) (int64, error) {
	n, err := strconv.ParseInt(f.get(name), 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != f.get(name) {
		return 0, problem.New("body_invalid", "The field "+name+" must be an integer, written in digits only")
	}
	return n, nil
}

// lines returns a field of several lines, without the carriage returns that browsers send.
func (f form) lines(name string) string {
	return strings.TrimSpace(strings.ReplaceAll(f.get(name), "\r\n", "\n"))
}

// fresh leads to the address of the page with a new Idempotency-Key, unless it has one.
func (v *visit) fresh() (doc, error) {
	if v.query.Get("key") != "" {
		return doc{}, nil
	}
	token := v.c.NewToken()
	query := clone(v.query)
	query.Set("key", hex.EncodeToString(token[:16]))
	return nil, &elsewhere{v.expand(v.r.URL.EscapedPath()) + "?" + query.Encode()}
}

// elsewhere is the error of a page that has another address.
type elsewhere struct{ address string }

func (e *elsewhere) Error() string { return "see " + e.address }
