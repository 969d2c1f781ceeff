package meterplex_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/sdk/go"
)

// The examples are the blocks of README.md: TestReadme compares them.

const key = "mp_test_key"

var (
	ctx  = context.Background()
	mux  = http.NewServeMux()
	work = func(context.Context) (int64, error) { return 412, nil }
)

// begin returns the service of an example, a directory, and what removes both.
func begin() (url, dir string, end func()) {
	url, stop := meterplex.ServeExamples()
	dir, err := os.MkdirTemp("", "meterplex-example-")
	if err != nil {
		log.Fatal(err)
	}
	return url, dir, func() { stop(); _ = os.RemoveAll(dir) }
}

// open returns a client of an example, and what ends it.
func open() (*meterplex.Client, func()) {
	url, dir, end := begin()
	client, err := meterplex.New(url, key, dir, &meterplex.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		log.Fatal(err)
	}
	return client, func() { client.Close(ctx); end() }
}

func Example() {
	url, dir, end := begin()
	defer end()

	client, err := meterplex.New(url, key, dir, nil) // dir: for this tenant, on a disk that survives restarts
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	if _, err := client.Record(ctx, meterplex.Event{Feature: "api_calls", Amount: 1}); err != nil {
		log.Fatal(err)
	}

	fmt.Printf("%+v, %d accepted\n", client.Flush(ctx), client.Stats().Accepted)
	// Output: {Events:0 Oldest:0s}, 1 accepted
}

func ExampleEventID() {
	client, end := open()
	defer end()
	const tenant = "0198c2f0-0000-7000-8000-000000000000"
	finishedAt := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)

	id, err := meterplex.EventID(tenant, "exports", "report-17", finishedAt)
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Record(ctx, meterplex.Event{EventID: id, Timestamp: finishedAt, Feature: "exports", Amount: 1, Metadata: map[string]any{"region": "eu"}})

	fmt.Println(id, err)
	// Output: 759a45692a23c950dbf1f1028975fc35 <nil>
}

func ExampleClient_Rejected() {
	client, end := open()
	defer end()
	if _, err := client.Record(ctx, meterplex.Event{EventID: "e1", Feature: "unknown", Amount: 1}); err != nil {
		log.Fatal(err)
	}
	client.Flush(ctx)

	for rejection, err := range client.Rejected() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rejection.Event.EventID, rejection.Verdict.Code, rejection.Verdict.Reason)
		if err := client.Acknowledge(rejection.Event.EventID); err != nil {
			log.Fatal(err)
		}
	}

	for range client.Rejected() {
		fmt.Println("it is not acknowledged")
	}
	// Output: e1 feature_not_found Feature "unknown" not found
}

func ExampleClient_Consume() {
	client, end := open()
	defer end()

	used, err := client.Consume(ctx, meterplex.ConsumeRequest{Feature: "tokens", Amount: 900})
	var refused *meterplex.Error
	switch {
	case errors.As(err, &refused) && refused.Code == "quota_exceeded":
		fmt.Println("remaining:", *refused.Remaining)
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("used:", *used.Used)
	}

	// Output: remaining: 600
}

func ExampleClient_Check() {
	client, end := open()
	defer end()
	check, err := client.Check(ctx, meterplex.CheckRequest{Feature: "tokens", Amount: 500})
	fmt.Println(check.Allowed, check.Source, err)
	// Output: true service <nil>
}

func ExampleAmount() {
	fmt.Println(meterplex.Amount("1.5", "GB", 3))
	_, err := meterplex.Amount("0.0001", "GB", 3)
	fmt.Println(err)
	// Output:
	// 1500 <nil>
	// meterplex: amount_invalid: The amount "0.0001" GB × 10^3 is no integer: use a larger scale
}

func ExampleClient_WithReservation() {
	client, end := open()
	defer end()
	var err error

	_, err = client.WithReservation(ctx, meterplex.ReserveRequest{Feature: "tokens", Amount: 500}, func(ctx context.Context) (used int64, err error) {
		return work(ctx)
	})

	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_Aggregates() {
	client, end := open()
	defer end()

	for figure, err := range client.Aggregates(ctx, meterplex.Query{Period: "2026-11"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(figure.Feature, figure.Amount)
	}

	// Output: api_calls 9007199254740993
}

func ExampleClient_Middleware() {
	client, end := open()
	defer end()

	handler := client.Middleware("api_calls", &meterplex.MiddlewareOptions{
		Count: func(s meterplex.Served) bool { return s.Status < 400 },
	})(mux)

	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	client.Flush(ctx)
	fmt.Println(client.Stats().Accepted)
	// Output: 1
}

func ExampleLLM() {
	client, end := open()
	defer end()
	const requestID, prompt = "req-1", "Why is the sky blue?"
	type reply struct{ InputTokens, OutputTokens int64 }
	model := func(context.Context, string) (reply, error) { return reply{5, 40}, nil }
	var err error

	llm := meterplex.LLM{Client: client, Input: "input_tokens", Output: "output_tokens"}
	err = llm.Call(ctx, requestID, func(ctx context.Context) (meterplex.Tokens, error) {
		answer, err := model(ctx, prompt)
		return meterplex.Tokens{Input: answer.InputTokens, Output: answer.OutputTokens}, err
	})

	client.Flush(ctx)
	fmt.Println(client.Stats().Accepted, err)
	// Output: 2 <nil>
}

// Each block of README.md is in an example.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	for _, b := range blocks {
		code, _, _ := strings.Cut(b, "```")
		var indented strings.Builder
		for line := range strings.Lines(code) {
			if line != "\n" {
				indented.WriteByte('\t')
			}
			indented.WriteString(line)
		}
		if !strings.Contains(string(examples), "\n"+indented.String()) {
			t.Errorf("no example has\n%s", code)
		}
	}
	if len(blocks) != 8 || strings.Count(string(readme), "\n") > 120 {
		t.Errorf("%d blocks, %d lines", len(blocks), strings.Count(string(readme), "\n"))
	}
}
