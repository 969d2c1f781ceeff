package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// edit changes one place of a source file, for one build. Without Old, File is a new file.
type edit struct{ File, Old, New string }

// writeOverlay writes the changed files and their description into dir, and returns the description's path, for go build -overlay.
// An Old that does not occur exactly once is an error: its file has changed, and the edit must follow.
func writeOverlay(dir, root string, edits []edit) (path string, err error) {
	texts := map[string]string{}
	for _, e := range edits {
		text, read := texts[e.File]
		if !read && e.Old != "" {
			raw, err := os.ReadFile(filepath.Join(root, e.File))
			if err != nil {
				return "", fmt.Errorf("read the file to edit: %w", err)
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.Old); e.Old != "" && n != 1 {
			return "", fmt.Errorf("%s: %d places contain %q, want exactly one", e.File, n, e.Old)
		}
		texts[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	var description struct{ Replace map[string]string }
	description.Replace = map[string]string{}
	for file, text := range texts {
		changed := filepath.Join(dir, strconv.Itoa(len(description.Replace))+"_"+filepath.Base(file))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write a changed file: %w", err)
		}
		description.Replace[filepath.Join(root, file)] = changed
	}
	raw, err := json.Marshal(description)
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, raw, 0o600)
}
