package http

import (
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/shape"
	"github.com/meterplex/meterplex/internal/must"
)

// served returns all operations of the site, in a fixed order.
func served(t testing.TB) ([]*huma.Operation, huma.Registry) {
	t.Helper()
	site, err := new(Server).site((*site).operations)
	must.OK(t, err)
	var all []*huma.Operation
	for _, item := range site.api.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				all = append(all, op)
			}
		}
	}
	slices.SortFunc(all, func(a, b *huma.Operation) int { return strings.Compare(a.OperationID, b.OperationID) })
	return all, site.api.OpenAPI().Components.Schemas
}

// FuzzQuery: an accepted query has only known parameters, each once and of its type, and
// holds no text that the database refuses.
func FuzzQuery(f *testing.F) {
	ops, _ := served(f)
	for i := range ops {
		for _, q := range []string{"", "limit=1", "limit=01", "limit=1001", "limit=9223372036854775808", "limit=-0", "limit=%31", "limit=1&limit=1", "groupBy=a&groupBy=b", "groupBy=a&groupBy=a", "groupBy=a&groupBy=b&groupBy=c", "Limit=1", "cursor=%00", "feature=%ff",
			"feature=%E2%80%AE", "from=2026-05-01T00:00:00Z", "a=b;c=d", "%zz=1", "status=FAILED", "dryRun=TRUE", "tenantId=", "=", "&&&", "feature=" + strings.Repeat("a", 2049)} {
			f.Add(uint8(i), q)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, raw string) {
		op := ops[int(n)%len(ops)]
		rules, known := shape.NewQuery(op), map[string]*huma.Schema{}
		for _, p := range op.Parameters {
			if p.In == "query" {
				known[p.Name] = p.Schema
			}
		}
		if rules.Check(raw) != nil {
			return
		}
		values, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatalf("%q is accepted, and: %v", raw, err)
		}
		for name, list := range values {
			schema := known[name]
			if schema != nil && schema.Type == huma.TypeArray && len(list) <= *schema.MaxItems {
				schema, list = schema.Items, list[:1]
			}
			if schema == nil || len(list) != 1 || list[0] == "" || !utf8.ValidString(list[0]) || strings.ContainsRune(list[0], 0) {
				t.Fatalf("%s takes %s=%q", op.OperationID, name, list)
			}
			if schema.Type == huma.TypeInteger {
				number, err := strconv.ParseInt(list[0], 10, 64)
				if err != nil || schema.Minimum != nil && float64(number) < *schema.Minimum || schema.Maximum != nil && float64(number) > *schema.Maximum {
					t.Fatalf("%s takes %s=%q, %v", op.OperationID, name, list, err)
				}
			}
		}
		if p := rules.Check(values.Encode()); p != nil {
			t.Fatalf("%q is accepted, and refused once written again: %s", raw, p.Detail)
		}
	})
}

// FuzzCursor: an accepted cursor is one that the same list wrote.
func FuzzCursor(f *testing.F) {
	l := list{"dead letters", "tenant", ""}
	for _, after := range []string{"17-4711", "", "\x00", "\xff", "é", "\u2028<>&", `"\`, strings.Repeat("x", 3000)} {
		for _, generation := range []int{0, 1, -1, 1 << 40} {
			f.Add(*l.next(generation, after), generation, after)
		}
	}
	for _, text := range []string{"e30", "bnVsbA", "IiI", "W10", "=", "e30=", "eyJ2IjoxLCJhIjoiIiwicyI6IiJ9", "eyJ2IjoxfXt9"} {
		f.Add(text, 0, "")
	}
	f.Fuzz(func(t *testing.T, text string, generation int, after string) {
		if g, a, err := l.open(text); err == nil && text != "" && *l.next(g, a) != text {
			t.Fatalf("%q is read as %d %q, which is written %q", text, g, a, *l.next(g, a))
		}
		written := *l.next(generation, after)
		g, a, err := l.open(written)
		storable := utf8.ValidString(after) && !strings.ContainsRune(after, 0)
		if storable && (err != nil || g != generation || a != after) || !storable && err == nil {
			t.Fatalf("%d %q is written %s and read %d %q, %v", generation, after, written, g, a, err)
		}
		if _, _, err := append(l[:2:2], "other").open(written); err == nil {
			t.Fatalf("%s is accepted by another list", written)
		}
	})
}

// FuzzConditions covers Prefer, If-None-Match and the answers to them.
func FuzzConditions(f *testing.F) {
	tag := entityTag([]byte("says"))
	for _, header := range []string{"", "wait=10", "WAIT=1, wait=2", "wait=\"3\";x=y", "wait=-1", "wait=1e3", "wait=99999999999999999999", "respond-async, wait = 7", "*", tag, tag[2:], `"a", ` + tag, tag + "x", "W/", ",,,", "\x00", "\xff"} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		wait := preferredWait(header)
		fresh := Freshness{MinPosition: "1-1", Prefer: header}
		if wait < 0 || wait > maxWait || wait%time.Second != 0 || preferredWait(fresh.applied()) != wait || wait > 0 && !strings.Contains(strings.ToLower(header), "wait") {
			t.Fatalf("%q waits %s and is applied as %q", header, wait, fresh.applied())
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["If-None-Match"] = []string{header}
		named := strings.Contains(header, tag[2:]) || strings.Contains(header, "*")
		if same := unchanged(r, tag); same && !named || !same && (strings.TrimSpace(header) == tag || strings.TrimSpace(header) == "*") {
			t.Fatalf("%q matches %s: %v", header, tag, same)
		}
	})
}

// FuzzIdempotencyKey: the hash of a request does not depend on its body's member order
// and whitespace, and differs for another request.
func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{"a", "", " ", "é", "a\nb", strings.Repeat("k", 255), strings.Repeat("k", 256), "\x7f", "~"} {
		f.Add(key, "/api/v1/tenants", []byte(`{"b":1.50,"a":"\u00e9"}`))
	}
	f.Add("k", "/%2e%2e", []byte(``))
	f.Add("k", "/x", []byte(`{"a":1e400}`))
	f.Add("k", "/x", []byte(`[`))
	f.Fuzz(func(t *testing.T, key, path string, body []byte) {
		hash := func(path string, body []byte) (commands.Idempotency, error) {
			r := httptest.NewRequest("POST", "/", nil)
			r.URL.Path = path
			r.Header["Idempotency-Key"] = []string{key}
			return once(edge.WithExchange(t.Context(), &edge.Exchange{From: r, Body: body}))
		}
		first, err := hash(path, body)
		if err != nil {
			return
		}
		if first.Key != key || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q is the key %q", key, first.Key)
		}
		if again, err := hash(path, slices.Concat([]byte(" \n"), body, []byte("\t"))); err == nil && len(body) > 0 && again != first {
			t.Fatalf("%q: spaces make another request of it", body)
		}
		if other, err := hash(path+"x", body); err != nil || other == first {
			t.Fatalf("%q and %q are one request, %v", path, path+"x", err)
		}
	})
}
