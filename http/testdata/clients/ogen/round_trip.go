// Command ogen sends an event by the client that ogen generates, reads its receipt, pages through a list, and reads an error.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ogen-go/ogen/ogenerrors"

	"clients/ogen/api"
)

// keys holds the key of a tenant.
type keys struct{ tenant string }

func (k keys) TenantKey(context.Context, api.OperationName) (api.TenantKey, error) {
	return api.TenantKey{Token: k.tenant}, nil
}

func (keys) OperatorKey(context.Context, api.OperationName) (api.OperatorKey, error) {
	return api.OperatorKey{}, ogenerrors.ErrSkipClientSecurity
}

func main() {
	c, err := api.NewClient(os.Getenv("METERPLEX_URL"), keys{os.Getenv("METERPLEX_KEY")})
	must(err)
	ctx, now := context.Background(), time.Now()
	event := func(id, feature string) api.UsageEvent {
		return api.UsageEvent{EventId: id, Feature: feature, Amount: api.NewOptInt64(3), Timestamp: now}
	}
	answer, err := c.IngestUsage(ctx, &api.UsageBatch{Events: []api.UsageEvent{event("ogen-1", "api_calls"), event("ogen-2", "storage"),
		event("ogen-3", "foobar")}}, api.IngestUsageParams{})
	must(err)
	verdict := answer.(*api.BatchVerdictHeaders).Response
	check(verdict.Accepted == 2 && verdict.Rejected == 1 && verdict.Events[2].Code.Value == "feature_not_found", verdict)
	found, err := c.GetReceipt(ctx, api.GetReceiptParams{EventId: "ogen-1"})
	must(err)
	receipt := found.(*api.ReceiptHeaders).Response
	check(receipt.Recorded.Position == verdict.Events[0].Position.Value, receipt)
	read := 0
	for params := (api.ListUsageEventsParams{Limit: api.NewOptInt64(1)}); ; {
		listed, err := c.ListUsageEvents(ctx, params)
		must(err)
		page := listed.(*api.PageUsageEventRow)
		read += len(page.Data)
		if page.NextCursor.Null {
			break
		}
		params.Cursor = api.NewOptString(page.NextCursor.Value)
	}
	check(read >= 2, read)
	missing, err := c.GetReceipt(ctx, api.GetReceiptParams{EventId: "ogen-9"})
	must(err)
	problem := missing.(*api.GetReceiptNotFound)
	check(problem.Status == 404 && problem.Code == "not_found", problem)
	fmt.Println("round trip")
}

func check(holds bool, answer any) {
	if !holds {
		panic(fmt.Sprintf("%+v", answer))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
