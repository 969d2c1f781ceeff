package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// vocabulary is a row of log_vocabularies. The copies that releases embed are not used here.
type vocabulary struct {
	subjects map[int16]term
	fault    error // why the row cannot be used
}

// term has the name and the classes of a subject's events.
type term struct {
	Subject                    int16
	Version                    int
	Type, Retention, SchemaURI string
}

const vocabulariesSQL = `SELECT hash, document FROM log_vocabularies`

// readVocabularies reads all vocabularies by hash.
func readVocabularies(ctx context.Context, tx pgx.Tx) (map[string]*vocabulary, error) {
	all := map[string]*vocabulary{}
	var hash, document string
	err := each(ctx, tx, vocabulariesSQL, nil, []any{&hash, &document}, func() error {
		all[hash] = newVocabulary(hash, document)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the vocabularies: %w", err)
	}
	return all, nil
}

func newVocabulary(hash, document string) *vocabulary {
	v := &vocabulary{subjects: map[int16]term{}}
	var content struct{ Subjects []term }
	if sum := sha256.Sum256([]byte(document)); hex.EncodeToString(sum[:]) != hash {
		v.fault = fmt.Errorf("the document of its vocabulary has the SHA-256 %x, not %.80s", sum, hash)
	} else if err := json.Unmarshal([]byte(document), &content); err != nil {
		v.fault = fmt.Errorf("the document of its vocabulary %s cannot be read: %w", hash, err)
	}
	for _, t := range content.Subjects {
		v.subjects[t.Subject] = t
	}
	return v
}

// termOf returns the event's subject in the event's own vocabulary.
func (s *source) termOf() (term, error) {
	if s.vocabulary == nil {
		return term{}, fmt.Errorf("log_vocabularies has no vocabulary %.80q", s.vocabularyHash)
	}
	if s.vocabulary.fault != nil {
		return term{}, s.vocabulary.fault
	}
	t, ok := s.vocabulary.subjects[s.subject]
	if !ok {
		return term{}, fmt.Errorf("its vocabulary %s has no subject %d", s.vocabularyHash, s.subject)
	}
	return t, nil
}
