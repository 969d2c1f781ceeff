// Command clients sends an event by the client that oapi-codegen generates, reads its receipt, pages through a list, and reads an error.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"clients/api"
)

func main() {
	key := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("METERPLEX_KEY"))
		return nil
	}
	c, err := api.NewClientWithResponses(os.Getenv("METERPLEX_URL"), api.WithRequestEditorFn(key))
	must(err)
	ctx, now := context.Background(), time.Now()
	amount := func(n int64) *int64 { return &n }
	verdict, err := c.IngestUsageWithResponse(ctx, nil, api.UsageBatch{Events: []api.UsageEvent{
		{EventId: "go-1", Feature: "api_calls", Amount: amount(3), Timestamp: now}, {EventId: "go-2", Feature: "foobar", Amount: amount(1),
			Timestamp: now}}})
	must(err)
	if v := verdict.JSON202; v == nil || v.Accepted != 1 || v.Rejected != 1 || *v.Events[1].Code != "feature_not_found" {
		panic(string(verdict.Body))
	}
	receipt, err := c.GetReceiptWithResponse(ctx, "go-1", nil)
	must(err)
	if r := receipt.JSON200; r == nil || r.Recorded.Position != *verdict.JSON202.Events[0].Position {
		panic(string(receipt.Body))
	}
	read, one := 0, int64(1)
	for params := (api.ListUsageEventsParams{Limit: &one}); ; {
		page, err := c.ListUsageEventsWithResponse(ctx, &params)
		must(err)
		if page.JSON200 == nil {
			panic(string(page.Body))
		}
		read += len(page.JSON200.Data)
		if params.Cursor = page.JSON200.NextCursor; params.Cursor == nil {
			break
		}
	}
	missing, err := c.GetReceiptWithResponse(ctx, "go-9", nil)
	must(err)
	if p := missing.ApplicationproblemJSON404; read < 1 || p == nil || p.Code != "not_found" {
		panic(fmt.Sprint(read, string(missing.Body)))
	}
	fmt.Println("round trip")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
