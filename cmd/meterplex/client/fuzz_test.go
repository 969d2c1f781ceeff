package client

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// FuzzAnswers: for any response of a service or its proxy, the client's error text is
// printable and its wait is at most a day.
func FuzzAnswers(f *testing.F) {
	for _, body := range []string{`{"code":"unavailable","detail":"d","errors":[{"pointer":"/a","code":"c","detail":"d"}],"traceId":"t"}`,
		`{"code":"\u001b[31m"}`, `{}`, `<html>`, "", `{"code":1}`, `{"code":"x","status":200}`, "\xff"} {
		for _, after := range []string{"", "1", "-1", "86401", "1e3", "Thu, 01 Jan 2099 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT",
			"9223372036854775808", "\x00"} {
			f.Add(503, "application/problem+json", after, []byte(body))
		}
	}
	f.Add(200, "text/html", "", []byte(`x`))
	f.Fuzz(func(t *testing.T, status int, media, after string, body []byte) {
		p := ReadProblem(&http.Response{StatusCode: status, Header: http.Header{"Content-Type": {media}, "Retry-After": {after}}}, body)
		if p.Status != status || p.Code == "" || p.retryAfter < 0 || p.retryAfter > 24*time.Hour {
			t.Fatalf("%+v", p)
		}
		said := p.Error()
		if !utf8.ValidString(said) || strings.ContainsFunc(strings.ReplaceAll(said, "\n", ""), unicode.IsControl) ||
			strings.Contains(p.first(), "\n") {
			t.Fatalf("%q", said)
		}
		if wait := backoff(3, p); wait < p.retryAfter || wait > p.retryAfter+longestWait {
			t.Fatalf("waits %s, was asked to wait %s", wait, p.retryAfter)
		}
	})
}
