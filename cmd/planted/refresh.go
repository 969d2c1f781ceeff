package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/meterplex/meterplex/cmd/planted/patch"
)

// refreshAll writes the patches for the present sources, as far as they still fit, and returns the exit code.
func (p *prover) refreshAll(bugs []bug) (code int) {
	written := 0
	for i := range bugs {
		changed, err := p.refresh(&bugs[i])
		switch {
		case err != nil:
			fmt.Fprintf(p.log, "%s: %v\n", path.Join(folder, bugs[i].file), err)
			code = exitUnbuilt
		case changed:
			fmt.Fprintln(p.log, "wrote", path.Join(folder, bugs[i].file))
			written++
		}
	}
	fmt.Fprintf(p.log, "%d patches, %d written\n", len(bugs), written)
	if code != exitCaught {
		fmt.Fprintln(p.log, "Plant a bug that no longer fits again: commit your work, change the sources as the patch does, run go run ./cmd/planted -new NAME, and undo the change.")
	}
	return code
}

// refresh writes the patch of a bug for the present sources, and reports whether it has changed.
func (p *prover) refresh(b *bug) (changed bool, err error) {
	name := filepath.Join(p.root, filepath.FromSlash(folder), filepath.FromSlash(b.file))
	before, err := os.ReadFile(name)
	if err != nil {
		return false, fmt.Errorf("read the patch: %w", err)
	}
	header, diff, err := patch.Parse(string(before))
	if err != nil {
		return false, err
	}
	changes, err := diff.Refresh(os.DirFS(p.root))
	if err != nil {
		return false, err
	}
	text, err := patch.Diff(changes)
	if err != nil {
		return false, err
	}
	if header+text == string(before) {
		return false, nil
	}
	return true, writeFile(name, header+text)
}

func writeFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("write the patch: %w", err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the patch: %w", err)
	}
	return nil
}
