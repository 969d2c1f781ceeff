package localkafka

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// awaitExit waits until a process has ended. The deadline only stops a broken product from hanging.
func awaitExit(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if child.CommandLine(pid) == "" {
			return
		}
	}
	t.Fatalf("process %d still runs: %s", pid, child.CommandLine(pid))
}

func errorContains(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not mention %q", err, w)
		}
	}
}

func pidText(pid int) string { return fmt.Sprintf("process %d ", pid) }
