package postgres

import (
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// markedFiles are migrations whose statements are all marked by StatementBegin and StatementEnd. Of a statement that is not, goose
// looks at each line by a buffer of 4 MiB.
type markedFiles struct{ fs.FS }

// Open implements fs.FS.
func (m markedFiles) Open(name string) (fs.File, error) {
	f, err := m.FS.Open(name)
	if err != nil || !strings.HasSuffix(name, ".sql") {
		return f, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return markedFile{f, strings.NewReader(markStatements(string(raw)))}, nil
}

type markedFile struct {
	fs.File
	text *strings.Reader
}

// Read implements fs.File.
func (f markedFile) Read(p []byte) (int, error) { return f.text.Read(p) }

const annotation, statementBegin, statementEnd = "-- +goose ", "-- +goose StatementBegin", "-- +goose StatementEnd"

// markStatements marks the statements of a migration that are not marked.
func markStatements(sql string) string {
	var marked strings.Builder
	up, inMarks, inStatement := false, false, false
	for line := range strings.Lines(sql) {
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(text, annotation):
			up = true
			inMarks = inMarks && text != statementEnd || text == statementBegin
		case !up || inMarks:
		case !inStatement && (text == "" || strings.HasPrefix(text, "--")):
		default:
			if !inStatement {
				marked.WriteString(statementBegin + "\n")
			}
			marked.WriteString(strings.TrimSuffix(line, "\n") + "\n")
			if inStatement = !endsStatement(line); !inStatement {
				marked.WriteString(statementEnd + "\n")
			}
			continue
		}
		marked.WriteString(line)
	}
	return marked.String()
}

// endsStatement is true if a line ends with a semicolon, apart from its comment.
func endsStatement(line string) bool {
	last := ""
	for _, word := range strings.Fields(line) {
		if strings.HasPrefix(word, "--") {
			break
		}
		last = word
	}
	return strings.HasSuffix(last, ";")
}
