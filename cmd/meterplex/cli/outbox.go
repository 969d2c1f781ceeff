package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"time"
)

// OutboxCmd groups the outbox commands.
type OutboxCmd struct {
	Show     OutboxShow     `cmd:"" default:"withargs" help:"Show how far the log is published, by partition (the default)."`
	Withheld OutboxWithheld `cmd:"" help:"List records that the broker refused, newest first."`
}

// OutboxShow reads GET /outbox.
type OutboxShow struct{}

// Run prints the partitions as a table or CSV; other formats include the totals.
func (c *OutboxShow) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := cl.Get(a.ctx, "/outbox", nil)
	if err != nil {
		return err
	}
	if a.flags.Output != "table" && a.flags.Output != "csv" {
		return a.object(raw)
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
	a.report("%d events behind the relay, %d of them never published, the oldest for %s; %d partitions without a lease, %d failing.",
		sum.LagEvents, sum.Unpublished, oldest, sum.Unleased, sum.Failing)
	p := a.rows("partition", "head", "cursor", "lagEvents", "oldestUnpublishedSeconds", "owner", "leaseUntil", "attempts", "lastFailedAt", "lastError")
	for _, partition := range answer.Partitions {
		if err := p.Row(partition); err != nil {
			return err
		}
	}
	return p.Close()
}

// OutboxWithheld lists withheld records.
type OutboxWithheld struct {
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of one tenant."`
	Topic    string `placeholder:"NAME" help:"Of one topic, e.g. usage.raw."`
	Limit
}

// Run prints the rows.
func (c *OutboxWithheld) Run(a *app) error {
	query := url.Values{}
	for name, value := range map[string]string{"tenantId": c.TenantID, "topic": c.Topic} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return a.list("/outbox/withheld", query, c.Limit.Limit, "position", "topic", "subject", "tenantId", "withheldAt", "late", "deadLetterId", "reason")
}
