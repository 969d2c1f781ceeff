package repair

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// OutboxCmd groups the outbox commands.
type OutboxCmd struct {
	Show OutboxShow `cmd:"" default:"withargs" help:"Show how far the log is published, by partition (the default)."`
}

// OutboxShow reads GET /outbox.
type OutboxShow struct{}

// Run prints the partitions as a table or CSV; other formats include the totals.
func (c *OutboxShow) Run(a *app.App) error {
	raw, err := a.Get("/outbox", nil)
	if err != nil {
		return err
	}
	if a.Flags.Output != "table" && a.Flags.Output != "csv" {
		return a.Object(raw)
	}
	var answer struct {
		Totals struct {
			LagEvents, Unpublished   int64
			OldestUnpublishedSeconds float64
			Unleased, Failing        int
		}
		Partitions []json.RawMessage
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	sum := &answer.Totals
	oldest := time.Duration(sum.OldestUnpublishedSeconds * float64(time.Second)).Round(time.Millisecond)
	a.Report("%d events to publish, %d of them never published, the oldest for %s; %d partitions without a lease, %d failing.",
		sum.LagEvents, sum.Unpublished, oldest, sum.Unleased, sum.Failing)
	return a.PrintAll(answer.Partitions, "partition", "head", "cursor", "lagEvents", "oldestUnpublishedSeconds", "owner", "leaseUntil",
		"attempts", "lastFailedAt", "lastError")
}
