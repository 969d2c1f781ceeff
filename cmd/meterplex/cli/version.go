package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/meterplex/meterplex/domain"
)

// VersionCmd shows the build.
type VersionCmd struct{}

// Run prints the build information of the binary.
func (VersionCmd) Run(p *program) error {
	v := struct {
		Version  string `json:"version"`
		Commit   string `json:"commit"`
		Modified bool   `json:"modified"`
		Go       string `json:"go"`
		Platform string `json:"platform"`
	}{domain.Version, "unknown", false, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	v.Commit, v.Modified = buildCommit(p.commit)
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the version: %w", err)
	}
	return p.Object(raw)
}

// buildCommit returns the revision that the binary was built from, and whether the
// files were modified. The linker's commit wins over the toolchain's.
func buildCommit(commit string) (revision string, modified bool) {
	revision = "unknown"
	info, ok := debug.ReadBuildInfo()
	for i := 0; ok && i < len(info.Settings); i++ {
		switch s := info.Settings[i]; s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if commit != "" {
		revision = commit
	}
	return revision, modified
}
