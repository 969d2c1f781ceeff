package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

// written is a command of this program in a document, up to the end of its code.
var written = regexp.MustCompile("(?m)(?:^|[`($ ])meterplex ([a-z][^`\n|>;&)]*)")

// TestTheCommandsOfRunbooksExist: with each of their flags. A command that is only named may lack required flags.
func TestTheCommandsOfRunbooksExist(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/runbooks/*.md")
	must.OK(t, err)
	commands := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must.OK(t, err)
		inCode := regexp.MustCompile("(?s)```.*?```|`[^`\n]+`").FindAllString(string(text), -1)
		for _, found := range written.FindAllStringSubmatch(strings.Join(inCode, "\n"), -1) {
			line, _, _ := strings.Cut(found[1], " #")
			line = strings.TrimSuffix(line, " 2") // of 2>
			line = regexp.MustCompile(`"[^"]*"|…|\$\w+`).ReplaceAllString(line, "x")
			args := strings.Fields(strings.ReplaceAll(line, "--help", ""))
			commands++
			if err := parses(t, args); err != nil && !strings.HasPrefix(err.Error(), "missing flags") &&
				!strings.HasPrefix(err.Error(), "expected ") {
				t.Errorf("%s: meterplex %s: %v", filepath.Base(page), line, err)
			}
		}
	}
	if commands < 80 {
		t.Errorf("only %d commands were found", commands)
	}
}

// parses parses the arguments of a command, and does not run it.
func parses(t *testing.T, args []string) error {
	t.Helper()
	a := &program{App: &app.App{Stdout: io.Discard, Stderr: io.Discard}}
	parser, err := a.parserFor(&app.ClientFlags{}, args[0])
	must.OK(t, err)
	_, err = parser.Parse(args)
	return err
}

var (
	// suggested is a command in a template of the console: text, or parts that are printed one behind the other.
	suggested = regexp.MustCompile(`"command" (?:\(print ([^)]*)\)|("[^"]*"))|<code>(meterplex [^<]*)</code>`)
	part      = regexp.MustCompile(`"([^"]*)"|[^" ]+`)
)

// TestTheCommandsOfTheConsoleParse: those that a page without entries suggests are complete.
func TestTheCommandsOfTheConsoleParse(t *testing.T) {
	commands, named := 0, 0
	for _, pattern := range []string{"*.html", "shared/*.html"} {
		templates, err := filepath.Glob("../../../http/console/templates/" + pattern)
		must.OK(t, err)
		for _, template := range templates {
			text, err := os.ReadFile(template)
			must.OK(t, err)
			named += strings.Count(string(text), `"meterplex `) + strings.Count(string(text), "<code>meterplex ")
			for _, found := range suggested.FindAllStringSubmatch(string(text), -1) {
				line := part.ReplaceAllStringFunc(found[1]+found[2], func(s string) string {
					if text, isText := strings.CutPrefix(s, `"`); isText {
						return strings.TrimSuffix(text, `"`)
					}
					return "x" // a value of the page
				})
				line = strings.Join(strings.Fields(line+found[3]), " ")
				commands++
				args := strings.Fields(line)
				if err := parses(t, args[1:]); err != nil {
					t.Errorf("%s: %s: %v", filepath.Base(template), line, err)
				}
			}
		}
	}
	if commands != named || commands < 30 {
		t.Errorf("of %d commands %d were parsed", named, commands)
	}
}
