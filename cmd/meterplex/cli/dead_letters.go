package cli

import (
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// DeadLettersCmd groups the dead-letters commands.
type DeadLettersCmd struct {
	List    DeadLettersList    `cmd:"" help:"List events that failed."`
	Groups  DeadLettersGroups  `cmd:"" help:"Group dead letters by cause, the biggest group first."`
	Show    DeadLettersShow    `cmd:"" help:"Show a dead letter with its payload and failure."`
	Retry   DeadLettersRetry   `cmd:"" help:"Retry a dead letter (never counted twice)."`
	Discard DeadLettersDiscard `cmd:"" help:"Discard a dead letter: its event is never counted."`
	Bulk    DeadLettersBulk    `cmd:"" help:"Retry or discard the dead letters that match a filter, after a preview."`
}

// LetterFilter holds the flags that select dead letters.
type LetterFilter struct {
	Status      string `placeholder:"STATUS" help:"FAILED, RETRYING, RESOLVED or DISCARDED."`
	Stage       string `placeholder:"STAGE" help:"INGESTION, PUBLISHING, VALIDATION or AGGREGATION."`
	TenantID    string `placeholder:"ID" aliases:"tenant" help:"Of one tenant."`
	Fingerprint string `placeholder:"HEX" help:"Of one cause, as groups shows it."`
	Feature     string `placeholder:"KEY" help:"Of one feature."`
	Consumer    string `placeholder:"NAME" help:"Of the consumer that failed."`
	Topic       string `placeholder:"NAME" help:"Of the failed event's topic."`
	From        string `placeholder:"TIME" help:"First failed at or after this time, RFC 3339."`
	To          string `placeholder:"TIME" help:"First failed before this time, RFC 3339."`
}

func (f *LetterFilter) members(code string) map[string]string {
	return map[string]string{
		"status": f.Status, "stage": f.Stage, "tenantId": f.TenantID, "reason": code, "fingerprint": f.Fingerprint,
		"feature": f.Feature, "consumer": f.Consumer, "topic": f.Topic, "from": f.From, "to": f.To,
	}
}

func (f *LetterFilter) query(code string) url.Values {
	q := url.Values{}
	for name, value := range f.members(code) {
		q.Set(name, value)
	}
	return q
}

// LetterList holds the flags of a list of dead letters or of their groups.
type LetterList struct {
	LetterFilter
	Reason string `placeholder:"CODE" aliases:"code" help:"With this code."`
	Limit
}

func (c *LetterList) list(a *app, path string, columns ...string) error {
	return a.list(path, c.query(c.Reason), c.Limit.Limit, columns...)
}

// DeadLettersList lists dead letters.
type DeadLettersList struct{ LetterList }

// Run prints the rows.
func (c *DeadLettersList) Run(a *app) error {
	return c.list(a, "/dead-letters", "id", "status", "stage", "code", "eventId", "feature", "tenantId", "retryCount", "lastFailedAt", "fingerprint")
}

// DeadLettersGroups groups dead letters.
type DeadLettersGroups struct{ LetterList }

// Run prints the rows.
func (c *DeadLettersGroups) Run(a *app) error {
	return c.list(a, "/dead-letters/groups", "fingerprint", "count", "stage", "code", "feature", "tenants", "statuses", "lastFailedAt", "reason", "sampleId")
}

// DeadLettersShow shows a dead letter.
type DeadLettersShow struct {
	ID string `arg:"" help:"The dead letter's id."`
}

// Run prints it.
func (c *DeadLettersShow) Run(a *app) error { return a.show(client.Path("dead-letters", c.ID), nil) }

// DeadLettersRetry requests a retry.
type DeadLettersRetry struct {
	ID     string `arg:"" help:"The dead letter's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

// Run prints the accepted request: the retry itself is executed later.
func (c *DeadLettersRetry) Run(a *app) error {
	return a.create(client.Path("dead-letters", c.ID, "retry"), c.IdempotencyKey, map[string]string{"reason": c.Reason})
}

// DeadLettersDiscard closes a dead letter.
type DeadLettersDiscard struct {
	ID     string `arg:"" help:"The dead letter's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

// Run prints the position of the discard in the log.
func (c *DeadLettersDiscard) Run(a *app) error {
	return a.create(client.Path("dead-letters", c.ID, "discard"), c.IdempotencyKey, map[string]string{"reason": c.Reason})
}
