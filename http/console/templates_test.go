package console

import (
	"io/fs"
	"regexp"
	"testing"
)

// A limit is a warning from 80 % of it, and bad above 100 %; numbers keep each digit.
func TestUsedPart(t *testing.T) {
	for _, c := range []struct {
		used, limit string
		want        usedPart
	}{
		{"799", "1000", usedPart{"799", "1000", "1000", "79 %", false}},
		{"1000", "1000", usedPart{"799", "1000", "1000", "100 %", false}},
		{"9007199254740993", "9007199254740992", usedPart{"7205759403792793", "9007199254740992", "9007199254740993", "100 %", true}},
		{"5", "1", usedPart{"0", "1", "5", "500 %", true}}, {"5", "0", usedPart{"-1", "0", "5", "", true}},
	} {
		if got := part(c.used, c.limit); *got != c.want {
			t.Errorf("%s of %s: %+v", c.used, c.limit, *got)
		}
	}
	if got := count("+18014398509481983.50") + " " + money("9007199254740991") + " " + money("-1200"); got !=
		"+18,014,398,509,481,983.50 9,007,199,254.740991 -0.0012" {
		t.Error(got)
	}
	if got := whole("25615.87") + whole(""); got != "25,616" {
		t.Error(got)
	}
	for seconds, want := range map[string]string{"0": "0 s", "0.209963": "0.21 s", "50": "50 s", "90": "1 min 30 s", "3600": "1 h 0 min",
		"90061.5": "1 d 1 h"} {
		if got := span(seconds); got != want {
			t.Errorf("%q seconds are %q", seconds, got)
		}
	}
	if got := count("-1234567") + count("123") + count("12.50") + count(""); got != "-1,234,56712312.50" {
		t.Error(got)
	}
}

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
