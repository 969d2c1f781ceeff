package account

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/infra/local/folder"
)

// A Server is a server whose files may be outside of its data directory.
type Server struct {
	Name string // in texts, and in names of files
	// Folder names the folder of its files outside of the data directory.
	Folder string
}

// Pointer is the name of the file in a data directory whose server's files are elsewhere. Its first line is the path.
func (s Server) Pointer() string { return strings.ToUpper(s.Name) + "-IS-ELSEWHERE.txt" }

const pointerText = `%[1]s

The %[2]s of this directory is in the folder named above: the %[2]s
server does not run as root, and its user cannot enter one of the parents of
this folder. Move or remove both together.
`

// Home returns the directory of the server's files: dir itself if the account can reach it, else a folder outside of
// root's home, to which it moves data of root.
func (a Account) Home(dir string, server Server, log io.Writer) (string, error) {
	pointer := filepath.Join(dir, server.Pointer())
	b, err := os.ReadFile(pointer)
	if err == nil {
		return server.followPointer(pointer, string(b))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the path of the %s: %w", server.Name, err)
	}
	data := filepath.Join(dir, "data")
	info, err := os.Stat(data)
	if a.Reaches(dir) || err == nil && ofUser(info) {
		return dir, nil
	}
	home, err := a.Shared(server.Folder)
	if err != nil {
		return "", err
	}
	if info != nil {
		// mv moves between file systems, too.
		if out, err := exec.Command("mv", data, filepath.Join(home, "data")).CombinedOutput(); err != nil {
			return "", fmt.Errorf("move %s to %s, since user %d cannot reach it: %w %s", data, home, a.UID, err, out)
		}
	}
	if err := folder.WriteFile(pointer, fmt.Appendf(nil, pointerText, home, server.Name), 0o644); err != nil {
		return "", err
	}
	fmt.Fprintf(log, "The %s server does not run as root and its user cannot reach %s: the %[1]s is in %[3]s (see %[4]s there).\n",
		server.Name, dir, home, server.Pointer())
	return home, nil
}

// ofUser reports whether a file belongs to another user than root, who reaches it.
func ofUser(info fs.FileInfo) bool {
	uid, _ := folder.Owner(info)
	return uid != 0
}

// followPointer fails if the server's files are missing, instead of creating empty ones.
func (s Server) followPointer(pointer, content string) (string, error) {
	home, _, _ := strings.Cut(content, "\n")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("%s does not begin with an absolute path", pointer)
	}
	if !folder.Exists(home) {
		return "", fmt.Errorf("the %s in %s is gone; remove %s to start with an empty one", s.Name, home, pointer)
	}
	return home, nil
}

// Shared creates a directory owned by root that the account can enter.
func (a Account) Shared(name string) (string, error) {
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
		if a.Reaches(dir) {
			return dir, nil
		}
		errs = append(errs, fmt.Errorf("user %d cannot reach %s", a.UID, dir))
	}
	return "", fmt.Errorf("find a directory that the server's user can reach: %w", errors.Join(errs...))
}

func sharedBases() []string {
	return []string{
		"/var/lib/meterplex",
		filepath.Join(os.TempDir(), "meterplex-"+strconv.Itoa(os.Geteuid())),
	}
}
