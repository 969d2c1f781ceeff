package check

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// The Compose file is valid, keeps secrets out of itself, and publishes its ports on this machine only.
func TestTheComposeFile(t *testing.T) {
	file := "../compose.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{"POSTGRES_PASSWORD", "METERPLEX_OWNER_PASSWORD", "METERPLEX_PASSWORD", "METERPLEX_BOOTSTRAP_OPERATOR_KEY"}
	without := func(left string) types.Mapping {
		env := types.Mapping{}
		for _, name := range secrets {
			if name != left {
				env[name] = "canary"
			}
		}
		return env
	}
	load := func(env types.Mapping) (*types.Project, error) {
		return loader.LoadWithContext(t.Context(),
			types.ConfigDetails{WorkingDir: "..", ConfigFiles: []types.ConfigFile{{Filename: file, Content: text}}, Environment: env})
	}
	project, err := load(without(""))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range secrets {
		if _, err := load(without(name)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	service := project.Services["meterplex"]
	if !service.ReadOnly || !slices.Equal(service.CapDrop, []string{"ALL"}) || service.StopGracePeriod == nil ||
		service.StopGracePeriod.String() != "30s" {
		t.Errorf("the service %+v", service)
	}
	for name, s := range project.Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes the port %s on %q", name, port.Published, port.HostIP)
			}
		}
		if strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":") {
			t.Errorf("%s runs %s: pin the image", name, s.Image)
		}
	}
	example, err := os.ReadFile("../compose.env.example")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\$\{([A-Z_]+)`).FindAllSubmatch(text, -1) {
		if n := string(name[1]); n != "METERPLEX_IMAGE" && !strings.Contains(string(example), "\n"+n+"=") {
			t.Errorf("compose.env.example lacks %s", n)
		}
	}
}

// systemd accepts the unit, and rates its exposure as low.
func TestTheSystemdUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	text, err := os.ReadFile("../systemd/meterplex.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "meterplex") // systemd checks that it can be executed
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(dir, "meterplex.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/meterplex", binary)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput(); err != nil ||
		strings.Contains(string(out), "meterplex.service:") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", unit).
		CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The image is built from the sources alone, by the Go version of go.mod, and runs as a user without rights.
func TestTheDockerfile(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	for _, want := range []string{"ARG GO_VERSION=" + string(version[1]) + ".", "CGO_ENABLED=0", "USER 65532:65532",
		"FROM gcr.io/distroless/static-debian12:nonroot"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile lacks %q", want)
		}
	}
	ignored, err := os.ReadFile("../Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(ignored)) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "!"); is {
			kept = append(kept, name)
		}
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,EmbedFiles", "./cmd/meterplex")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p struct {
			ImportPath, Dir string
			EmbedFiles      []string
		}
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(p.ImportPath, "github.com/meterplex/meterplex/") {
			continue
		}
		found++
		at, err := filepath.Rel(root, p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if top, _, _ := strings.Cut(filepath.ToSlash(at), "/"); !slices.Contains(kept, top) {
			t.Errorf("the image is built without %s", at)
		}
		for _, file := range p.EmbedFiles {
			if strings.Contains(path.Join(at, file), "testdata") {
				t.Errorf("the image is built without %s of %s", file, at)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d packages", found)
	}
}
