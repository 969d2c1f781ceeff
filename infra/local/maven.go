package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// dependencyPlugin has a pinned version. Without it Maven would use the version of its own release or of
// the mirror.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

func findMaven() (string, error) {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("%w: install Maven 3.6 or later (Debian: apt install maven; macOS: brew install maven) so that mvn is in the PATH", ErrNoMaven)
	}
	return mvn, nil
}

// maven runs one goal of the dependency plugin in dir. It uses the user's settings and repository, or a
// repository in the cache if the home directory is not writable.
func maven(ctx context.Context, cacheDir, dir, goal string, args ...string) error {
	mvn, err := findMaven()
	if err != nil {
		return err
	}
	all := append([]string{"-q", "-B", dependencyPlugin + ":" + goal}, args...)
	home, err := os.UserHomeDir()
	if err != nil || !writable(home) {
		all = append(all, "-Dmaven.repo.local="+filepath.Join(cacheDir, "m2"))
	}
	_, err = runTool(ctx, self(), dir, os.Environ(), mvn, all...)
	return err
}

func fileSHA256(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
