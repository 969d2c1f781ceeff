package http_test

import (
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"
)

// TestAllowNamesEveryMethodInOneLine: many clients read the first line of a header alone.
func TestAllowNamesEveryMethodInOneLine(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{
		"/api/v1/usage/events": "GET, HEAD, POST", "/api/v1/tenants/x": "GET, HEAD, PATCH", "/api/v1/plans/x": "GET, HEAD, PUT",
		"/api/v1/tenants/x/api-keys/y": "DELETE", "/api/v1/entitlements/check": "POST", "/livez": "GET, HEAD",
	} {
		got := w.do(call{method: "TRACE", path: path})
		w.refused(got, 405, "method_not_allowed")
		if allow := got.header.Values("Allow"); len(allow) != 1 || allow[0] != want {
			t.Errorf("%s: Allow is %q instead of %q", path, allow, want)
		}
	}
	for _, asked := range []string{"OPTIONS * HTTP/1.1", "GET /api/v1/usage HTTP/1.1", "POST /api/v1/entitlements/api_calls/consume HTTP/1.1", "GET /console HTTP/1.1"} {
		got := w.raw("%s\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", asked)
		if !strings.HasPrefix(got, "HTTP/1.1 404") || !strings.Contains(got, "X-Request-Id: ") || !strings.Contains(got, `"code":"not_found"`) {
			t.Errorf("%s: %s", asked, got)
		}
	}
}

// TestBodiesThatAreTooLargeAreToldSo to a client that sends all of its body before it
// reads: a connection that is closed meanwhile would lose it the answer.
func TestBodiesThatAreTooLargeAreToldSo(t *testing.T) {
	w := newWorld(t)
	w.catalogue()
	a := w.party("A")
	for _, size := range []int{5 << 20, 12 << 20} {
		got, err := w.sendAll(fmt.Sprintf("POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", a.key, size), size)
		if err != nil || !strings.HasPrefix(got, "HTTP/1.1 413 "+nethttp.StatusText(413)) {
			t.Errorf("%d bytes: %v %.200s", size, err, got)
		}
	}
}

// sendAll sends a head and as many bytes as it announces, all of them before it reads.
func (w *world) sendAll(head string, size int) (string, error) {
	w.Helper()
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(time.Minute)))
	if _, err := io.WriteString(conn, head+strings.Repeat("x", size)); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}
