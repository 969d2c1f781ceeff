package download

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// dependencyPlugin has a pinned version. Without it Maven would use the version of its own release or of
// the mirror.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

// ErrNoMaven means that Maven is needed for a download and was not found.
var ErrNoMaven = errors.New("no Maven")

// ErrChanged means that a downloaded file is missing, unexpected, or does not match the checksum pinned in
// this program.
var ErrChanged = errors.New("downloaded files do not match the pinned checksums")

// FindMaven returns the path of Maven's program, or ErrNoMaven.
func FindMaven() (string, error) {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("%w: install Maven 3.6 or later (Debian: apt install maven; macOS: brew install maven) so that mvn is "+
			"in the PATH", ErrNoMaven)
	}
	return mvn, nil
}

// Maven runs one goal of the dependency plugin in dir. It uses the user's settings and repository, or a
// repository in the cache if the home directory is not writable.
func Maven(ctx context.Context, cacheDir, dir, goal string, args ...string) error {
	mvn, err := FindMaven()
	if err != nil {
		return err
	}
	all := append([]string{"-q", "-B", dependencyPlugin + ":" + goal}, args...)
	home, err := os.UserHomeDir()
	if err != nil || !folder.Writable(home) {
		all = append(all, "-Dmaven.repo.local="+filepath.Join(cacheDir, "m2"))
	}
	_, err = child.Run(ctx, nil, dir, os.Environ(), mvn, all...)
	return err
}

// SHA256 returns the checksum of a file, in hexadecimal digits.
func SHA256(path string) (string, error) {
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
