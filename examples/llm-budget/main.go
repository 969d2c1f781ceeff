// Command llm-budget answers a prompt within a tenant's monthly budget of tokens. The number of tokens is known only after the
// model has answered, so the program holds an estimate, asks the model, and commits the actual number:
//
//	export METERPLEX_URL=http://127.0.0.1:8080 METERPLEX_KEY=mp_live_…   # a key with the scope entitlements:reserve
//	llm-budget -id chat-1 -estimate 500 "Why is the sky blue?"
//
// The model is pretended. The program uses the Go SDK only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/meterplex/meterplex/sdk/go"
)

// modelLasts bounds the model's answer.
const modelLasts = 2 * time.Minute

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
	// Limits need no queue, so the client has no directory.
	client, err := meterplex.New(os.Getenv("METERPLEX_URL"), os.Getenv("METERPLEX_KEY"), "", &meterplex.Options{Memory: true})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	text, err := answer(ctx, client, m, meterplex.ReserveRequest{Feature: *feature, Amount: *estimate, ReservationID: *id}, flag.Arg(0))
	if err != nil {
		return err
	}
	fmt.Println(text)
	return nil
}

// answer asks the model if the budget allows the estimate, and charges the tokens that the model used.
func answer(ctx context.Context, client *meterplex.Client, m model, hold meterplex.ReserveRequest, prompt string) (text string, err error) {
	done, err := client.WithReservation(ctx, hold, func(ctx context.Context) (used int64, err error) {
		ctx, cancel := context.WithTimeout(ctx, modelLasts)
		defer cancel()
		text, used, err = m.complete(ctx, prompt)
		return used, err
	})
	if done != nil {
		fmt.Fprintf(os.Stderr, "held %d, used %d, released %d, remaining %s\n", hold.Amount, done.Amount, done.Released,
			remaining(done.Remaining))
	}
	return text, err
}

// remaining formats the rest of a limit.
func remaining(n *int64) string {
	if n == nil {
		return "unlimited"
	}
	return fmt.Sprint(*n)
}
