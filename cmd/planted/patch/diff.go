package patch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The lines of context of a hunk: the usual number, or as many more as make its place unique.
const (
	minContext = 3
	maxContext = 40
)

// Diff returns the unified diff of changes, which Apply locates. It runs git diff outside of any repository.
func Diff(changes []Change) (string, error) {
	dir, err := os.MkdirTemp("", "meterplex-patch-*")
	if err != nil {
		return "", fmt.Errorf("write the files to compare: %w", err)
	}
	defer os.RemoveAll(dir)
	for _, c := range changes {
		err := writeFile(filepath.Join(dir, "b", filepath.FromSlash(c.File)), c.After)
		if err == nil && !c.Created {
			err = writeFile(filepath.Join(dir, "a", filepath.FromSlash(c.File)), c.Before)
		}
		if err != nil {
			return "", fmt.Errorf("write the files to compare: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
		return "", fmt.Errorf("write the files to compare: %w", err)
	}
	var applyErr error
	for context := minContext; context <= maxContext; context++ {
		text, err := gitDiff(dir, context)
		if err != nil {
			return "", err
		}
		if applyErr = reproduces(text, filepath.Join(dir, "a"), changes); applyErr == nil {
			return text, nil
		}
	}
	return "", fmt.Errorf("no unique place within %d lines of context: %w", maxContext, applyErr)
}

func writeFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o600)
}

// reproduces returns an error unless the diff, applied to the files of a folder, makes the changes.
func reproduces(text, folder string, changes []Change) error {
	_, p, err := Parse(text)
	if err != nil {
		return err
	}
	made, err := p.Apply(os.DirFS(folder))
	if err != nil {
		return err
	}
	for _, c := range changes {
		if !slices.Contains(made, c) {
			return fmt.Errorf("%s: the diff does not make the change", c.File)
		}
	}
	return nil
}

// gitDiff compares the subfolders a and b of a folder.
func gitDiff(dir string, context int) (string, error) {
	cmd := exec.Command("git", "diff", "--no-index", "--no-prefix", "--no-color", "--no-ext-diff", "--no-renames",
		"--diff-algorithm=myers", "--unified="+strconv.Itoa(context), "a", "b")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1") // no setting of the user changes the patches
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", errors.New("nothing has changed")
	case !errors.As(err, &exit) || exit.ExitCode() != 1: // 1: the folders differ
		return "", fmt.Errorf("run git diff: %w", err)
	}
	return withoutGitHeaders(string(out)), nil
}

// withoutGitHeaders removes the lines that only git reads: file modes, and hashes that change with the file.
func withoutGitHeaders(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "diff --git ") && !strings.HasPrefix(line, "index ") && !strings.HasPrefix(line, "new file mode ") {
			b.WriteString(line)
		}
	}
	return b.String()
}
