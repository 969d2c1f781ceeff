package console

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSignIn_LeadsOnlyToPagesOfTheConsole: an address of another site would get the visitor.
func TestSignIn_LeadsOnlyToPagesOfTheConsole(t *testing.T) {
	for address, kept := range map[string]bool{
		"/console": true, "/console/tenants?externalId=a%20b": true, "/console/tenants/%C3%BC": true,
		"": false, "/": false, "/docs": false, "/consoles": false, "//evil.example/console": false, "https://evil.example/console": false,
		"/\\evil.example/console": false, "/console\\..\\..": false, "javascript:alert(1)": false, "/console/../docs": false, "/console/%2e%2e/docs": false, "/console//x": false,
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
	if got := f.post(signInPath, "", url.Values{"key": {key}, "next": {next}}); got.Code != http.StatusUnauthorized || !strings.Contains(html.UnescapeString(got.Body.String()), next) {
		t.Errorf("the longest form gives %d", got.Code)
	}
	if got := f.post(signInPath, "", url.Values{"key": {operatorKey}, "next": {strings.Repeat("a", maxSignIn)}}); got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a larger form gives %d", got.Code)
	}

	slow, send := make([]*io.PipeWriter, 64), sync.WaitGroup{}
	for n := range slow {
		var body *io.PipeReader
		body, slow[n] = io.Pipe()
		send.Go(func() {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, signInPath, body)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			f.serve(w, r)
		})
		_, _ = slow[n].Write([]byte("key=")) // it is read
	}
	if got := f.post(signInPath, "", url.Values{"key": {operatorKey}}); got.Code != http.StatusServiceUnavailable || !strings.Contains(got.Body.String(), "<code>overloaded</code>") {
		t.Errorf("form 65 gives %d:\n%s", got.Code, got.Body)
	}
	for _, body := range slow {
		_ = body.Close()
	}
	send.Wait()
	if n := f.signing.Load(); n != 0 {
		t.Errorf("%d forms are left", n)
	}
	f.now = func() time.Time { return time.Now().Add(attemptTime) }
	if got := f.post(signInPath, "", url.Values{"key": {operatorKey}}); got.Code != http.StatusSeeOther {
		t.Errorf("after them, the right key gives %d", got.Code)
	}
}

// TestSignIn_AFormThatDoesNotArriveEnds in time: it holds a place of others.
func TestSignIn_AFormThatDoesNotArriveEnds(t *testing.T) {
	f := newFixture(t)
	silent := f.dial(t)
	_, _ = fmt.Fprintf(silent, "POST %s HTTP/1.1\r\nHost: console\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nkey=", signInPath)
	_ = silent.SetReadDeadline(time.Now().Add(time.Minute))
	answer, err := http.ReadResponse(bufio.NewReader(silent), nil)
	if err != nil || answer.StatusCode != http.StatusRequestTimeout {
		t.Fatalf("%+v, %v", answer, err)
	}
	_ = answer.Body.Close()
}

// TestAttempts_AreBoundedByNameAndTogether: attempts that succeed are not counted, those at the same time are.
func TestAttempts_AreBoundedByNameAndTogether(t *testing.T) {
	a, now := &attempts{ofOne: 3, ofAll: 5}, time.Now()
	try := func(name string, at time.Time, want bool) {
		t.Helper()
		if got := a.begin(name, at); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for range 10 {
		try("right", now, true)
		a.succeed("right")
	}
	for range 3 {
		try("one", now, true)
	}
	try("one", now, false)
	try("two", now, true)
	try("two", now, true)
	try("three", now, false) // all together
	try("three", now.Add(attemptTime-1), false)
	try("one", now.Add(attemptTime), true)
	a.succeed("unknown")
	try("one", now.Add(-time.Hour), true) // the clock was set back
}

// TestRemoteOf: a host of IPv6 may choose the last 64 bits.
func TestRemoteOf(t *testing.T) {
	for from, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "[::ffff:10.0.0.1]:80": "::ffff:10.0.0.1", "@": "@", "": "",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if r.RemoteAddr = from; remoteOf(r) != want {
			t.Errorf("%s: %s", from, remoteOf(r))
		}
	}
}

// TestIsLoopback decides whether a browser drops the cookie on http.
func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "localhost:8080": true, "127.0.0.1:80": true, "[::1]:80": true, "::1": true, "10.0.0.1:80": false, "localhost.example": false, "": false} {
		if isLoopback(host) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
}
