package console

import (
	"io/fs"
	"regexp"
	"testing"
)

// All templates are one set, in which a second template of one name replaces the first.
func TestEachTemplateHasANameOfItsOwn(t *testing.T) {
	defined, of := regexp.MustCompile(`{{-?\s*define\s+"([^"]+)"`), map[string]string{}
	err := fs.WalkDir(templateFiles, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(templateFiles, path)
		for _, m := range defined.FindAllStringSubmatch(string(text), -1) {
			if other, twice := of[m[1]]; twice {
				t.Errorf("%s and %s define %q", other, path, m[1])
			}
			of[m[1]] = path
		}
		return err
	})
	if err != nil || len(of) < 10 {
		t.Fatalf("%d templates are defined, %v", len(of), err)
	}
}
