package config

import (
	"net/url"
	"slices"
	"strings"
)

// Shown returns the value without its secrets.
func (r *Resolved) Shown() string {
	if r.mask == nil || r.value == "" {
		return r.value
	}
	return r.mask(r.value)
}

const masked = "********"

func maskAll(string) string { return masked }

// MaskURL hides the password in any part of a URL. It hides the whole value if it is
// not clearly a URL with a host, or has a password in an unexpected part.
func MaskURL(v string) string {
	u, err := url.Parse(v)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Fragment != "" || strings.Contains(u.Path, "@") ||
		saysPassword(u.User.Username()+u.Host+u.Path) {
		return masked
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), masked)
	}
	q := u.Query()
	for name, values := range q {
		if saysPassword(name) || slices.ContainsFunc(values, saysPassword) {
			q.Set(name, masked)
		}
	}
	u.RawQuery = q.Encode()
	return strings.ReplaceAll(u.String(), url.QueryEscape(masked), masked)
}

func saysPassword(s string) bool { return strings.Contains(strings.ToLower(s), "password") }
