package meterplex

import (
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestVulnerabilitiesAreSkippedOffline: with a word and without a failure, within 10 s, if the database cannot be reached and
// if it does not answer.
func TestVulnerabilitiesAreSkippedOffline(t *testing.T) {
	for _, program := range []string{"make", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for what, address := range map[string]string{"refuses": "127.0.0.1:1", "is silent": silent.Addr().String()} {
		began := time.Now()
		out, err := exec.Command("make", "--no-print-directory", "vulnerabilities", "VULNERABILITIES=http://"+address).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "SKIPPED govulncheck: http://"+address) || time.Since(began) > 10*time.Second {
			t.Errorf("a database that %s: %v after %s\n%s", what, err, time.Since(began), out)
		}
	}
}
