package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/cmd/planted/patch"
)

// newHeader is the header of a new patch, to be filled in.
const newHeader = "What: \nPromise: \nTest: \nSays: \n\n"

var validName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// writeNew writes the uncommitted changes of the sources as the patch of a bug. A bug that
// has a patch already keeps its group and its header.
func (p *prover) writeNew(ctx context.Context, name, group string, files []string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("invalid name %q: expected lower-case words joined by hyphens", name)
	}
	changes, err := p.uncommitted(ctx, files)
	if err != nil {
		return err
	}
	diff, err := patch.Diff(changes)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.root, filepath.FromSlash(folder))
	present, err := filepath.Glob(filepath.Join(dir, "*", name+extension))
	if err != nil {
		return fmt.Errorf("find the patch: %w", err)
	}
	header, file := newHeader, filepath.Join(dir, group, name+extension)
	if len(present) > 0 {
		file = present[0]
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the patch: %w", err)
		}
		header = string(text[:strings.Index(string(text), "\n--- ")+1])
	} else if err := list(dir, name, group); err != nil {
		return err
	}
	if err := writeFile(file, header+diff); err != nil {
		return err
	}
	fmt.Fprintf(p.log, "wrote %s\nFill in its header, and undo the changes of:", file)
	for _, c := range changes {
		fmt.Fprintf(p.log, " %s", c.File)
	}
	fmt.Fprintln(p.log)
	return nil
}

// list adds a bug to its group.
func list(dir, name, group string) error {
	if group == "" {
		return fmt.Errorf("%s has no patch yet: a new one needs its -group", name)
	}
	groups := filepath.Join(dir, groupsFile)
	text, err := os.ReadFile(groups)
	if err != nil {
		return fmt.Errorf("read the list of groups: %w", err)
	}
	changed, err := addToGroup(string(text), group, name)
	if err != nil {
		return err
	}
	return writeFile(groups, changed)
}

// uncommitted returns the changes of the working tree: of the files named, or of all files but
// tests, documents and cmd/planted.
func (p *prover) uncommitted(ctx context.Context, files []string) (changes []patch.Change, err error) {
	out, err := p.git(ctx, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(strings.TrimRight(out, "\x00"), "\x00") {
		if len(entry) < 4 {
			continue
		}
		name := entry[3:]
		chosen := !strings.HasSuffix(name, "_test.go") && path.Ext(name) != ".md" && !strings.HasPrefix(name, "cmd/planted/")
		if len(files) > 0 {
			chosen = slices.Contains(files, name)
		}
		if !chosen {
			continue
		}
		c := patch.Change{File: name, Created: strings.ContainsAny(entry[:2], "?A")}
		after, err := os.ReadFile(filepath.Join(p.root, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is deleted: a patch cannot delete a file", name)
		} else if err != nil {
			return nil, fmt.Errorf("read a changed file: %w", err)
		}
		c.After = string(after)
		if !c.Created {
			if c.Before, err = p.git(ctx, "show", "HEAD:"+name); err != nil {
				return nil, err
			}
		}
		changes = append(changes, c)
	}
	if len(changes) == 0 {
		return nil, errors.New("no uncommitted changes of sources found")
	}
	return changes, nil
}

func (p *prover) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = p.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run git %s: %w", args[0], err)
	}
	return string(out), nil
}
