package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestMalformedRequestsAreRefused sends requests that no client library would send.
func TestMalformedRequestsAreRefused(t *testing.T) {
	w, a := newServiceWithAccount(t)
	before := w.stored()
	body, _ := json.Marshal(batch(event("lie", nil)))
	head := "POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + a.key + "\r\n"
	for name, c := range map[string][2]string{
		"two keys":            {head + "Authorization: Bearer " + a.key + "\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 401"},
		"two media types":     {head + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 415"},
		"longer than it is":   {head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body)+10, body), "HTTP/1.1 400"},
		"chunks cut off":      {head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body), "HTTP/1.1 400"},
		"length and chunks":   {head + "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501"},
		"announced too large": {head + "Content-Length: 99999999999\r\n\r\n", "HTTP/1.1 413"},
		"huge header":         {head + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "HTTP/1.1 431"},
		"header with a NUL":   {head + "X-Request-Id: a\x00b\r\n\r\n", "HTTP/1.1 400"},
		"a fold":              {head + "X-Request-Id: a\r\n b\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 400"},
		"chunked twice":       {head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 501"},
		"a huge path":         {"GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 431"},
		"CONNECT":             {"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 40"},
		"asterisk":            {"GET * HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 40"},
		"elsewhere's path":    {"GET http://elsewhere/api/v1/tenants HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 401"},
		"not HTTP":            {"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "HTTP/1.1 400"},
	} {
		got := w.raw("%s", c[0])
		if !strings.HasPrefix(got, c[1]) {
			t.Errorf("%s: %.200q instead of %s", name, got, c[1])
		}
		if len(got) > 4096+1024 { // including the header
			t.Errorf("%s: %d bytes are answered", name, len(got))
		}
		for _, word := range leaks {
			if strings.Contains(got, word) {
				t.Errorf("%s: the answer holds %q", name, word)
			}
		}
	}
	w.same("events that were stored", w.stored(), before)
}
