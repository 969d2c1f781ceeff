package webhook

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
)

// maxWebhookURL bounds the bytes of a webhook's URL.
const maxWebhookURL = 2048

// Addresses decides which addresses webhooks may be sent to.
type Addresses struct {
	// Allowed lists networks that the URLs of operators may lead to although they are private. Only they may be reached over http.
	Allowed []netip.Prefix
}

// Of returns the addresses of the URLs that operators set, or of those that tenants set: a tenant reaches no private network.
func (a Addresses) Of(operators bool) *Addresses {
	if !operators {
		a.Allowed = nil
	}
	return &a
}

// privateNetworks lists the IPv4 networks that are not of the public internet, and the IPv6 networks inside 2000::/3 that are not.
func privateNetworks() []netip.Prefix {
	var list []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.0.2.0/24", "192.88.99.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", // protocols and Teredo, documentation, 6to4, documentation
	} {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// globalIPv6 holds the IPv6 addresses of the public internet. Loopback, ULA, link-local, multicast, NAT64 and IPv4 in IPv6 are outside.
var globalIPv6 = netip.MustParsePrefix("2000::/3")

// privateRanges is read only.
var privateRanges = privateNetworks()

// Permits reports whether webhooks may be sent to an address; plain: over http.
func (a *Addresses) Permits(addr netip.Addr, plain bool) bool {
	addr = addr.Unmap().WithZone("")
	for _, network := range a.Allowed {
		if network.Contains(addr) {
			return true
		}
	}
	if plain || !addr.IsValid() || addr.Is6() && !globalIPv6.Contains(addr) {
		return false
	}
	for _, network := range privateRanges {
		if network.Contains(addr) {
			return false
		}
	}
	return true
}

// CheckURL refuses a URL that no webhook can have. A name passes: the sender checks each address that it dials.
func (a *Addresses) CheckURL(text string) *domain.Error {
	invalid := func(why string) *domain.Error {
		return &domain.Error{Code: "url_invalid", Message: why, Pointer: "/url"}
	}
	if len(text) > maxWebhookURL {
		return invalid("A URL has at most " + strconv.Itoa(maxWebhookURL) + " bytes")
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Opaque != "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid("Invalid URL " + strictjson.Quote([]byte(text)) + ": expected https://host/path in ASCII")
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return invalid("A webhook needs an https URL")
	case u.User != nil:
		return invalid("A URL with a user name or password is not allowed; the signature of each request proves its sender")
	case u.Fragment != "" || strings.HasSuffix(text, "#"):
		return invalid("A URL with a fragment is not allowed")
	case !isPort(u.Port()) || strings.HasSuffix(u.Host, ":"):
		return invalid("The port of the URL is invalid")
	case u.Scheme == "http" && len(a.Allowed) == 0:
		return invalid("A webhook needs an https URL; http is only possible with an operator's key, to networks in METERPLEX_WEBHOOK_ALLOW")
	}
	host := strings.TrimSuffix(u.Hostname(), ".")
	addr, err := netip.ParseAddr(host)
	if err == nil {
		if !a.Permits(addr, u.Scheme == "http") {
			return invalid("The address " + addr.String() +
				" is private or not allowed; METERPLEX_WEBHOOK_ALLOW lists the private networks that an operator's webhook may reach")
		}
		return nil
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return invalid("The host localhost is not allowed")
	}
	if endsInNumber(host) {
		return invalid("Write an IPv4 address as four decimal numbers")
	}
	return nil
}

func isPort(text string) bool {
	if text == "" {
		return true
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// endsInNumber reports whether the last label of a host is a number, in any base: resolvers read such hosts as IPv4 addresses, e.g.
// 2130706433 or
// 0177.1.
func endsInNumber(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == "" {
		return true
	}
	if rest, hex := strings.CutPrefix(strings.ToLower(last), "0x"); hex {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
