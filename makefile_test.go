package meterplex

import (
	"net"
	"os"
	"os/exec"
	"slices"
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
		make := exec.Command("make", "--no-print-directory", "vulnerabilities", "VULNERABILITIES=http://"+address)
		make.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKEFLAGS=") }) // of the make that runs the tests
		out, err := make.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "SKIPPED govulncheck: http://"+address) || time.Since(began) > 10*time.Second {
			t.Errorf("a database that %s: %v after %s\n%s", what, err, time.Since(began), out)
		}
	}
}

// TestEveryPackageRunsInOnePartOfTheTests: the rules, the write side and the bodies of requests under the race detector, the others without it.
func TestEveryPackageRunsInOnePartOfTheTests(t *testing.T) {
	out, err := exec.Command("make", "-n", "--no-print-directory", "test", "tests", "calm", "RACE=-race").CombinedOutput()
	if err != nil || !strings.Contains(string(out), " tests; tested=$?;") || !strings.Contains(string(out), " calm >") {
		t.Fatalf("make test does not run the parts: %v\n%s", err, out)
	}
	runs := map[string][]bool{} // by package: whether a part runs it under the race detector
	for line := range strings.Lines(string(out)) {
		flags, packages, found := strings.Cut(strings.TrimSpace(line), " -timeout 40m ")
		if !found || !strings.HasPrefix(strings.TrimPrefix(flags, "nice -n 5 "), "go test ") {
			continue
		}
		packages, raced := strings.CutPrefix(packages, "-race ")
		listed, err := exec.Command("sh", "-c", "go list "+packages).Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, pkg := range strings.Fields(string(listed)) {
			runs[pkg] = append(runs[pkg], raced)
		}
	}
	for _, pkg := range listPackages(t) {
		path := strings.TrimPrefix(pkg[0]+"/", module)
		raced := path == "http/body/"
		for _, folder := range []string{"domain/", "events/", "commands/", "infra/postgres/"} {
			raced = raced || strings.HasPrefix(path, folder)
		}
		if !slices.Equal(runs[pkg[0]], []bool{raced}) {
			t.Errorf("%s: the parts run it, under the race detector, %v; it has to be %v", pkg[0], runs[pkg[0]], raced)
		}
	}
}

// TestThePackagesUnderTheRaceDetectorNeedFewModules: the race detector doubles the time to compile. The packages that it watches, with
// their tests, need no client of Kafka or of Stripe and no HTTP API, which take longest.
func TestThePackagesUnderTheRaceDetectorNeedFewModules(t *testing.T) {
	out, err := exec.Command("sh", "-c", "go list -deps -test $(make -n --no-print-directory test-raced RACE=-race | sed -n 's/.* -race //p' | tail -n 1)").Output()
	if err != nil {
		t.Fatal(err)
	}
	raced := strings.Fields(string(out))
	if !slices.Contains(raced, module+"infra/local/localtest") {
		t.Fatalf("the packages under the race detector do not need localtest: %q", raced)
	}
	for _, pkg := range raced {
		if hasPrefix([]string{"github.com/twmb/franz-go", "github.com/IBM/sarama", "github.com/stripe/stripe-go/v84", "github.com/danielgtaylor/huma/v2"}, pkg) {
			t.Errorf("a package under the race detector, or its test, needs %s", pkg)
		}
	}
}
