package events

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

var update = flag.Bool("update", false, "write the file of the vocabulary of this binary")

// The vocabulary of this binary has a file, so that every later release embeds it. A
// file never changes: its name is its hash.
func TestEveryVocabularyIsEmbedded(t *testing.T) {
	current := CurrentVocabulary()
	path := filepath.Join("vocabularies", current.Hash()+".json")
	if *update {
		must.OK(t, os.WriteFile(path, []byte(current.Document()), 0o644))
	}
	document, err := os.ReadFile(path)
	if err != nil || string(document) != current.Document() {
		t.Errorf("events/%s, the vocabulary of this binary, is missing or differs (%v): run make generate and commit the file", path, err)
	}
	files, err := os.ReadDir("vocabularies")
	must.OK(t, err)
	for _, file := range files {
		document, err := os.ReadFile(filepath.Join("vocabularies", file.Name()))
		must.OK(t, err)
		sum := sha256.Sum256(document)
		hash := hex.EncodeToString(sum[:])
		if file.Name() != hash+".json" {
			t.Errorf("events/vocabularies/%s has the hash %s: a vocabulary that was used never changes", file.Name(), hash)
			continue
		}
		if v, err := ParseVocabulary(hash, string(document)); err != nil || v.Document() != string(document) {
			t.Errorf("events/vocabularies/%s: %v", file.Name(), err)
		}
		if _, ok := EmbeddedVocabulary(hash); !ok && !*update {
			t.Errorf("events/vocabularies/%s is not embedded", file.Name())
		}
	}
	if v, ok := EmbeddedVocabulary(current.Hash()); v != current || !ok {
		t.Error("the vocabulary of this binary is not found by its hash")
	}
}
