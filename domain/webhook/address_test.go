package webhook

import (
	"net/netip"
	"testing"
)

func TestPrivateAddressesAreRefused(t *testing.T) {
	var rules Addresses
	for _, text := range []string{
		"127.0.0.1", "127.255.255.254", "168.63.129.16", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
		"100.64.0.1", "100.127.255.255", "0.0.0.0", "0.1.2.3",
		"192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.9", "224.0.0.1",
		"239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::1", "::", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
		"::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1",
		"2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "100::1", "5f00::1",
	} {
		if rules.Permits(netip.MustParseAddr(text), false) {
			t.Errorf("%s is permitted", text)
		}
	}
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1111",
		"2a00:1450:4001::1", "::ffff:8.8.8.8"} {
		if !rules.Permits(netip.MustParseAddr(text), false) || rules.Permits(netip.MustParseAddr(text), true) {
			t.Errorf("%s: only https is permitted", text)
		}
	}
	if rules.Permits(netip.Addr{}, false) {
		t.Error("no address is permitted")
	}
	allowing := Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")}}
	for text, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "fd00:1::9": true,
		"fd00:2::9": false, "fd00:1::9%eth0": true} {
		if allowing.Permits(netip.MustParseAddr(text), true) != want || allowing.Permits(netip.MustParseAddr(text), false) != want {
			t.Errorf("%s: permitted is not %v", text, want)
		}
	}
}

func TestURLsOfWebhooks(t *testing.T) {
	var rules Addresses
	for _, text := range []string{
		"", "x", "example.com", "//example.com", "https:", "https://", "https:///x", "https:example.com", "ftp://example.com",
		"http://example.com", "javascript:alert(1)", "file:///etc/passwd",
		"https://user@example.com", "https://user:password@example.com", "https://@example.com", "https://example.com#x",
		"https://example.com/#", "https://example.com:0", "https://example.com:",
		"https://example.com:65536", "https://exa mple.com", "https://example.com/\x00", "https://example.com/\n", "https://bücher.example",
		"https://127.0.0.1", "https://127.0.0.1.", "https://[::1]", "https://[::ffff:10.0.0.1]", "https://[fe80::1%25eth0]",
		"https://10.0.0.1:8443/x", "https://localhost", "https://localhost.", "https://x.localhost",
		"https://2130706433", "https://0x7f000001", "https://0x7f.1", "https://0177.0.0.1", "https://127.1", "https://127.0.0.1.2",
		"https://1", "https://0", "https://0x", "https://example.com.0x1",
	} {
		if refusal := rules.CheckURL(text); refusal == nil || refusal.Code != "url_invalid" || refusal.Pointer != "/url" ||
			refusal.Message == "" {
			t.Errorf("%q: %v", text, refusal)
		}
	}
	for _, text := range []string{"https://example.com", "https://example.com:8443/hooks?x=y", "https://1.1.1.1/x",
		"https://[2606:4700::1111]/x", "https://xn--bcher-kva.example", "https://4.example.com"} {
		if refusal := rules.CheckURL(text); refusal != nil {
			t.Errorf("%q: %v", text, refusal)
		}
	}
	allowing := Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for _, text := range []string{"http://10.1.2.3/x", "https://10.1.2.3", "http://internal.example"} {
		if allowing.Of(false).CheckURL(text) == nil {
			t.Errorf("%q of a tenant is permitted", text)
		}
	}
	for text, want := range map[string]bool{"http://10.1.2.3/x": true, "https://10.1.2.3": true, "http://10.2.0.1": false,
		"http://1.1.1.1": false, "https://1.1.1.1": true, "http://internal.example": true, "http://localhost": false} {
		if (allowing.CheckURL(text) == nil) != want {
			t.Errorf("%q: permitted is not %v", text, want)
		}
	}
}
