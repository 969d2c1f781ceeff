package http

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/shape"
	"github.com/meterplex/meterplex/internal/must"
)

// served returns all operations of the site, in a fixed order.
func served(t testing.TB) ([]*huma.Operation, huma.Registry) {
	t.Helper()
	site, err := api.Build(new(api.Dependencies), operations)
	must.OK(t, err)
	var all []*huma.Operation
	for _, item := range site.API.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				all = append(all, op)
			}
		}
	}
	slices.SortFunc(all, func(a, b *huma.Operation) int { return strings.Compare(a.OperationID, b.OperationID) })
	return all, site.API.OpenAPI().Components.Schemas
}

// FuzzQuery: an accepted query has only known parameters, each once and of its type, and
// holds no text that the database refuses.
func FuzzQuery(f *testing.F) {
	ops, _ := served(f)
	for i := range ops {
		for _, q := range []string{"", "limit=1", "limit=01", "limit=1001", "limit=9223372036854775808", "limit=-0", "limit=%31",
			"limit=1&limit=1", "groupBy=a&groupBy=b", "groupBy=a&groupBy=a", "groupBy=a&groupBy=b&groupBy=c", "Limit=1", "cursor=%00",
			"feature=%ff",
			"feature=%E2%80%AE", "from=2026-05-01T00:00:00Z", "a=b;c=d", "%zz=1", "status=FAILED", "dryRun=TRUE", "tenantId=", "=", "&&&",
			"feature=" + strings.Repeat("a", 2049)} {
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
				if err != nil || schema.Minimum != nil && float64(number) < *schema.Minimum ||
					schema.Maximum != nil && float64(number) > *schema.Maximum {
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
	l := api.List{"dead letters", "tenant", ""}
	for _, after := range []string{"17-4711", "", "\x00", "\xff", "é", "\u2028<>&", `"\`, strings.Repeat("x", 3000)} {
		for _, generation := range []int{0, 1, -1, 1 << 40} {
			f.Add(*l.Next(generation, after), generation, after)
		}
	}
	for _, text := range []string{"e30", "bnVsbA", "IiI", "W10", "=", "e30=", "eyJ2IjoxLCJhIjoiIiwicyI6IiJ9", "eyJ2IjoxfXt9"} {
		f.Add(text, 0, "")
	}
	f.Fuzz(func(t *testing.T, text string, generation int, after string) {
		if g, a, err := l.Open(text); err == nil && text != "" && *l.Next(g, a) != text {
			t.Fatalf("%q is read as %d %q, which is written %q", text, g, a, *l.Next(g, a))
		}
		written := *l.Next(generation, after)
		g, a, err := l.Open(written)
		storable := utf8.ValidString(after) && !strings.ContainsRune(after, 0)
		if storable && (err != nil || g != generation || a != after) || !storable && err == nil {
			t.Fatalf("%d %q is written %s and read %d %q, %v", generation, after, written, g, a, err)
		}
		if _, _, err := append(l[:2:2], "other").Open(written); err == nil {
			t.Fatalf("%s is accepted by another list", written)
		}
	})
}
