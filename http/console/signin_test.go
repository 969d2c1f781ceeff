package console

import (
	"net/http/httptest"
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
