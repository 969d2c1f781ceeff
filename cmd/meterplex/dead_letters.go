package main

import "net/url"

// DeadLettersCmd is the noun.
type DeadLettersCmd struct {
	List  DeadLettersList  `cmd:"" help:"List events that failed."`
	Show  DeadLettersShow  `cmd:"" help:"Show one with its payload and why it failed."`
	Retry DeadLettersRetry `cmd:"" help:"Send one on its way again; it counts at most once."`
}

// DeadLettersList lists dead letters.
type DeadLettersList struct {
	Status   string `placeholder:"STATUS" help:"FAILED, RETRYING, RESOLVED or DISCARDED."`
	Stage    string `placeholder:"STAGE" help:"INGESTION, PUBLISHING, VALIDATION or AGGREGATION."`
	TenantID string `placeholder:"ID" help:"Of one tenant."`
	Reason   string `placeholder:"CODE" help:"With this reason."`
	From     string `placeholder:"TIME" help:"Failed at or after this time, RFC 3339."`
	To       string `placeholder:"TIME" help:"Failed before this time, RFC 3339."`
	Limit
}

// Run prints the rows.
func (c *DeadLettersList) Run(a *app) error {
	q := url.Values{
		"status": {c.Status}, "stage": {c.Stage}, "tenantId": {c.TenantID},
		"reason": {c.Reason}, "from": {c.From}, "to": {c.To},
	}
	return a.list("/dead-letters", q, c.Limit.Limit, "id", "status", "stage", "code", "eventId", "feature", "tenantId", "retryCount", "lastFailedAt")
}

// DeadLettersShow shows a dead letter.
type DeadLettersShow struct {
	ID string `arg:"" help:"The dead letter's id."`
}

// Run prints it.
func (c *DeadLettersShow) Run(a *app) error { return a.show(pathOf("dead-letters", c.ID), nil) }

// DeadLettersRetry asks for a retry.
type DeadLettersRetry struct {
	ID     string `arg:"" help:"The dead letter's id."`
	Reason string `required:"" placeholder:"TEXT" help:"Why; it is kept in the log."`
	Once
}

// Run prints what was accepted: the retry itself is carried out afterwards.
func (c *DeadLettersRetry) Run(a *app) error {
	return a.create(pathOf("dead-letters", c.ID, "retry"), c.IdempotencyKey, map[string]string{"reason": c.Reason})
}
