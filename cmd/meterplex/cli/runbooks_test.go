package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// command is a command of this program in a document, up to the end of its code.
var command = regexp.MustCompile("(?m)(?:^|[`($ ])meterplex ([a-z][^`\n|>;&)]*)")

// TestTheCommandsOfRunbooksExist: with each of their flags. A command that is only named may lack required flags.
func TestTheCommandsOfRunbooksExist(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		inCode := regexp.MustCompile("(?s)```.*?```|`[^`\n]+`").FindAllString(string(text), -1)
		for _, found := range command.FindAllStringSubmatch(strings.Join(inCode, "\n"), -1) {
			line, _, _ := strings.Cut(found[1], " #")
			line = strings.TrimSuffix(line, " 2") // of 2>
			line = regexp.MustCompile(`"[^"]*"|…|\$\w+`).ReplaceAllString(line, "x")
			args := strings.Fields(strings.ReplaceAll(line, "--help", ""))
			a := &app{stdout: io.Discard, stderr: io.Discard}
			parser, err := a.newParser(&grammar{})
			if err != nil {
				t.Fatal(err)
			}
			commands++
			if _, err := parser.Parse(args); err != nil && !strings.HasPrefix(err.Error(), "missing flags") && !strings.HasPrefix(err.Error(), "expected ") {
				t.Errorf("%s: meterplex %s: %v", filepath.Base(page), line, err)
			}
		}
	}
	if commands < 80 {
		t.Errorf("only %d commands were found", commands)
	}
}
