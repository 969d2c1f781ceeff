package sdk

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheGoSDKKnowsEachMember: operations.json follows from the OpenAPI document (http/openapi_sdk_test.go). The tests of the other SDKs
// compare it with theirs.
func TestTheGoSDKKnowsEachMember(t *testing.T) {
	text, err := os.ReadFile("operations.json")
	if err != nil {
		t.Fatal(err)
	}
	var operations []struct {
		Operation, Request       string
		Parameters, Body, Answer []string
	}
	if err := json.Unmarshal(text, &operations); err != nil || len(operations) == 0 {
		t.Fatal(len(operations), err)
	}
	words := wordsOf(t, "go", "*.go")
	for _, o := range operations {
		for _, member := range append(append(o.Body, o.Answer...), o.Parameters...) {
			place, name, _ := strings.Cut(member, " ")
			switch place {
			case "header", "path":
				continue
			case "query":
			default:
				name = strings.TrimSuffix(place[strings.LastIndexByte(place, '.')+1:], "[]")
			}
			if !words[name] {
				t.Errorf("sdk/go does not know %s of %s", member, o.Operation)
			}
		}
	}
}

var word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9_]*`)

// wordsOf returns the words of a language's sources, without tests.
func wordsOf(t *testing.T, folder, pattern string) map[string]bool {
	words := map[string]bool{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "test") {
			return err
		}
		if match, _ := filepath.Match(pattern, d.Name()); !match {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, w := range word.FindAllString(string(text), -1) {
			words[w] = true
		}
		return err
	})
	if err != nil || len(words) == 0 {
		t.Fatal(folder, len(words), err)
	}
	return words
}
