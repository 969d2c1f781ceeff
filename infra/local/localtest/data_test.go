package localtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// The data of a killed test binary are removed by the next one, those of a running or a starting one are not.
func TestAbandonedDataAreRemoved(t *testing.T) {
	parent := t.TempDir()
	made := func(name string, age time.Duration) string {
		dir := filepath.Join(parent, "meterplex-test-"+name)
		at := time.Now().Add(-age)
		must.OK(t, os.Mkdir(dir, 0o755))
		must.OK(t, os.Chtimes(dir, at, at))
		return dir
	}
	abandoned, running, starting := made("abandoned", time.Hour), made("running", time.Hour), made("starting", 0)
	lock := tryLock(running)
	if lock == nil {
		t.Fatal("a directory that nobody uses cannot be locked")
	}
	defer lock.Close()
	sweep(parent)
	for dir, want := range map[string]bool{abandoned: false, running: true, starting: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", dir, err == nil, want)
		}
	}
}
