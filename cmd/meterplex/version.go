package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// VersionCmd shows the build.
type VersionCmd struct{}

// Run prints what the Go toolchain recorded in the binary.
func (VersionCmd) Run(a *app) error {
	v := struct {
		Version  string `json:"version"`
		Commit   string `json:"commit"`
		Modified bool   `json:"modified"`
		Go       string `json:"go"`
		Platform string `json:"platform"`
	}{Version: "(devel)", Commit: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Version = info.Main.Version
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the version: %w", err)
	}
	return a.object(raw)
}
