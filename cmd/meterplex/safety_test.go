package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/infra/postgres"
)

func TestUnsafeWordsAreChecked(t *testing.T) {
	for v, want := range map[string]string{"": "", "fsync": "fsync", " fsync , superuser,": "fsync superuser"} {
		cfg, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_ALLOW_UNSAFE": v}), nil)
		if got := strings.Join(cfg.AllowUnsafe, " "); err != nil || got != want {
			t.Errorf("%q: %q, %v", v, got, err)
		}
	}
	for _, v := range []string{"all", "true", "fsync=off", "FSYNC", "*"} {
		_, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_ALLOW_UNSAFE": v}), nil)
		if err == nil || !strings.Contains(err.Error(), "fsync, full_page_writes, synchronous_commit") {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// What is refused is not told as allowed.
func TestOnlyWhatIsAllowedIsSaidToBe(t *testing.T) {
	var said bytes.Buffer
	sayAllowed([]postgres.Danger{{Name: "fsync"}, {Name: "grants"}}, []string{"fsync", "owner"}, slog.New(slog.NewTextHandler(&said, nil)))
	if s := said.String(); strings.Count(s, "unsafe, and allowed") != 1 || !strings.Contains(s, "what=fsync") {
		t.Errorf("%s", s)
	}
}
