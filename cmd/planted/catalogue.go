package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The patches are the files GROUP/NAME.patch of a folder. Its file groups lists the groups and
// their bugs in the order of an event's path, which is the order of the page.
const (
	folder     = "cmd/planted/bugs"
	groupsFile = "groups"
	extension  = ".patch"
)

// catalogue returns every planted bug of a project, in the order of an event's path.
func catalogue(root string) ([]bug, error) {
	return readCatalogue(os.DirFS(filepath.Join(root, filepath.FromSlash(folder))))
}

// readCatalogue reads the patches. Each patch has to be listed once, and each listed patch has to exist.
func readCatalogue(patches fs.FS) (bugs []bug, err error) {
	text, err := fs.ReadFile(patches, groupsFile)
	if err != nil {
		return nil, fmt.Errorf("read the list of groups: %w", err)
	}
	listed, err := parseGroups(string(text))
	if err != nil {
		return nil, err
	}
	var faults []error
	names, files := map[string]bool{}, map[string]bool{}
	for _, file := range listed {
		b, err := readBug(patches, file)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s/%s: %w", folder, file, err))
		}
		if names[b.name] {
			faults = append(faults, fmt.Errorf("%s/%s: two bugs have the name %s", folder, groupsFile, b.name))
		}
		names[b.name], files[file] = err == nil, true
		bugs = append(bugs, b)
	}
	present, err := fs.Glob(patches, "*/*"+extension)
	if err != nil {
		return nil, fmt.Errorf("list the patches: %w", err)
	}
	for _, file := range present {
		if !files[file] {
			faults = append(faults, fmt.Errorf("%s/%s is not listed in %s/%s", folder, file, folder, groupsFile))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return bugs, nil
}

func readBug(patches fs.FS, file string) (bug, error) {
	text, err := fs.ReadFile(patches, file)
	if err != nil {
		return bug{}, err
	}
	return parseBug(file, string(text))
}

// parseGroups returns the listed files. A line "GROUP: description" begins a group; the indented
// lines below it are the names of its bugs.
func parseGroups(text string) (files []string, err error) {
	sizes, group := map[string]int{}, ""
	for line := range strings.Lines(text) {
		name := strings.TrimSpace(line)
		switch {
		case name == "" || strings.HasPrefix(name, "#"):
		case !strings.HasPrefix(line, " "):
			group, _, _ = strings.Cut(name, ":")
			sizes[group] += 0
		default:
			files = append(files, group+"/"+name+extension)
			sizes[group]++
		}
	}
	for group, size := range sizes {
		if size == 0 || group == "" {
			return nil, fmt.Errorf("%s/%s: the group %q has %d bugs", folder, groupsFile, group, size)
		}
	}
	return files, nil
}

// addToGroup returns the text of the file groups with a bug at the end of a group.
func addToGroup(text, group, name string) (string, error) {
	lines := slices.Collect(strings.Lines(text))
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, group+":") })
	if at < 0 {
		return "", fmt.Errorf("group %q not found: add the line %q to %s/%s", group, group+": DESCRIPTION", folder, groupsFile)
	}
	for at++; at < len(lines) && strings.HasPrefix(lines[at], " "); at++ {
	}
	return strings.Join(slices.Insert(lines, at, "  "+name+"\n"), ""), nil
}
