package api

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/edge"
)

// FuzzConditions covers Prefer, If-None-Match and the answers to them.
func FuzzConditions(f *testing.F) {
	tag := EntityTag([]byte("says"))
	for _, header := range []string{"", "wait=10", "WAIT=1, wait=2", "wait=\"3\";x=y", "wait=-1", "wait=1e3", "wait=99999999999999999999",
		"respond-async, wait = 7", "*", tag, tag[2:], `"a", ` + tag, tag + "x", "W/", ",,,", "\x00", "\xff"} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		wait := PreferredWait(header)
		fresh := Freshness{MinPosition: "1-1", Prefer: header}
		if wait < 0 || wait > maxWait || wait%time.Second != 0 || PreferredWait(fresh.Applied()) != wait ||
			wait > 0 && !strings.Contains(strings.ToLower(header), "wait") {
			t.Fatalf("%q waits %s and is applied as %q", header, wait, fresh.Applied())
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["If-None-Match"] = []string{header}
		named := strings.Contains(header, tag[2:]) || strings.Contains(header, "*")
		if same := Unchanged(r, tag); same && !named || !same && (strings.TrimSpace(header) == tag || strings.TrimSpace(header) == "*") {
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
			req, err := Once(edge.WithExchange(t.Context(), &edge.Exchange{From: r, Body: body}))
			return req.Idempotency, err
		}
		first, err := hash(path, body)
		if err != nil {
			return
		}
		if first.Key != key || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, func(r rune) bool {
			return r < ' ' || r > '~'
		}) {
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
