package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/infra/local/folder"
)

// pointerFile is a file in a data directory whose database is elsewhere. Its first line is the path.
const pointerFile = "DATABASE-IS-ELSEWHERE.txt"

const pointerText = `%s

The database of this directory is in the folder named above: the database
server does not run as root, and its user cannot enter one of the parents of
this folder. Move or remove both together.
`

// clusterHome returns the directory of the database's files: dir itself if the server's user can reach
// it, else a fixed place outside of root's home.
func clusterHome(dir string, user account, log io.Writer) (string, error) {
	pointer := filepath.Join(dir, pointerFile)
	b, err := os.ReadFile(pointer)
	if err == nil {
		return followPointer(pointer, string(b))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the path of the database: %w", err)
	}
	if user.reaches(dir) || folder.Exists(filepath.Join(dir, "data")) {
		return dir, nil
	}
	sum := sha256.Sum256([]byte(dir))
	home, err := sharedPlace(user, "database-"+hex.EncodeToString(sum[:8]))
	if err != nil {
		return "", err
	}
	if err := folder.WriteFile(pointer, fmt.Appendf(nil, pointerText, home), 0o644); err != nil {
		return "", err
	}
	fmt.Fprintf(log, "The database server cannot run as root and its user cannot reach %s: the database is in %s (see %s there).\n", dir, home, pointerFile)
	return home, nil
}

// followPointer fails if the database is missing, instead of creating an empty one.
func followPointer(pointer, content string) (string, error) {
	home, _, _ := strings.Cut(content, "\n")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("%s does not begin with an absolute path", pointer)
	}
	if !folder.Exists(home) {
		return "", fmt.Errorf("the database in %s is gone; remove %s to start with an empty one", home, pointer)
	}
	return home, nil
}

// sharedPlace creates a directory owned by root that the account can enter.
func sharedPlace(user account, name string) (string, error) {
	var errs []error
	for _, base := range sharedBases() {
		if err := folder.Own(base); err != nil {
			errs = append(errs, err)
			continue
		}
		dir := filepath.Join(base, name)
		if err := errors.Join(os.Chmod(base, 0o755), os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			errs = append(errs, err)
			continue
		}
		if user.reaches(dir) {
			return dir, nil
		}
		errs = append(errs, fmt.Errorf("user %d cannot reach %s", user.uid, dir))
	}
	return "", fmt.Errorf("find a directory that the database server's user can reach: %w", errors.Join(errs...))
}

func sharedBases() []string {
	return []string{
		"/var/lib/meterplex",
		filepath.Join(os.TempDir(), "meterplex-"+strconv.Itoa(os.Geteuid())),
	}
}
