// Package childtest holds assertions of the tests of local servers.
package childtest

import (
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/child"
)

// AwaitExit waits until a process has ended. The deadline only stops a broken product from hanging.
func AwaitExit(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if child.CommandLine(pid) == "" {
			return
		}
	}
	t.Fatalf("process %d still runs: %s", pid, child.CommandLine(pid))
}

// ErrorContains fails the test unless there is an error that has all words.
func ErrorContains(t *testing.T, err error, words ...string) {
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
