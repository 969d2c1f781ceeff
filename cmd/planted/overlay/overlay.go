// Package overlay builds the project with some lines changed, through the Go tool's
// -overlay: with kill points, or with a bug that a test has to catch. The sources stay
// unchanged, and no other build contains the change.
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
	// Old occurs in the file exactly once. Without Old, File is a new file.
	Old, New string
}

// WriteOver writes the changed files and the overlay's description into dir, and returns the
// description's path, for go build -overlay. It fails if an edit does not match: its file has
// changed, and the edit must follow. The edits apply to the files of another overlay, given by
// its description's path; "" means no such overlay.
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
	return WriteTexts(dir, root, texts)
}

// WriteTexts is WriteOver for the whole texts of the changed files, by their names from the project's root, with slashes.
func WriteTexts(dir, root string, texts map[string]string) (path string, err error) {
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

// textsOf reads the replaced files of an overlay.
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

// apply edits text, the result of an earlier edit, or else the file's own text.
func (e Edit) apply(root, text string) (string, error) {
	name := filepath.Join(root, filepath.FromSlash(e.File))
	if e.Old == "" {
		if _, err := os.Stat(name); err == nil || text != "" {
			return "", fmt.Errorf("%s: an edit creates it, but it exists", e.File)
		}
		return e.New, nil
	}
	if text == "" {
		raw, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("read the file to edit: %w", err)
		}
		text = string(raw)
	}
	if n := strings.Count(text, e.Old); n != 1 {
		return "", fmt.Errorf("%s: %d places contain %q, want exactly one", e.File, n, e.Old)
	}
	return strings.Replace(text, e.Old, e.New, 1), nil
}
