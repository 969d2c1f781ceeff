package config

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// FuzzSettings: a valid settings file sets each setting once, and config print shows
// no secret of it.
func FuzzSettings(f *testing.F) {
	const secret = "hunter2hunter2"
	for _, s := range []string{"", "# x\n\nMETERPLEX_URL=http://x:1\n", "METERPLEX_URL = 'http://x:1'", "METERPLEX_URL=a\nMETERPLEX_URL=b",
		"NOPE=1", "METERPLEX_KEY", "DATABASE_URL=\"", "KAFKA_BROKERS=a:1, b:2,,",
		"METERPLEX_ROLES=api,,relay", "METERPLEX_INGEST_AHEAD=1e9h", "METERPLEX_LOG_LEVEL=INFO+3", "\x00=\x00",
		"METERPLEX_REBUILD_CHUNK=0x10\r\n", "\uFEFFMETERPLEX_PIPE=kafka"} {
		f.Add(s)
	}
	for _, url := range []string{"postgres://u:" + secret + "@h/d", "postgres://h/d?password=" + secret, "u:" + secret + "@h/d?a=b",
		"postgres:u:" + secret + "@h/d=", "host=h password=" + secret, "h:1 password=" + secret,
		"postgres://h/d#password=" + secret, "postgres://h/d?PGPASSWORD=" + secret, "postgres://u:" + secret + "%zz@h/d=",
		"postgres://h/d?a=b;password=" + secret, "postgres://u:" + secret + "@h1:1,h2:2/d", "postgres://h/d?sslpassword=" + secret} {
		f.Add("DATABASE_URL=" + url)
	}
	password := regexp.MustCompile(`(?i)password=` + secret + `|^[a-z]*:?/*[^/?#@]*:` + secret + `@`)
	f.Fuzz(func(t *testing.T, text string) {
		file, err := parseFile("f", text)
		if err != nil {
			return
		}
		var again strings.Builder
		for name, g := range file {
			fmt.Fprintf(&again, "%s=\"%s\"\n", name, g.value)
		}
		second, err := parseFile("f", again.String())
		if err != nil || len(second) != len(file) {
			t.Fatalf("%q is read, and written %q: %v", text, again.String(), err)
		}
		for name, g := range file {
			if second[name].value != g.value {
				t.Fatalf("%s: %q, then %q", name, g.value, second[name].value)
			}
		}
		_, all, err := resolve(nil, func(string) (string, bool) { return "", false }, file, allSettings())
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Fatalf("the error tells the secret: %v", err)
		}
		for _, r := range all {
			shown := r.value
			if r.mask != nil && r.value != "" {
				shown = r.mask(r.value)
			}
			if r.mask != nil && strings.Contains(shown, secret) && strings.Count(r.value, secret) == 1 && password.MatchString(r.value) {
				t.Fatalf("%s is shown as %s", r.Name, shown)
			}
		}
	})
}
