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

// TestTheRaceDetectorRunsInTheUsualTest: over the rules, the write side and the bodies of requests, which do not run a second time without it.
func TestTheRaceDetectorRunsInTheUsualTest(t *testing.T) {
	out, err := exec.Command("make", "-n", "--no-print-directory", "test", "RACE=-race").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if raced := " -race -vet=off -ldflags=-w -p 2 -timeout 40m ./domain/... ./events/... ./commands/... ./infra/postgres/... ./http/body;"; !strings.Contains(string(out), raced) {
		t.Errorf("make test does not run%s\n%s", raced, out)
	}
	_, filter, _ := strings.Cut(string(out), "list ./... | ")
	filter, _, _ = strings.Cut(filter, ")'")
	listed, err := exec.Command("sh", "-c", "go list ./... | "+filter+")'").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range listPackages(t) {
		path := strings.TrimPrefix(pkg[0]+"/", module)
		raced := path == "http/body/"
		for _, folder := range []string{"domain/", "events/", "commands/", "infra/postgres/"} {
			raced = raced || strings.HasPrefix(path, folder)
		}
		if again := strings.Contains("\n"+string(listed), "\n"+pkg[0]+"\n"); again == raced {
			t.Errorf("%s: under the race detector %v, without it %v", pkg[0], raced, again)
		}
	}
}
