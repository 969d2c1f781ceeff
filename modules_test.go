package meterplex

import (
	"os"
	"regexp"
	"testing"
)

var requirement = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)

// TestTheModulesShareVersions: the modules of the checks in deploy need the versions that the service has, so that a package is compiled once for all of them.
func TestTheModulesShareVersions(t *testing.T) {
	ours := requirements(t, "go.mod")
	for _, file := range []string{"deploy/check/go.mod", "deploy/observe/tools/go.mod"} {
		shared := 0
		for module, version := range requirements(t, file) {
			switch {
			case ours[module] == version:
				shared++
			case ours[module] != "":
				t.Errorf("%s needs %s %s, go.mod %s", file, module, version, ours[module])
			}
		}
		if shared == 0 {
			t.Errorf("%s shares no module with go.mod", file)
		}
	}
}

func requirements(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, m := range requirement.FindAllStringSubmatch(string(text), -1) {
		versions[m[1]] = m[2]
	}
	return versions
}
