package console

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

//go:embed templates
var templateFiles embed.FS

// templates holds the layout, the shared templates, and each page's by the name of its file. They are one set: html/template
// copies a set for each clone, and copies for 60 pages took 20 MiB. A file of templates/shared may have the name of a page: it
// only defines templates.
type templates struct{ set *template.Template }

// page writes a page: its template between the two of the layout.
func (t *templates) page(w io.Writer, name string, data *view) error {
	for _, part := range []string{"begin", name, "end"} {
		if err := t.set.ExecuteTemplate(w, part, data); err != nil {
			return err
		}
	}
	return nil
}

// parseTemplates fails if a page's file is missing or wrong.
func parseTemplates(pages []*Page) (*templates, error) {
	set, err := template.New("").Funcs(functions(pages)).ParseFS(templateFiles, "templates/*.html", "templates/shared/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse the templates: %w", err)
	}
	for _, p := range pages {
		if set.Lookup(p.Template) == nil || p.Live != nil && set.Lookup(p.Live.Template) == nil {
			return nil, fmt.Errorf("the page %s has no template %s, or its live part has none", p.Path, p.Template)
		}
	}
	return &templates{set}, nil
}

// view is the data of a template. Data holds the answers of the API as the page's load arranges them.
type view struct {
	c       *Console
	r       *http.Request
	v       *Visit
	Visitor *visitor // nil on the page to sign in
	Page    *Page
	Title   string
	Data    Doc
	Problem *Refusal
	failed  *failedAction
	names   TenantNames
	plans   map[string]string // of the tenant's subscriptions, by their ids
	open    bool              // the page of a link, which has no visitor
}

// write renders a page before the first byte is sent, so that an error becomes a page of its own.
func (c *Console) write(w http.ResponseWriter, r *http.Request, status int, name string, data *view) {
	var b bytes.Buffer
	if err := c.templates.page(&b, name, data); err != nil {
		c.Logger.ErrorContext(r.Context(), "a page of the console cannot be rendered", "path", logged(r), "trace", data.Trace(), "error",
			err)
		p := problem.New("internal", "The page cannot be rendered; quote the trace id to have it found").For(data.Trace(), r.URL)
		b.Reset()
		if name, status = "problem.html", p.Status; c.templates.page(&b, name,
			&view{c: c, r: r, Title: p.Title, Problem: &Refusal{Problem: *p}}) != nil {
			b.Reset()
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a browser that is gone does not need it
}

// functions are those that templates call. Each returns text, which html/template escapes by its place.
func functions(pages []*Page) template.FuncMap {
	return template.FuncMap{
		"time":   timeOf,
		"path":   func(segments ...any) string { return Prefix + PathOf(Texts(segments)...) },
		"query":  Query,
		"join":   func(list any) string { return strings.Join(Texts(Items(list)), ", ") },
		"json":   Indented,
		"dict":   dict,
		"short":  short,
		"lower":  func(v any) string { return strings.ToLower(strings.ReplaceAll(Text(v), "_", " ")) },
		"text":   Text,
		"words":  strings.Fields,
		"begins": func(v any, with string) bool { return strings.HasPrefix(Text(v), with) },
		"brief":  func(v any) (string, error) { return brief(v, 140) },
		"asset":  assetPath,
		"list":   func(values ...any) []any { return values },
		"figure": figure,
		"count":  count,
		"money":  money,
		"span":   span,
		"whole":  whole,
		"plain":  plain,
		"tone":   tone,
		"label":  func(name any) string { return labelOf(Text(name)) },
		"event":  func(t any) string { return strings.ReplaceAll(strings.TrimPrefix(Text(t), "meterplex."), ".", " ") },
		"part":   part,
		"page":   pageFor(pages),
		"api":    func(segments ...any) string { return API(Texts(segments)...) },
	}
}

// Text returns a value of an answer as text: numbers with the digits that the API wrote, "" for an absent value.
func Text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return fmt.Sprint(v)
}

var decimal = regexp.MustCompile(`^([-+]?)([0-9]+)(\.[0-9]+)?$`)

// count returns a number with separators of thousands: all digits of it. Other texts stay as they are.
func count(v any) string {
	text := Text(v)
	parts := decimal.FindStringSubmatch(text)
	if parts == nil {
		return text
	}
	digits := parts[2]
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return parts[1] + digits + parts[3]
}

// money returns an amount of micro-units as an exact decimal of the currency's unit.
func money(microUnits any) string {
	n, isNumber := new(big.Int).SetString(Text(microUnits), 10)
	if !isNumber {
		return Text(microUnits)
	}
	return count(domain.DecimalOfMicroUnits(n))
}

// whole returns a rate, rounded.
func whole(rate any) string {
	n, err := strconv.ParseFloat(Text(rate), 64)
	if err != nil {
		return Text(rate)
	}
	return count(fmt.Sprintf("%.0f", n))
}

// span returns a number of seconds in the two largest units of time, below a minute to the hundredth.
func span(seconds any) string {
	n, err := strconv.ParseFloat(Text(seconds), 64)
	if err != nil {
		return Text(seconds)
	}
	if n < 60 {
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", n), "0"), ".") + " s"
	}
	whole := int64(n)
	for _, unit := range []struct {
		of, in       int64
		name, inName string
	}{{86400, 3600, "d", "h"}, {3600, 60, "h", "min"}, {60, 1, "min", "s"}} {
		if whole >= unit.of {
			return fmt.Sprintf("%d %s %d %s", whole/unit.of, unit.name, whole%unit.of/unit.in, unit.inName)
		}
	}
	return ""
}

// plain returns a kind of the API in the words of the documentation.
func plain(kind any) string {
	return strings.NewReplacer("_", " ", "identity", "balance check", "saga", "background process", "push", "Stripe delivery", "generation",
		"rebuild").Replace(Text(kind))
}

// tones are the colours of states; others have no colour.
var tones = map[string]string{
	"ACTIVE": "good", "RUNNING": "good", "ENABLED": "good", "DELIVERED": "good", "COMPLETED": "good", "PROMOTED": "good",
	"APPROVED": "good", "RESOLVED": "good", "AGGREGATED": "good", "VALIDATED": "good", "COMMITTED": "good",
	"PENDING": "warn", "RETRYING": "warn", "UNKNOWN": "warn", "SUSPENDED": "warn", "PARTIAL": "warn", "CLOSING": "warn", "READY": "warn",
	"FAILED": "bad", "LOST": "bad", "DRIFT": "bad", "REJECTED": "bad", "DEAD_LETTERED": "bad", "DISABLED": "bad",
}

func tone(state any) string { return tones[strings.ReplaceAll(strings.ToUpper(Text(state)), " ", "_")] }

// usedPart is the used part of a limit, as a meter shows it: good below Low, warning up to High, and bad above it.
type usedPart struct {
	Low, High, Max, Percent string
	Over                    bool
}

// part returns the used part of a limit: a warning from 80 % of it, and bad above 100 %.
func part(used, limit any) *usedPart {
	u, isUsed := new(big.Int).SetString(Text(used), 10)
	l, isLimit := new(big.Int).SetString(Text(limit), 10)
	if !isUsed || !isLimit {
		return nil
	}
	times := func(n *big.Int, by int64) *big.Int { return new(big.Int).Mul(n, big.NewInt(by)) }
	low := new(big.Int).Sub(times(l, 8), big.NewInt(1)) // in tenths, rounded down: the last amount that is below 80 %
	p := &usedPart{Low: low.Div(low, big.NewInt(10)).String(), High: l.String(), Max: l.String(), Over: u.Cmp(l) > 0}
	if p.Over {
		p.Max = u.String()
	}
	if l.Sign() > 0 {
		p.Percent = count(new(big.Int).Div(times(u, 100), l).String()) + " %"
	}
	return p
}

func Texts(values []any) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = Text(v)
	}
	return all
}

func Items(list any) []any {
	switch l := list.(type) {
	case []any:
		return l
	case []string:
		all := make([]any, len(l))
		for i, s := range l {
			all[i] = s
		}
		return all
	}
	return nil
}

// timeOf returns a time of the API in UTC, to the second: the element's datetime has all digits.
func timeOf(v any) string {
	at, err := time.Parse(time.RFC3339Nano, Text(v))
	if err != nil {
		return Text(v)
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}

// Query returns an address with parameters: pairs of name and value. Empty values are left out.
func Query(address string, pairs ...any) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := Text(pairs[i+1]); value != "" {
			values.Set(Text(pairs[i]), value)
		}
	}
	if len(values) == 0 {
		return address
	}
	return address + "?" + values.Encode()
}

func Indented(v any) (string, error) { return encoded(v, "  ") }

func compact(v any) (string, error) { return encoded(v, "") }

func encoded(v any, indent string) (string, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", indent)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// dict returns the pairs of name and value as an object, for the data of a shared template.
func dict(pairs ...any) Doc {
	d := Doc{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d[Text(pairs[i])] = pairs[i+1]
	}
	return d
}

// Alone reports whether the page is a form to sign in, or a problem of a visitor who is not known.
func (d *view) Alone() bool { return d.Visitor == nil && !d.open }

// Trace is the trace id of the page's request.
func (d *view) Trace() string { return edge.ExchangeOf(d.r.Context()).TraceID() }

// Version is the service's.
func (d *view) Version() string { return d.c.Version }

// groups are those of the navigation, in its order.
var groups = []string{"Customers", "Usage", "Billing", "Catalogue", "Operations"}

// Menu lists the groups of the pages that the visitor may open from everywhere.
func (d *view) Menu() (menu []menuGroup) {
	for _, name := range groups {
		group := menuGroup{Name: name}
		for _, p := range d.c.pages {
			if p.Menu != "" && p.Group == name && d.c.opens(d.Visitor, p.Path) != nil {
				entry := menuEntry{p.Menu, p.Path, d.Page != nil && strings.HasPrefix(d.Page.Path+"/", p.Path+"/")}
				group.Pages, group.Current = append(group.Pages, entry), group.Current || entry.Current
			}
		}
		if group.Pages != nil {
			menu = append(menu, group)
		}
	}
	return menu
}

type menuGroup struct {
	Name    string
	Current bool
	Pages   []menuEntry
}

// menuEntry is a link of the navigation.
type menuEntry struct {
	Name, Path string
	Current    bool
}

// Primary is the link to the page's one primary action; nil if it is absent, or the visitor may not use it. Filters that both pages have
// go with it.
func (d *view) Primary() *menuEntry {
	if d.Page == nil || d.Page.New == "" {
		return nil
	}
	p := d.c.opens(d.Visitor, d.Page.New)
	if p == nil {
		return nil
	}
	return &menuEntry{Name: p.Title, Path: d.v.Expand(strings.TrimSuffix(d.Over(p.Path), "?"))}
}

// Account is the holder of the key in short.
func (d *view) Account() string {
	if d.Visitor.Tenant != nil {
		return d.Visitor.Tenant.Name
	}
	return "Operator"
}

// Holder says whose key is signed in.
func (d *view) Holder() string {
	if d.Visitor.Tenant != nil {
		return "Tenant " + d.Visitor.Tenant.Name
	}
	return "Operator: " + strings.Join(d.Visitor.caller.Scopes, ", ")
}

// IsOperator reports whether an operator's key is signed in.
func (d *view) IsOperator() bool { return d.Visitor != nil && d.Visitor.Tenant == nil }

// Query returns a parameter of the page.
func (d *view) Query(name string) string { return d.v.Query.Get(name) }

// Param returns a parameter of the page's path.
func (d *view) Param(name string) string { return d.v.Param(name) }

// Tenant is the id of the page's tenant.
func (d *view) Tenant() string { return d.v.TenantID() }

// Live is the address of the page's live part.
func (d *view) Live() string {
	return d.v.Expand(d.Page.Path) + liveSuffix + "?" + d.v.Pick(d.Page.Live.Params...).Encode()
}

// Positions are those at which the page is true.
func (d *view) Positions() []string {
	if d.v == nil {
		return nil
	}
	return d.v.positions
}

// Token is the token of the forms.
func (d *view) Token() string { return d.Visitor.formToken() }

// Next is the address of the next page of a list; "" on the last.
func (d *view) Next(cursor any) string {
	if Text(cursor) == "" {
		return ""
	}
	return d.With("cursor", cursor)
}

// With is the address of this page with other parameters, from its first list entry.
func (d *view) With(pairs ...any) string {
	values := Clone(d.v.Query)
	values.Del("done")
	values.Del("cursor")
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Del(Text(pairs[i]))
		if value := Text(pairs[i+1]); value != "" {
			values.Set(Text(pairs[i]), value)
		}
	}
	if len(values) == 0 {
		return d.r.URL.EscapedPath()
	}
	return d.r.URL.EscapedPath() + "?" + values.Encode()
}

// route is a row of the route table.
type route = auth.Route

func routeOf(p *Page) *route {
	return &route{Method: http.MethodGet, Path: p.Path, Who: p.Who, Scopes: p.Scopes}
}

// Opens reports whether there is a page with this pattern as its path that the visitor may open.
func (d *view) Opens(path string) bool {
	return d.Visitor != nil && d.c.opens(d.Visitor, Prefix+path) != nil
}

// opens returns the page with a pattern as its path; nil if it is absent, or if the visitor may not open it.
func (c *Console) opens(v *visitor, path string) *Page {
	for _, p := range c.pages {
		if p.Path == path && v.allowed(routeOf(p)) == nil {
			return p
		}
	}
	return nil
}

// Searches reports whether the visitor may use the search box.
func (d *view) Searches() bool { return d.Visitor != nil && d.c.opens(d.Visitor, searchPath) != nil }

// Searched is the text of the search box.
func (d *view) Searched() string {
	if d.v == nil {
		return ""
	}
	return d.v.Query.Get("q")
}

// SearchTenant is the tenant of the page, for an operator who searches from it: an eventId belongs to one tenant.
func (d *view) SearchTenant() string {
	if d.v == nil || !d.IsOperator() {
		return ""
	}
	if _, err := uuid.Parse(d.Tenant()); err != nil {
		return ""
	}
	return d.Tenant()
}
