package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pointerFile is left in a data directory whose database lies elsewhere; its
// first line is the place.
const pointerFile = "DATABASE-IS-ELSEWHERE.txt"

const pointerText = `%s

The database of this directory lies in the folder named above: the database
server does not run as root, and the user it runs as cannot pass through one of
the folders on the way here. Move or remove both together.
`

// clusterHome returns the directory in which the database's files lie: dir
// itself where the server's user reaches it, else a stable place outside of
// root's home.
func clusterHome(dir string, who account, log io.Writer) (string, error) {
	pointer := filepath.Join(dir, pointerFile)
	b, err := os.ReadFile(pointer)
	if err == nil {
		return followPointer(pointer, string(b))
	}
	if !missing(err) {
		return "", fmt.Errorf("read where the database lies: %w", err)
	}
	if who.reaches(dir) || exists(filepath.Join(dir, "data")) {
		return dir, nil
	}
	sum := sha256.Sum256([]byte(dir))
	home, err := sharedPlace(who, "database-"+hex.EncodeToString(sum[:8]))
	if err != nil {
		return "", err
	}
	if err := writeFile(pointer, fmt.Appendf(nil, pointerText, home), 0o644); err != nil {
		return "", err
	}
	note(log, "The database server cannot run as root and its user cannot reach %s: the database is kept in %s (said in %s there).", dir, home, pointerFile)
	return home, nil
}

// followPointer never begins an empty database in place of one that was lost.
func followPointer(pointer, content string) (string, error) {
	home, _, _ := strings.Cut(content, "\n")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("%s does not begin with an absolute path", pointer)
	}
	if !exists(home) {
		return "", fmt.Errorf("the database was kept in %s and is gone; remove %s to begin with an empty one", home, pointer)
	}
	return home, nil
}

// sharedPlace makes a directory of root's that the account can pass through.
func sharedPlace(who account, name string) (string, error) {
	var errs []error
	for _, base := range sharedBases() {
		if err := ownDir(base); err != nil {
			errs = append(errs, err)
			continue
		}
		dir := filepath.Join(base, name)
		if err := errors.Join(os.Chmod(base, 0o755), os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			errs = append(errs, err)
			continue
		}
		if who.reaches(dir) {
			return dir, nil
		}
		errs = append(errs, fmt.Errorf("user %d cannot reach %s", who.uid, dir))
	}
	return "", fmt.Errorf("find a place that the database server's user reaches: %w", errors.Join(errs...))
}

func sharedBases() []string {
	return []string{
		"/var/lib/meterplex",
		filepath.Join(os.TempDir(), "meterplex-"+strconv.Itoa(os.Geteuid())),
	}
}
