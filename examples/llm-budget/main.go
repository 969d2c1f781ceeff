// Command llm-budget answers a prompt within a tenant's monthly budget of tokens. The number of tokens is known only after the
// model has answered, so the program holds an estimate, asks the model, and commits the actual number:
//
//	export METERPLEX_URL=http://127.0.0.1:8080 METERPLEX_KEY=mp_live_…   # a key with the scope entitlements:reserve
//	llm-budget -id chat-1 -estimate 500 "Why is the sky blue?"
//
// The model is pretended. The program uses the standard library and Meterplex's HTTP API only; budget.go may be copied.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"time"
)

const (
	// holdLasts is longer than the others together, so that no hold expires before its tokens are committed.
	holdLasts   = 5 * time.Minute
	modelLasts  = 2 * time.Minute
	settleLasts = 2 * time.Minute
	// attemptLasts bounds one attempt of a request. Without an answer the same request is sent again.
	attemptLasts = 10 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "llm-budget:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var m model
	id := flag.String("id", "", "id of the request; the same id is never charged twice")
	feature := flag.String("feature", "tokens", "the QUOTA feature that limits tokens")
	estimate := flag.Int64("estimate", 500, "tokens to hold: the prompt's and the longest answer's")
	flag.Int64Var(&m.tokens, "tokens", 0, "pretend that the model uses so many tokens (0: the words of prompt and answer)")
	flag.BoolVar(&m.fails, "fail", false, "pretend that the model fails before it uses tokens")
	flag.Parse()
	if *id == "" || flag.NArg() != 1 {
		return errors.New("usage: llm-budget -id ID [-estimate N] PROMPT")
	}
	b := &Budget{
		URL: os.Getenv("METERPLEX_URL"), Key: os.Getenv("METERPLEX_KEY"), Feature: *feature,
		Client: &http.Client{Timeout: attemptLasts},
	}
	text, err := answer(ctx, b, m, *id, flag.Arg(0), *estimate)
	if err != nil {
		return err
	}
	fmt.Println(text)
	return nil
}

// answer asks the model if the budget allows the estimate, and charges the tokens that the model used.
func answer(ctx context.Context, b *Budget, m model, id, prompt string, estimate int64) (text string, err error) {
	if err := b.Hold(ctx, id, estimate, holdLasts); err != nil {
		return "", err // the model is not asked
	}
	asking, cancel := context.WithTimeout(ctx, modelLasts)
	text, used, err := m.complete(asking, prompt)
	cancel()

	// The tokens are used, or the hold is not needed, even if the caller has given up by now.
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLasts)
	defer cancel()
	if used == 0 {
		return text, errors.Join(err, b.Release(settling, id))
	}
	settled, failed := b.Commit(settling, id, used)
	if failed != nil {
		return "", errors.Join(err, fmt.Errorf("%d tokens were used and may not be recorded: %w", used, failed))
	}
	fmt.Fprintf(os.Stderr, "held %d, used %d, released %d, remaining %s\n", estimate, used, settled.Released, remaining(settled.Remaining))
	return text, err
}

// remaining formats the rest of a limit.
func remaining(n *int64) string {
	if n == nil {
		return "unlimited"
	}
	return fmt.Sprint(*n)
}
