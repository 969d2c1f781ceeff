package console

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// TestSignIn_LeadsOnlyToPagesOfTheConsole: an address of another site would get the visitor.
func TestSignIn_LeadsOnlyToPagesOfTheConsole(t *testing.T) {
	for address, kept := range map[string]bool{
		"/console": true, "/console/tenants?externalId=a%20b": true, "/console/tenants/%C3%BC": true,
		"": false, "/": false, "/docs": false, "/consoles": false, "//evil.example/console": false, "https://evil.example/console": false,
		"/\\evil.example/console": false, "/console\\..\\..": false, "javascript:alert(1)": false, "/console/../docs": false,
		"/console/%2e%2e/docs": false, "/console//x": false,
		"/console\r\nSet-Cookie: a=b": false, "/console/sign-in": false, "/console/search?q=mp_op_0123456789abcdef0123456789abcdef": false,
		"http:/console": false, "%": false,
	} {
		if got := localPath(address); (got == address) != kept && address != "" || !kept && got != "" {
			t.Errorf("%q leads to %q", address, got)
		}
	}
}

// TestP9_SignInReadsAFewSmallForms: clients without a key send them. The form holds the longest key, with the longest address behind it.
func TestP9_SignInReadsAFewSmallForms(t *testing.T) {
	f := newFixture(t)
	next := Prefix + "/events?subject=" + strings.Repeat("a", maxNext-len(url.QueryEscape(Prefix+"/events?subject=")))
	if longest := localPath(next); longest != next || localPath(next+"a") != "" {
		t.Errorf("the longest address is %d bytes", len(longest))
	}
	key := operatorKey + strings.Repeat("x", 4<<10-len(operatorKey))
	if got := f.post(signInPath, "", url.Values{"key": {key}, "next": {next}}); got.Code != http.StatusUnauthorized ||
		!strings.Contains(html.UnescapeString(got.Body.String()), next) {
		t.Errorf("the longest form gives %d", got.Code)
	}
	if got := f.post(signInPath, "", url.Values{"key": {operatorKey},
		"next": {strings.Repeat("a", maxSignIn)}}); got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a larger form gives %d", got.Code)
	}
}

// Forms that do not arrive, and wrong keys, however many and from however many addresses, keep no right key out.
func TestP9_ARightKeyAlwaysSignsIn(t *testing.T) {
	for _, hostile := range []int{1, 4, 8} {
		f := newFixture(t)
		server := httptest.NewServer(http.HandlerFunc(f.serve))
		dial := func(host int) net.Conn {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(host))}}
			conn, err := dialer.Dial("tcp", server.Listener.Addr().String())
			must.OK(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		begin := func(host int) net.Conn {
			conn := dial(host)
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: console\r\nContent-Type: "+
				"application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\nkey=",
				signInPath, len("key=")+len(operatorKey))
			return conn
		}
		slow := begin(1) // of a right key
		f.awaitReading(1)
		for n := range 2 * maxReading {
			begin(2 + n%hostile)
		}
		wrong := 0
		for range 250 {
			if got := f.post(signInPath, "", url.Values{"key": {"wrong"}}); got.Code == http.StatusTooManyRequests {
				wrong++
			}
		}
		if wrong != 240 {
			t.Errorf("%d of 250 wrong keys of one address are refused for now, want all but 10", wrong)
		}
		if got := f.post(signInPath, "", url.Values{"key": {operatorKey}}); got.Code != http.StatusSeeOther {
			t.Errorf("beside %d hostile addresses, the right key of one of them gives %d", hostile, got.Code)
		}
		_, _ = io.WriteString(slow, operatorKey)
		answer, err := http.ReadResponse(bufio.NewReader(slow), nil)
		if err != nil || answer.StatusCode != http.StatusSeeOther {
			t.Errorf("beside %d hostile addresses, a slow form with the right key gives %+v, %v", hostile, answer, err)
		}
		server.CloseClientConnections()
		server.Close()
		if n := f.reads(); n > 0 {
			t.Errorf("%d forms are left", n)
		}
	}
}

// reads returns the number of forms that are being read.
func (f *fixture) reads() int { return int(f.reading.Load()) }

func (f *fixture) awaitReading(n int) {
	for f.reads() != n {
		time.Sleep(time.Millisecond)
	}
}

// TestSignIn_AFormThatDoesNotArriveEnds in time: it holds a slot of others.
func TestSignIn_AFormThatDoesNotArriveEnds(t *testing.T) {
	f := newFixture(t)
	silent := f.dial(t)
	_, _ = fmt.Fprintf(silent, "POST %s HTTP/1.1\r\nHost: console\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: "+
		"100\r\n\r\nkey=", signInPath)
	_ = silent.SetReadDeadline(time.Now().Add(time.Minute))
	answer, err := http.ReadResponse(bufio.NewReader(silent), nil)
	if err != nil || answer.StatusCode != http.StatusRequestTimeout {
		t.Fatalf("%+v, %v", answer, err)
	}
	_ = answer.Body.Close()
}

// TestAttempts_AreBoundedByName, of however many names.
func TestAttempts_AreBoundedByName(t *testing.T) {
	a, now := &attempts{most: 3}, time.Now()
	try := func(name string, at time.Time, want bool) {
		t.Helper()
		full := a.full(name, at)
		if got := a.begin(name, at); got != want || full == want {
			t.Errorf("%s: %v, full: %v", name, got, full)
		}
	}
	for range 3 {
		try("one", now, true)
	}
	try("one", now, false)
	try("two", now, true)
	try("one", now.Add(attemptTime-1), false)
	try("one", now.Add(attemptTime), true)
	try("one", now.Add(-time.Hour), true) // the clock was set back
	for n := range maxNames {
		a.begin(fmt.Sprint(n), now)
	}
	if len(a.of) > maxNames {
		t.Errorf("%d names are counted", len(a.of))
	}
}

// TestIsLoopback decides whether a browser drops the cookie on http.
func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "localhost:8080": true, "127.0.0.1:80": true, "[::1]:80": true, "::1": true,
		"10.0.0.1:80": false, "localhost.example": false, "": false} {
		if isLoopback(host) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
}
