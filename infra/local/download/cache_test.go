package download

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCacheDir(t *testing.T) {
	home, tmp := t.TempDir(), t.TempDir()
	file := filepath.Join(home, "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct{ name, home, chosen, under string }{
		{"chosen", home, filepath.Join(home, "mine"), filepath.Join(home, "mine")},
		{"home", home, "", home},
		{"home unset", "", "", tmp},
		{"home not writable", file, "", tmp},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("HOME", c.home)
			t.Setenv("XDG_CACHE_HOME", "")
			t.Setenv("TMPDIR", tmp)
			t.Setenv("METERPLEX_CACHE_DIR", c.chosen)
			dir := CacheDir()
			if !strings.HasPrefix(dir, c.under) || dir != CacheDir() {
				t.Errorf("%s, want it under %s, twice", dir, c.under)
			}
			if c.chosen == "" && !folder.Writable(dir) {
				t.Errorf("%s is not writable", dir)
			}
		})
	}
}

// Another user could create the directory first and put programs into it.
func TestCacheDirWritableByOthersIsRefused(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("METERPLEX_CACHE_DIR", "")
	t.Setenv("TMPDIR", tmp)
	usual := CacheDir()
	must.OK(t, os.Chmod(usual, 0o777))
	if dir := CacheDir(); dir == usual || !folder.Writable(dir) {
		t.Errorf("CacheDir returned %s, which all users can write", dir)
	}
}
