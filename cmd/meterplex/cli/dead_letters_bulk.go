package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// DeadLettersCmd groups the commands of dead letters that are not one request.
type DeadLettersCmd struct {
	Bulk DeadLettersBulk `cmd:"" help:"Retry or discard the dead letters that match a filter, after a preview."`
}

// letterFilter holds the flags that select dead letters.
type letterFilter struct {
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

// DeadLettersBulk retries or discards many dead letters at once.
type DeadLettersBulk struct {
	Action string `arg:"" enum:"retry,discard" help:"retry or discard."`
	letterFilter
	Code   string   `placeholder:"CODE" help:"With this code."`
	IDs    []string `name:"id" placeholder:"ID" help:"By their ids; may be given more than once."`
	Reason string   `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	DryRun bool     `help:"Only show the effect."`
	Yes    bool     `help:"Skip the confirmation."`

	ExpectedMatched *int `placeholder:"N" help:"Change no dead letter unless N match. Without --yes it is the number that was confirmed."`
	Once
}

// bulkResult is the part of a response that is used in messages.
type bulkResult struct {
	Matched   int               `json:"matched"`
	Eligible  int               `json:"eligible"`
	Requested int               `json:"requested"`
	Refused   []json.RawMessage `json:"refused"`
}

// Run prints the result. Without --yes it first shows a dry run and asks for
// confirmation.
func (c *DeadLettersBulk) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	if !c.Yes || c.DryRun {
		raw, plan, err := c.send(a, cl, true)
		if err != nil {
			return err
		}
		if c.DryRun {
			return a.bulk(raw, plan)
		}
		if plan.Eligible == 0 {
			a.report("Nothing to %s: %d match, none of them can be.", c.Action, plan.Matched)
			return errors.Join(a.bulk(raw, plan), errNo)
		}
		agreed, err := a.agreed(fmt.Sprintf("%d match, %d would be left alone. %s %d dead letters?", plan.Matched, plan.Matched-plan.Eligible, c.Action, plan.Eligible))
		if err != nil {
			return err
		}
		if !agreed {
			return errNo
		}
		if c.ExpectedMatched == nil {
			c.ExpectedMatched = &plan.Matched
		}
	}
	raw, done, err := c.send(a, cl, false)
	if err != nil {
		return err
	}
	return a.bulk(raw, done)
}

func (c *DeadLettersBulk) send(a *app, cl *client.Client, dryRun bool) (raw json.RawMessage, result bulkResult, err error) {
	filter := map[string]any{}
	for name, value := range map[string]string{"status": c.Status, "stage": c.Stage, "tenantId": c.TenantID, "reason": c.Code, "fingerprint": c.Fingerprint,
		"feature": c.Feature, "consumer": c.Consumer, "topic": c.Topic, "from": c.From, "to": c.To} {
		if value != "" {
			filter[name] = value
		}
	}
	if len(c.IDs) > 0 {
		filter["ids"] = c.IDs
	}
	once := c.IdempotencyKey
	if dryRun {
		once = "" // a dry run must not use the key: the real request would return its response
	}
	body := map[string]any{"action": c.Action, "filter": filter, "reason": c.Reason, "dryRun": dryRun}
	if c.ExpectedMatched != nil {
		body["expectedMatched"] = *c.ExpectedMatched
	}
	raw, err = cl.Post(a.ctx, "/dead-letters/bulk", once, body)
	if err != nil {
		return nil, result, err
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, result, fmt.Errorf("read the answer: %w", err)
	}
	return raw, result, nil
}

// bulk prints a response; a table has a row for each reason of refusal.
func (a *app) bulk(raw json.RawMessage, r bulkResult) error {
	if a.flags.Output != "table" {
		return a.object(raw)
	}
	members, err := output.ParseMembers(raw)
	if err != nil {
		return err
	}
	for _, name := range []string{"bulkId", "matched", "eligible", "requested"} {
		if value := members.Find(name); value != nil {
			fmt.Fprintf(a.stdout, "%-9s  %s\n", name, output.Cell(value, "table"))
		}
	}
	if len(r.Refused) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return a.printAll(r.Refused, "count", "code", "reason")
}

var errNoTerminal = errors.New("there is no terminal to ask on: give --yes, or --dry-run to see the effect")

// agreed asks on the terminal; any reply except yes means no.
func (a *app) agreed(question string) (bool, error) {
	in, ok := a.stdin.(*os.File)
	if !ok || !output.IsTerminal(in) {
		return false, errNoTerminal
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if errors.Is(err, io.EOF) {
		return false, errNoTerminal
	}
	if err != nil {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
