// Package overlay builds the project with a few of its lines changed, through the
// Go tool's -overlay: to die at a chosen place, or with a bug that a test has to
// catch. The sources stay as they are, and no build of them can hold the change.
package overlay

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Edit changes one place of a file.
type Edit struct {
	File string // from the project's root, with slashes
	// Old stands in the file exactly once. Without it, File is a new one.
	Old, New string
}

// Write puts the changed files and the overlay's description into dir, and gives
// the description's path, for go build -overlay. It fails where an edit does not
// fit: its file has moved on, and the edit must follow.
func Write(dir, root string, edits []Edit) (path string, err error) {
	return WriteOver(dir, root, "", edits)
}

// WriteOver is Write on top of another overlay, given by its description's path; ""
// is none. The edits change what that one puts in the place of the files.
func WriteOver(dir, root, under string, edits []Edit) (path string, err error) {
	texts, err := textsOf(under, root)
	if err != nil {
		return "", err
	}
	for _, e := range edits {
		if texts[e.File], err = e.apply(root, texts[e.File]); err != nil {
			return "", err
		}
	}
	var description struct{ Replace map[string]string }
	description.Replace = map[string]string{}
	for file, text := range texts {
		changed := filepath.Join(dir, strconv.Itoa(len(description.Replace))+"_"+filepath.Base(file))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write a changed file: %w", err)
		}
		description.Replace[filepath.Join(root, filepath.FromSlash(file))] = changed
	}
	raw, err := json.Marshal(description)
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	path = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return path, nil
}

// textsOf reads what an overlay puts in the place of which file.
func textsOf(description, root string) (map[string]string, error) {
	texts := map[string]string{}
	if description == "" {
		return texts, nil
	}
	raw, err := os.ReadFile(description)
	if err != nil {
		return nil, fmt.Errorf("read the overlay beneath: %w", err)
	}
	var beneath struct{ Replace map[string]string }
	if err := json.Unmarshal(raw, &beneath); err != nil {
		return nil, fmt.Errorf("read the overlay beneath: %w", err)
	}
	for file, changed := range beneath.Replace {
		text, err := os.ReadFile(changed)
		if err != nil {
			return nil, fmt.Errorf("read the overlay beneath: %w", err)
		}
		if file, err = filepath.Rel(root, file); err != nil {
			return nil, fmt.Errorf("read the overlay beneath: %w", err)
		}
		texts[filepath.ToSlash(file)] = string(text)
	}
	return texts, nil
}

// apply changes text, which an edit before may have left, else the file's own.
func (e Edit) apply(root, text string) (string, error) {
	name := filepath.Join(root, filepath.FromSlash(e.File))
	if e.Old == "" {
		if _, err := os.Stat(name); err == nil || text != "" {
			return "", fmt.Errorf("%s: an edit makes it anew, and it is there", e.File)
		}
		return e.New, nil
	}
	if text == "" {
		raw, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("read what is to be changed: %w", err)
		}
		text = string(raw)
	}
	if n := strings.Count(text, e.Old); n != 1 {
		return "", fmt.Errorf("%s: %d places read %q, and an edit changes exactly one", e.File, n, e.Old)
	}
	return strings.Replace(text, e.Old, e.New, 1), nil
}
