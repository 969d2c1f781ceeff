// Package patch applies unified diffs to sources that have changed since the diffs were written.
// It finds the place of a hunk by its content, not by its line numbers.
package patch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// Patch is a unified diff of text files.
type Patch struct {
	files []file
}

// Change is one file's text before and after a patch.
type Change struct {
	File          string // from the root, with slashes
	Before, After string
	Created       bool // the file does not exist before the patch
}

type file struct {
	name    string
	created bool
	hunks   []hunk
}

// Parse reads a unified diff and the text before its first file. Each file has the lines
// "--- a/NAME" and "+++ b/NAME"; a new file has "--- /dev/null".
func Parse(text string) (header string, p *Patch, err error) {
	parsed, header, err := gitdiff.Parse(strings.NewReader(text))
	if err != nil {
		return "", nil, fmt.Errorf("parse the diff: %w", err)
	}
	if len(parsed) == 0 {
		return "", nil, errors.New("no diff found: expected lines --- a/FILE, +++ b/FILE and @@")
	}
	p = &Patch{}
	for _, f := range parsed {
		name, ok := strings.CutPrefix(f.NewName, "b/")
		if !ok || f.IsDelete || f.IsBinary || f.IsRename || f.IsCopy {
			return "", nil, fmt.Errorf("%s%s: expected a change of a text file, with the lines --- a/FILE and +++ b/FILE", f.OldName, f.NewName)
		}
		changed := file{name: name, created: f.IsNew}
		for _, fragment := range f.TextFragments {
			changed.hunks = append(changed.hunks, hunk{strings.TrimSpace(fragment.Header()), fragment.Lines})
		}
		p.files = append(p.files, changed)
	}
	if extra := countLines(text[len(header):]) - p.countLines(); extra != 0 {
		return "", nil, fmt.Errorf("parse the diff: %d lines are outside the hunks: the line counts in an @@ header are too small", extra)
	}
	return header, p, nil
}

// countLines returns the number of lines, without the markers of a missing last newline.
func countLines(text string) (n int) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `\ `) {
			n++
		}
	}
	return n
}

func (p *Patch) countLines() (n int) {
	for _, f := range p.files {
		n += 2
		for _, h := range f.hunks {
			n += 1 + len(h.lines)
		}
	}
	return n
}

// Apply returns the changed files. It fails unless the context and the removed lines of each hunk
// occur in their file exactly once.
func (p *Patch) Apply(sources fs.FS) ([]Change, error) {
	return p.apply(sources, hunk.locate)
}

// locator finds the edits of a hunk in the lines of a file.
type locator func(h hunk, lines []string) ([]edit, error)

// apply changes the files at the places that locate finds.
func (p *Patch) apply(sources fs.FS, locate locator) (changes []Change, err error) {
	for _, f := range p.files {
		before, err := f.read(sources)
		if err != nil {
			return nil, err
		}
		after, err := f.apply(before, locate)
		if err != nil {
			return nil, err
		}
		changes = append(changes, Change{f.name, before, after, f.created})
	}
	return changes, nil
}

// read returns the text of the file; "" for one that the patch creates.
func (f *file) read(sources fs.FS) (string, error) {
	text, err := fs.ReadFile(sources, f.name)
	switch {
	case f.created && err == nil:
		return "", fmt.Errorf("%s: the patch creates it, but it exists", f.name)
	case f.created && errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the file to patch: %w", err)
	}
	return string(text), nil
}

func (f *file) apply(text string, locate locator) (string, error) {
	lines := slices.Collect(strings.Lines(text))
	var edits []edit
	for i, h := range f.hunks {
		found, err := locate(h, lines)
		if err != nil {
			return "", fmt.Errorf("%s, hunk %d (%s): %w", f.name, i+1, h.header, err)
		}
		edits = append(edits, found...)
	}
	// From the last to the first: the numbers of the lines before an edit stay.
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Or(b.from-a.from, b.to-a.to) })
	for i, e := range edits {
		if i > 0 && (e.to > edits[i-1].from || e.from == edits[i-1].from && e.to == edits[i-1].to) {
			return "", fmt.Errorf("%s: two hunks change line %d", f.name, e.to)
		}
		lines = slices.Replace(lines, e.from, e.to, e.with...)
	}
	return strings.Join(lines, ""), nil
}
