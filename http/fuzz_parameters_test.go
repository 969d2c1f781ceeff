package http

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/shape"
	"github.com/meterplex/meterplex/internal/must"
)

// anyTenant finds every tenant.
type anyTenant struct{ commands.CatalogueReader }

func (anyTenant) Tenant(_ context.Context, id uuid.UUID) (*domain.Tenant, error) {
	return &domain.Tenant{ID: id}, nil
}

// served returns all operations of the site, in a fixed order.
func served(t testing.TB) ([]*huma.Operation, huma.Registry, *service) {
	t.Helper()
	site, err := (&Server{Reader: anyTenant{}}).site((*site).operations)
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
	return all, site.api.OpenAPI().Components.Schemas, site.service
}

// FuzzQuery: an accepted query has only known parameters, each once and of its type, and
// holds no text that the database refuses.
func FuzzQuery(f *testing.F) {
	ops, _, _ := served(f)
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

// awkwardTimes are times at the edges of the valid range.
func awkwardTimes() []string {
	return []string{"", "2026-05-01T12:00:00Z", "2026-05-01T12:00:00.123456789+23:59", "2026-05-01t12:00:00z", "2026-05-01T12:00:00,5Z", "2026-05-01T23:59:60Z",
		"2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "0000-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-14:00", "10000-01-01T00:00:00Z",
		"1777636800", "2026-05-01 12:00:00Z", "2026-05-01T12:00:00", "2026-05-01T24:00:00Z", "1969-12-31T23:59:59.999999Z"}
}

// FuzzTimes: an accepted range is valid, exact to the microsecond, and can be formatted
// again.
func FuzzTimes(f *testing.F) {
	for i, from := range awkwardTimes() {
		f.Add(from, awkwardTimes()[len(awkwardTimes())-1-i], "17-4711", "wait=3")
		f.Add("", from, "", "")
	}
	f.Fuzz(func(t *testing.T, from, to, position, prefer string) {
		a, b, err := Between{from, to}.read()
		if err == nil {
			if (a == nil) != (from == "") || (b == nil) != (to == "") || a != nil && b != nil && b.Before(*a) {
				t.Fatalf("from %q to %q is %v to %v", from, to, a, b)
			}
			for _, at := range []*time.Time{a, b} {
				if at != nil {
					checkInstant(t, *at)
				}
			}
		}
		asOf, wait, err := KnownAt{AsOfPosition: position, AsOf: from}.read(Freshness{MinPosition: to, Prefer: prefer})
		if err != nil {
			return
		}
		if asOf != nil && (asOf.Position != nil) == (position == "") || wait.For < 0 || wait.For > maxWait {
			t.Fatalf("%q %q %q %q are %+v %+v", position, from, to, prefer, asOf, wait)
		}
		if asOf != nil && asOf.Position != nil && asOf.Position.String() != position || wait.MinPosition != nil && wait.MinPosition.String() != to {
			t.Fatalf("%q %q are %+v %+v", position, to, asOf, wait)
		}
	})
}

func checkInstant(t *testing.T, at time.Time) {
	t.Helper()
	text, err := json.Marshal(at)
	var again time.Time
	if err != nil || json.Unmarshal(text, &again) != nil || !again.Equal(at) || !at.Equal(at.Truncate(time.Microsecond)) || at.Location() != time.UTC {
		t.Fatalf("%v is written %s and read %v, %v", at, text, again, err)
	}
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

// FuzzDeadLetterFilter: an accepted filter is stored in the log and has the same meaning
// when it is read from there.
func FuzzDeadLetterFilter(f *testing.F) {
	_, _, s := served(f)
	ids := uuid.NewString()
	for i, at := range awkwardTimes() {
		f.Add(ids, ids, at, awkwardTimes()[len(awkwardTimes())-1-i], "feature_not_found")
	}
	f.Add("", "", "", "", "\x00")
	f.Add("{"+ids+"}", "urn:uuid:"+ids, "", "", "\xff")
	f.Fuzz(func(t *testing.T, tenant, id, from, to, text string) {
		in := bulkFilter{TenantID: tenant, IDs: []string{id}, From: from, To: to, Reason: text, Feature: text}
		filter, err := s.bulkFilter(t.Context(), &in)
		if err != nil || !utf8.ValidString(text) {
			return
		}
		body, err := json.Marshal(filter)
		var again events.DeadLetterFilter
		if err != nil || json.Unmarshal(body, &again) != nil {
			t.Fatalf("%+v is written %s, %v", filter, body, err)
		}
		if rewritten, err := json.Marshal(again); err != nil || string(rewritten) != string(body) || filter.Empty() {
			t.Fatalf("%s is read and written %s, %v", body, rewritten, err)
		}
		if tenant != "" && filter.TenantID.String() != strings.ToLower(tenant) || filter.IDs[0].String() != strings.ToLower(id) {
			t.Fatalf("%q %q became %+v", tenant, id, filter)
		}
	})
}
