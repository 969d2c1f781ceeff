package repair

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// letterFilter holds the flags that select dead letters, in the form of the request.
type letterFilter struct {
	Status      string   `json:"status,omitempty" placeholder:"STATUS" help:"FAILED, RETRYING, RESOLVED or DISCARDED."`
	Stage       string   `json:"stage,omitempty" placeholder:"STAGE" help:"INGESTION, PUBLISHING, VALIDATION or AGGREGATION."`
	TenantID    string   `json:"tenantId,omitempty" name:"tenant" placeholder:"ID" aliases:"tenant-id" help:"Of one tenant."`
	Fingerprint string   `json:"fingerprint,omitempty" placeholder:"HEX" help:"Of one cause, as groups shows it."`
	Feature     string   `json:"feature,omitempty" placeholder:"KEY" help:"Of one feature."`
	Consumer    string   `json:"consumer,omitempty" placeholder:"NAME" help:"Of the consumer that failed."`
	Topic       string   `json:"topic,omitempty" placeholder:"NAME" help:"Of the failed event's topic."`
	From        string   `json:"from,omitempty" placeholder:"TIME" help:"First failed at or after this time, RFC 3339."`
	To          string   `json:"to,omitempty" placeholder:"TIME" help:"First failed before this time, RFC 3339."`
	Code        string   `json:"reason,omitempty" placeholder:"CODE" help:"With this code."`
	IDs         []string `json:"ids,omitempty" name:"id" placeholder:"ID" help:"By their ids; may be given more than once."`
}

// bulkFlags holds the flags of a bulk that are not members of its request.
type bulkFlags struct {
	letterFilter
	Yes bool `help:"Skip the confirmation."`
}

// bulkResult is the part of a response that is used in messages.
type bulkResult struct {
	Matched   int               `json:"matched"`
	Eligible  int               `json:"eligible"`
	Requested int               `json:"requested"`
	Refused   []json.RawMessage `json:"refused"`
}

// bulk prints the result. Without --yes it first shows a dry run and asks for confirmation.
func bulk(a *app.App, l *app.Call) error {
	own, dry := app.FlagOf[bulkFlags](l, "Own"), app.FlagOf[*bool](l, "InDryRun")
	dryRun := dry != nil && *dry
	var confirmed *int
	if !own.Yes || dryRun {
		raw, plan, err := sendBulk(a, l, true, nil)
		if err != nil {
			return err
		}
		if dryRun {
			return printBulk(a, raw, plan)
		}
		action := *app.FlagOf[*string](l, "InAction")
		if plan.Eligible == 0 {
			a.Report("No dead letter to %s: of %d that match, 0 allow it.", action, plan.Matched)
			return errors.Join(printBulk(a, raw, plan), app.ErrNo)
		}
		agreed, err := a.Agreed(fmt.Sprintf("%d match, %d would be left alone. %s %d dead letters?", plan.Matched,
			plan.Matched-plan.Eligible, action, plan.Eligible))
		if err != nil {
			return err
		}
		if !agreed {
			return app.ErrNo
		}
		confirmed = &plan.Matched
	}
	raw, done, err := sendBulk(a, l, false, confirmed)
	if err != nil {
		return err
	}
	return printBulk(a, raw, done)
}

// sendBulk sends the request; confirmed is the number of dead letters that a dry run showed, nil without one.
func sendBulk(a *app.App, l *app.Call, dryRun bool, confirmed *int) (raw json.RawMessage, result bulkResult, err error) {
	l.Amend = func(_ *app.App, _ *app.Call, in map[string]any) error {
		in["filter"], in["dryRun"] = app.FlagOf[bulkFlags](l, "Own").letterFilter, dryRun
		if confirmed != nil && in["expectedMatched"] == nil {
			in["expectedMatched"] = *confirmed
		}
		return nil
	}
	r, err := l.Request(a)
	if err != nil {
		return nil, result, err
	}
	if dryRun { // it must not use the key of the request: the real one would get its answer
		r.Header.Set("Idempotency-Key", rand.Text())
	}
	cl, err := a.NewClient()
	if err != nil {
		return nil, result, err
	}
	if raw, err = cl.Do(a.Ctx, r); err != nil {
		return nil, result, err
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, result, fmt.Errorf("read the answer: %w", err)
	}
	return raw, result, nil
}

// printBulk prints an answer; a table has a row for each reason of refusal.
func printBulk(a *app.App, raw json.RawMessage, r bulkResult) error {
	if a.Flags.Output != "table" {
		return a.Object(raw)
	}
	members, err := output.ParseMembers(raw)
	if err != nil {
		return err
	}
	for _, name := range []string{"bulkId", "matched", "eligible", "requested"} {
		if value := members.Find(name); value != nil {
			fmt.Fprintf(a.Stdout, "%-9s  %s\n", name, output.Cell(value, "table"))
		}
	}
	if len(r.Refused) == 0 {
		return nil
	}
	fmt.Fprintln(a.Stdout)
	return a.PrintAll(r.Refused, "count", "code", "reason")
}
