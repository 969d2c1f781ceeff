package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/planted/overlay"
	"github.com/meterplex/meterplex/cmd/planted/patch"
)

// bug is a plausible fault, planted by a patch of the sources, with the test that has to catch it.
type bug struct {
	name    string
	file    string // of the patch, from its folder
	what    string // the fault of the changed code
	promise string // the broken promise
	// elsewhere says that another metering service had this bug, and lost or doubled usage.
	elsewhere bool
	patch     *patch.Patch
	pkg       string // of the test, from the project's root
	run       string // the test, as a pattern of go test -run
	says      string // a regular expression of the test's failure text: its words, no figures
	// hangs says that the broken promise is to come to an end: a test that times out has
	// caught the bug.
	hangs bool
}

// usualLimit is many times the time of any of the tests, and longer than their waits for an effect that a bug prevents.
const usualLimit = 9 * time.Minute

// parseBug reads a patch file: lines "Key: value", an empty line, and a unified diff.
func parseBug(file, text string) (bug, error) {
	header, diff, err := patch.Parse(text)
	if err != nil {
		return bug{}, err
	}
	b := bug{name: strings.TrimSuffix(path.Base(file), extension), file: file, patch: diff}
	var elsewhere, hangs, test string
	values := map[string]*string{"What": &b.what, "Promise": &b.promise, "Seen-elsewhere": &elsewhere, "Test": &test, "Says": &b.says, "Hangs": &hangs}
	for line := range strings.Lines(header) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		to, known := values[key]
		if !known || *to != "" {
			return bug{}, fmt.Errorf("the header line %q has an unknown key, or one that occurs twice", strings.TrimSpace(line))
		}
		*to = strings.TrimSpace(value)
	}
	for _, key := range []string{"What", "Promise", "Test", "Says"} {
		if *values[key] == "" {
			return bug{}, fmt.Errorf("the header has no line %q", key+": …")
		}
	}
	var ok bool
	if b.pkg, b.run, ok = strings.Cut(test, " "); !ok {
		return bug{}, fmt.Errorf("invalid test %q: expected a package and a test, e.g. ./domain TestCheck", test)
	}
	if b.elsewhere, err = yes(elsewhere); err == nil {
		b.hangs, err = yes(hangs)
	}
	return b, err
}

func yes(value string) (bool, error) {
	if value != "" && value != "yes" {
		return false, fmt.Errorf("invalid value %q: expected yes, or no such line", value)
	}
	return value != "", nil
}

// plant writes the overlay of the sources with the bug into a folder, and returns its path.
func (b *bug) plant(dir, root string) (string, error) {
	changes, err := b.patch.Apply(os.DirFS(root))
	if err != nil {
		return "", fmt.Errorf("%s does not fit the sources: %w; run go run ./cmd/planted -refresh %s", b.file, err, b.name)
	}
	texts := map[string]string{}
	for _, c := range changes {
		texts[c.File] = c.After
	}
	return overlay.WriteTexts(dir, root, texts)
}

// choose returns the bugs whose names match one of the patterns of path.Match; all
// bugs if there are no patterns.
func choose(all []bug, patterns []string) ([]bug, error) {
	if len(patterns) == 0 {
		return all, nil
	}
	var chosen []bug
	for _, p := range patterns {
		n := len(chosen)
		for _, b := range all {
			ok, err := path.Match(p, b.name)
			if err != nil {
				return nil, fmt.Errorf("the pattern %q: %w", p, err)
			}
			if ok && !slices.ContainsFunc(chosen, func(c bug) bool { return c.name == b.name }) {
				chosen = append(chosen, b)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no planted bug matches %q; see -list", p)
		}
	}
	return chosen, nil
}
