package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

const onePatch = `What: sums are differences
Promise: P5: a sum is exact
Seen-elsewhere: yes
Test: ./sum TestOf/two
Says: [ ]\d+ | five
Hangs: yes

--- a/sum/of.go
+++ b/sum/of.go
@@ -1 +1 @@
-a + b
+a - b
`

func patches(groups string, files ...string) fstest.MapFS {
	all := fstest.MapFS{groupsFile: {Data: []byte(groups)}}
	for _, f := range files {
		all[f] = &fstest.MapFile{Data: []byte(onePatch)}
	}
	return all
}

func TestCatalogueHasTheOrderOfTheGroups(t *testing.T) {
	bugs, err := readCatalogue(patches("# The order.\n\nsums: the sums\n  z\n  a\n\nmore: others\n  b\n", "sums/a.patch", "sums/z.patch", "more/b.patch"))
	if err != nil || len(bugs) != 3 || bugs[0].file != "sums/z.patch" || bugs[1].name != "a" || bugs[2].name != "b" {
		t.Fatalf("%+v, %v", bugs, err)
	}
	b := bugs[0]
	if b.patch == nil {
		t.Error("no patch")
	}
	b.patch = nil
	want := bug{name: "z", file: "sums/z.patch", what: "sums are differences", promise: "P5: a sum is exact", elsewhere: true,
		pkg: "./sum", run: "TestOf/two", says: `[ ]\d+ | five`, hangs: true}
	if b.what != want.what || b.promise != want.promise || b.pkg != want.pkg || b.run != want.run || b.says != want.says || !b.elsewhere || !b.hangs {
		t.Errorf("got  %+v\nwant %+v", b, want)
	}
}

func TestPatchesAndGroupsAgree(t *testing.T) {
	for why, c := range map[string]struct {
		groups string
		files  []string
	}{
		"sums/b.patch is not listed in":    {"sums: s\n  a\n", []string{"sums/a.patch", "sums/b.patch"}},
		"open sums/b.patch: file does":     {"sums: s\n  a\n  b\n", []string{"sums/a.patch"}},
		"groups: two bugs have the name a": {"sums: s\n  a\nmore: m\n  a\n", []string{"sums/a.patch", "more/a.patch"}},
		`the group "more" has 0 bugs`:      {"sums: s\n  a\nmore: m\n", []string{"sums/a.patch"}},
		`groups: the group "" has 1 bug`:   {"  a\n", nil},
	} {
		if _, err := readCatalogue(patches(c.groups, c.files...)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	if _, err := readCatalogue(fstest.MapFS{}); err == nil {
		t.Error("a catalogue without groups was read")
	}
}

func TestHeadersAreComplete(t *testing.T) {
	for why, change := range map[string][2]string{
		`no line "What: …"`:      {"What: sums are differences\n", ""},
		`no line "Says: …"`:      {`Says: [ ]\d+ | five`, "Says:"},
		`line "Why: x" has an `:  {"Hangs: yes", "Why: x"},
		`"What: y" has an unkno`: {"Hangs: yes", "What: y"},
		`invalid value "no"`:     {"Hangs: yes", "Hangs: no"},
		`invalid value "maybe"`:  {"elsewhere: yes", "elsewhere: maybe"},
		`invalid test "TestOf"`:  {"./sum TestOf/two", "TestOf"},
		"no diff found":          {"@@ -1 +1 @@", ""},
	} {
		if _, err := parseBug("sums/a.patch", strings.Replace(onePatch, change[0], change[1], 1)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}

func TestANewBugIsTheLastOfItsGroup(t *testing.T) {
	const groups = "sums: s\n  a\n\nmore: m\n  b\n"
	for group, want := range map[string]string{"sums": "sums: s\n  a\n  new\n\nmore: m\n  b\n", "more": "sums: s\n  a\n\nmore: m\n  b\n  new\n"} {
		if got, err := addToGroup(groups, group, "new"); got != want || err != nil {
			t.Errorf("%s: %q, %v", group, got, err)
		}
	}
	if _, err := addToGroup(groups, "others", "new"); err == nil || !strings.Contains(err.Error(), `add the line "others: DESCRIPTION"`) {
		t.Errorf("another group: %v", err)
	}
}
