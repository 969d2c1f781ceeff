package meterplex

import (
	"os"
	"regexp"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/internal/must"
)

// The program, the changelog, the chart, the image and the SDKs name one version.
func TestEachPartNamesTheSameRelease(t *testing.T) {
	for path, pattern := range map[string]string{
		"CHANGELOG.md":                       `(?m)^## (\S+)`,
		"deploy/helm/meterplex/Chart.yaml":   `(?m)^version: (\S+)\nappVersion: (\S+)$`,
		"deploy/compose.yaml":                `METERPLEX_IMAGE:-meterplex:([^}]+)}`,
		"deploy/Dockerfile":                  `-t meterplex:(\S+)`,
		"docs/how-to/deploy-with-compose.md": `-t meterplex:(\S+)`,
		"sdk/go/client.go":                   `(?m)^const Version = "(.+)"$`,
		"sdk/python/pyproject.toml":          `(?m)^version = "(.+)"$`,
		"sdk/python/src/meterplex/_http.py":  `(?m)^VERSION = "(.+)"$`,
		"sdk/typescript/package.json":        `(?m)^  "version": "(.+)",$`,
	} {
		text, err := os.ReadFile(path)
		must.OK(t, err)
		found := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
		if found == nil {
			t.Errorf("%s names no version", path)
			continue
		}
		for _, version := range found[1:] {
			if version != domain.Version {
				t.Errorf("%s names %s, the program %s", path, version, domain.Version)
			}
		}
	}
}
