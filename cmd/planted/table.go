package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

// head is the text before the table; it is rewritten each time.
const head = `# Planted bugs
Each row is a bug planted into the sources of a build, and the test that catches it. ` + "`make planted`" + ` plants all of them, fails
if one survives or its test fails for another reason, and writes this page; ` + "`go run ./cmd/planted -v NAME`" + ` plants one and shows the output of its test.
Method and reasons: docs/decisions/0010-planted-bugs-by-overlay.md. Bugs marked † are known from other metering services, where they lost or doubled usage.

| bug | what it does | promise | caught by | its message |
|---|---|---|---|---|
`

// writeTable writes the findings into the page. Bugs that were not run keep their rows.
func writeTable(path string, all []bug, findings []finding) error {
	rows, err := readRows(path)
	if err != nil {
		return err
	}
	for i := range findings {
		rows[findings[i].name] = row(&findings[i])
	}
	var b strings.Builder
	b.WriteString(head)
	for _, bug := range all {
		text, ok := rows[bug.name]
		if !ok {
			text = row(&finding{bug: &bug, outcome: notRun})
		}
		b.WriteString(text + "\n")
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("keep the findings: %w", err)
	}
	return nil
}

// readRows returns the rows of a page by the bug's name.
func readRows(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the findings of before: %w", err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if ok && strings.HasPrefix(line, "| ") {
			rows[strings.TrimSuffix(name, " †")] = strings.TrimRight(line, "\n")
		}
	}
	return rows, nil
}

func row(f *finding) string {
	name, by := f.name, "`"+f.by+"`"
	if f.elsewhere {
		name += " †"
	}
	if f.outcome != caught {
		by = "**" + string(f.outcome) + "**"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", name, cell(f.what), cell(f.promise), by, cell(clip(f.message)))
}

// maxMessage shortens a message to about one line.
const maxMessage = 140

// anyID matches ids, which differ in each run.
var anyID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func clip(s string) string {
	s = anyID.ReplaceAllString(s, "…")
	if r := []rune(s); len(r) > maxMessage {
		return string(r[:maxMessage]) + "…"
	}
	return s
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}
