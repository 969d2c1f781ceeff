package main

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// ConfigCmd groups the config commands.
type ConfigCmd struct {
	Print ConfigPrint `cmd:"" help:"Show each setting, its value and where the value came from."`
}

// ConfigPrint shows the settings that serve and the client commands would use.
type ConfigPrint struct {
	ServiceFlags
}

// Help returns the long help text.
func (ConfigPrint) Help() string {
	return `A flag wins over the environment, the environment over the file, the file over the default. An empty variable counts as not given.

The file is named by --config or METERPLEX_CONFIG. It holds lines KEY=VALUE with the names that this command lists, and comments that begin with #. A name that is not known is an error.

Passwords and keys are masked. Exit code 2 where a value is not valid; each error names the source of the value.`
}

// Run prints the values even if one of them is invalid: that is when they are
// needed most.
func (c *ConfigPrint) Run(a *app) error {
	_, all, wrong := a.config(c.ServiceFlags)
	a.sayUnknown()
	out := a.rows("name", "value", "source")
	for _, r := range all {
		row, err := json.Marshal(map[string]string{"name": r.name, "value": r.shown(), "source": r.source})
		if err != nil {
			return err
		}
		if err := out.row(row); err != nil {
			return err
		}
	}
	if err := out.close(); err != nil {
		return err
	}
	return wrong
}

func (r *resolved) shown() string {
	if r.mask == nil || r.value == "" {
		return r.value
	}
	return r.mask(r.value)
}

const masked = "********"

func maskAll(string) string { return masked }

// maskURL hides the password in any part of a URL. It hides the whole value if it is
// not clearly a URL with a host, or has a password in an unexpected part.
func maskURL(v string) string {
	u, err := url.Parse(v)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Fragment != "" || strings.Contains(u.Path, "@") || saysPassword(u.User.Username()+u.Host+u.Path) {
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
