package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// model pretends to be a language model.
type model struct {
	tokens int64 // that it uses; 0: the words of the prompt and the answer
	fails  bool
}

// complete returns the answer to a prompt and the number of tokens used, which may be above 0 with an error, too.
func (m model) complete(ctx context.Context, prompt string) (text string, used int64, err error) {
	if m.fails || ctx.Err() != nil {
		return "", 0, errors.Join(errors.New("the model failed"), ctx.Err())
	}
	words := len(strings.Fields(prompt))
	text = fmt.Sprintf("Your prompt has %d words.", words)
	if used = m.tokens; used == 0 {
		used = int64(words + len(strings.Fields(text)))
	}
	return text, used, nil
}
