package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Refresh is Apply for a patch whose context has changed, or whose files have moved. The result is to be
// written by Diff and reviewed: a hunk may be found at another place than its author meant.
func (p *Patch) Refresh(sources fs.FS) ([]Change, error) {
	moved := Patch{}
	for _, f := range p.files {
		if _, err := fs.Stat(sources, f.name); !f.created && errors.Is(err, fs.ErrNotExist) {
			name, err := f.movedTo(sources)
			if err != nil {
				return nil, err
			}
			f.name = name
		}
		moved.files = append(moved.files, f)
	}
	return moved.apply(sources, hunk.locateLoosely)
}

// movedTo returns the only file of the same base name that the hunks fit.
func (f *file) movedTo(sources fs.FS) (string, error) {
	var found []string
	err := fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != "." {
			return fs.SkipDir
		}
		if d.IsDir() || path.Base(name) != path.Base(f.name) {
			return nil
		}
		text, err := fs.ReadFile(sources, name)
		if err != nil {
			return err
		}
		if _, err := f.apply(string(text), hunk.locateLoosely); err == nil {
			found = append(found, name)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("find the file %s: %w", f.name, err)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s: the file does not exist, and the patch fits %d other files named %s", f.name, len(found), path.Base(f.name))
	}
	return found[0], nil
}
