// Command scaling computes the tables of docs/explanation/scaling.md: the hardware that a rate of events needs. It takes
// the costs from docs/benchmarks and the plan from plan.json, and simulates the queues, locks, commits and
// failures of one cell (a database with its instances). It must not import the service's packages.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const document = "docs/explanation/scaling.md"

func main() {
	root := flag.String("root", ".", "the repository's root")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(2)
	}
}

// run writes the tables into the document.
func run(root string) error {
	in, err := read(root)
	if err != nil {
		return err
	}
	path := filepath.Join(root, document)
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	tables := in.tables()
	text, err := fill(string(old), tables)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	for _, t := range tables {
		fmt.Printf("%s\n\n%s\n", t.name, t.text)
	}
	return nil
}

// fill puts each table between its markers.
func fill(text string, tables []table) (string, error) {
	for _, t := range tables {
		open, end := fmt.Sprintf("<!-- %s: written by go run ./test/scaling -->\n", t.name), fmt.Sprintf("<!-- end of %s -->", t.name)
		before, rest, found := strings.Cut(text, open)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return "", fmt.Errorf("%s has no markers for the table %q: add the lines %q and %q", document, t.name, strings.TrimSpace(open), end)
		}
		text = before + open + t.text + end + after
	}
	return text, nil
}
