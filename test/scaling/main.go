// Command scaling computes the tables of docs/explanation/scaling.md and docs/project/scaling-model.md: the hardware that a rate of events
// needs. It takes the costs from docs/benchmarks and the plan from plan.json, and simulates the queues, locks, commits and
// failures of one cell (a database with its instances). It must not import the service's packages.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// documents returns the pages with tables.
func documents() []string {
	return []string{"docs/explanation/scaling.md", "docs/project/scaling-model.md"}
}

func main() {
	root := flag.String("root", ".", "the repository's root")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(2)
	}
}

// run writes the tables into the documents.
func run(root string) error {
	in, err := read(root)
	if err != nil {
		return err
	}
	texts, err := readDocuments(root)
	if err != nil {
		return err
	}
	tables := in.tables()
	if err := fill(texts, tables); err != nil {
		return err
	}
	for i, path := range documents() {
		if err := os.WriteFile(filepath.Join(root, path), []byte(texts[i]), 0o644); err != nil {
			return fmt.Errorf("write the document: %w", err)
		}
	}
	for _, t := range tables {
		fmt.Printf("%s\n\n%s\n", t.name, t.text)
	}
	return nil
}

func readDocuments(root string) (texts []string, err error) {
	for _, path := range documents() {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, fmt.Errorf("read the document: %w", err)
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}

// fill puts each table between its markers, in the text that has them.
func fill(texts []string, tables []table) error {
	for _, t := range tables {
		open, end := fmt.Sprintf("<!-- %s: written by go run ./test/scaling -->\n", t.name), fmt.Sprintf("<!-- end of %s -->", t.name)
		i := slices.IndexFunc(texts, func(text string) bool { return strings.Contains(text, open) && strings.Contains(text, end) })
		if i < 0 {
			return fmt.Errorf("%v have no markers for the table %q: add the lines %q and %q", documents(), t.name, strings.TrimSpace(open),
				end)
		}
		before, rest, _ := strings.Cut(texts[i], open)
		_, after, _ := strings.Cut(rest, end)
		texts[i] = before + open + t.text + end + after
	}
	return nil
}
