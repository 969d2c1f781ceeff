package patch

import (
	"fmt"
	"slices"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// hunk is a part of a file's diff: removed and added lines, and the context around them.
type hunk struct {
	header string
	lines  []gitdiff.Line
}

// edit replaces the lines [from, to) of a file.
type edit struct {
	from, to int
	with     []string
}

// locate returns the edit at the only place that has the hunk's context and removed lines.
func (h hunk) locate(lines []string) ([]edit, error) {
	found := h.places(lines)
	if len(found) != 1 {
		return nil, fmt.Errorf("its context and removed lines occur %d times, want exactly once", len(found))
	}
	return []edit{h.editAt(found[0])}, nil
}

// locateLoosely is locate for a hunk whose context has changed: it ignores outer lines of the context until
// the rest occurs once, and then looks for each block of changed lines on its own.
func (h hunk) locateLoosely(lines []string) ([]edit, error) {
	for n := h.context(); n >= 0; n-- {
		trimmed := h.trim(n)
		found := trimmed.places(lines)
		if len(found) == 1 {
			return []edit{trimmed.editAt(found[0])}, nil
		}
		if len(found) > 1 {
			break
		}
	}
	_, err := h.locate(lines)
	blocks := h.split()
	if len(blocks) == 1 {
		return nil, err
	}
	var edits []edit
	for _, b := range blocks {
		found, blockErr := b.locateLoosely(lines)
		if blockErr != nil {
			return nil, err
		}
		edits = append(edits, found...)
	}
	return edits, nil
}

// places returns the numbers of the lines at which the hunk's context and removed lines begin.
func (h hunk) places(lines []string) (found []int) {
	want := h.before()
	for at := 0; at+len(want) <= len(lines); at++ {
		if slices.Equal(lines[at:at+len(want)], want) {
			found = append(found, at)
		}
	}
	return found
}

// editAt returns the edit of a hunk whose context begins at a line. It covers no outer context, which two
// hunks may share.
func (h hunk) editAt(at int) edit {
	leading, _ := h.outer()
	core := h.trim(0)
	return edit{at + leading, at + leading + len(core.before()), core.after()}
}

// before returns the context and the removed lines.
func (h hunk) before() []string { return h.without(gitdiff.OpAdd) }

// after returns the context and the added lines.
func (h hunk) after() []string { return h.without(gitdiff.OpDelete) }

func (h hunk) without(op gitdiff.LineOp) (lines []string) {
	for _, l := range h.lines {
		if l.Op != op {
			lines = append(lines, l.Line)
		}
	}
	return lines
}

// outer returns the numbers of context lines before the first and after the last change.
func (h hunk) outer() (leading, trailing int) {
	for leading < len(h.lines) && h.lines[leading].Op == gitdiff.OpContext {
		leading++
	}
	for trailing < len(h.lines)-leading && h.lines[len(h.lines)-1-trailing].Op == gitdiff.OpContext {
		trailing++
	}
	return leading, trailing
}

func (h hunk) context() int { return max(h.outer()) }

// trim returns the hunk with at most n lines of context at either end.
func (h hunk) trim(n int) hunk {
	leading, trailing := h.outer()
	return hunk{h.header, h.lines[max(0, leading-n) : len(h.lines)-max(0, trailing-n)]}
}

// split returns a hunk for each block of changed lines, with the context up to the next blocks.
func (h hunk) split() (blocks []hunk) {
	begin := 0
	for at := h.skip(0, true); at < len(h.lines); {
		changed := h.skip(at, false)
		next := h.skip(changed, true)
		blocks = append(blocks, hunk{h.header, h.lines[begin:next]})
		begin, at = changed, next
	}
	return blocks
}

// skip returns the end of the context lines, or of the changed lines, that begin at a line.
func (h hunk) skip(at int, context bool) int {
	for at < len(h.lines) && (h.lines[at].Op == gitdiff.OpContext) == context {
		at++
	}
	return at
}
