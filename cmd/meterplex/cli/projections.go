package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/projections/models"
)

// ProjectionsCmd groups the projections commands.
type ProjectionsCmd struct {
	List     ProjectionsList     `cmd:"" help:"List projections: the generations that readers see, and their freshness."`
	Status   ProjectionsStatus   `cmd:"" help:"Show a projection, or a rebuild by its id."`
	Rebuild  ProjectionsRebuild  `cmd:"" help:"Rebuild a projection from the log, beside the live one."`
	Rebuilds ProjectionsRebuilds `cmd:"" help:"List rebuilds, the newest first."`
	Diff     ProjectionsDiff     `cmd:"" help:"Show the changes of a rebuild."`
	Events   ProjectionsEvents   `cmd:"" help:"Show the events behind the difference of a key."`
	Promote  ProjectionsPromote  `cmd:"" help:"Promote a rebuild."`
	Rollback ProjectionsRollback `cmd:"" help:"Roll back to the previous generation."`
	Abandon  ProjectionsAbandon  `cmd:"" help:"Drop a rebuild."`
	Verify   ProjectionsVerify   `cmd:"" help:"Compare a projection with the log. Exit code 0: no drift, 1: drift, 2: not compared."`
}

// ProjectionsList lists projections.
type ProjectionsList struct{}

// Run prints the rows; in a table the last rebuild is its state and its id.
func (c *ProjectionsList) Run(a *app) error {
	all, err := a.projections()
	if err != nil {
		return err
	}
	p := a.rows("name", "generation", "foldVersion", "checkpoint", "lagEvents", "lagSeconds", "driftRows", "lastRebuild")
	for _, raw := range all {
		if a.flags.Output == "table" || a.flags.Output == "csv" {
			raw = withLastRebuild(raw)
		}
		if err := p.Row(raw); err != nil {
			return err
		}
	}
	return p.Close()
}

// projections reads all projections, which fit into one page.
func (a *app) projections() ([]json.RawMessage, error) {
	cl, err := a.newClient()
	if err != nil {
		return nil, err
	}
	raw, err := cl.Get(a.ctx, "/projections", nil)
	if err != nil {
		return nil, err
	}
	var page struct{ Data []json.RawMessage }
	if err := json.Unmarshal(raw, &page); err != nil {
		return nil, fmt.Errorf("read the projections: %w", err)
	}
	return page.Data, nil
}

// withLastRebuild replaces the last rebuild by one text, its state and id.
func withLastRebuild(raw json.RawMessage) json.RawMessage {
	var row map[string]json.RawMessage
	var last *struct{ ID, State string }
	if json.Unmarshal(raw, &row) != nil || json.Unmarshal(row["lastRebuild"], &last) != nil || last == nil {
		return raw
	}
	row["lastRebuild"], _ = json.Marshal(last.State + " " + last.ID)
	if short, err := json.Marshal(row); err == nil {
		return short
	}
	return raw
}

// ProjectionsStatus shows a projection or a rebuild.
type ProjectionsStatus struct {
	Name string `arg:"" help:"A projection's name, e.g. usage_aggregates, or a rebuild's id."`
}

// Run prints it.
func (c *ProjectionsStatus) Run(a *app) error {
	if isRebuildID(c.Name) {
		cl, err := a.newClient()
		if err != nil {
			return err
		}
		raw, err := cl.Get(a.ctx, client.Path("rebuilds", c.Name), nil)
		if err != nil {
			return err
		}
		return a.rebuild(raw)
	}
	all, err := a.projections()
	if err != nil {
		return err
	}
	for _, raw := range all {
		var row struct{ Name string }
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("read a projection: %w", err)
		}
		if row.Name == c.Name {
			return a.object(raw)
		}
	}
	a.report("meterplex: there is no projection %q", c.Name)
	return errNo
}

func isRebuildID(s string) bool { return len(s) == 36 && strings.Count(s, "-") == 4 }

// ProjectionsRebuilds lists rebuilds.
type ProjectionsRebuilds struct{ Limit }

// Run prints the rows.
func (c *ProjectionsRebuilds) Run(a *app) error {
	return a.list("/rebuilds", nil, c.Limit.Limit, "id", "projection", "state", "purpose", "foldVersion", "tenantId", "periodKey", "differs", "createdAt", "reason")
}

// Scoped holds the flags that select a part of a projection.
type Scoped struct {
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of one tenant only."`
	Period   string `placeholder:"PERIOD" help:"Of one period only: 2026-05, 2026 or lifetime."`
	Workers  int    `placeholder:"N" help:"How many partitions are folded at once; not given: half as many as the instance has processors."`
}

// body returns a request body with the given flags.
func (s *Scoped) body(reason string) map[string]any {
	body := map[string]any{}
	for name, value := range map[string]string{"tenantId": s.TenantID, "periodKey": s.Period, "reason": reason} {
		if value != "" {
			body[name] = value
		}
	}
	if s.Workers != 0 {
		body["workers"] = s.Workers
	}
	return body
}

// Decided holds the common arguments of all decisions on a rebuild.
type Decided struct {
	ID     string `arg:"" help:"The rebuild's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

func (c *Decided) decide(a *app, step string) error { return c.decideIf(a, step, "") }

// decideIf is decide with an entity tag, with or without its quotes.
func (c *Decided) decideIf(a *app, step, tag string) error {
	if tag != "" && tag != "*" {
		tag = `"` + strings.Trim(tag, `"`) + `"`
	}
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := cl.PostIf(a.ctx, client.Path("rebuilds", c.ID, step), c.IdempotencyKey, tag, map[string]string{"reason": c.Reason})
	if err != nil {
		return err
	}
	return a.rebuild(raw)
}

// rebuild prints a rebuild; a table omits its work units.
func (a *app) rebuild(raw json.RawMessage) error {
	if a.flags.Output != "table" && a.flags.Output != "csv" {
		return a.object(raw)
	}
	var all struct {
		ID          json.RawMessage `json:"id"`
		Projection  json.RawMessage `json:"projection"`
		State       json.RawMessage `json:"state"`
		Generation  json.RawMessage `json:"generation"`
		FoldVersion json.RawMessage `json:"foldVersion"`
		TenantID    json.RawMessage `json:"tenantId,omitempty"`
		PeriodKey   json.RawMessage `json:"periodKey,omitempty"`
		Reason      json.RawMessage `json:"reason"`
		Failure     json.RawMessage `json:"failure,omitempty"`
		Differs     json.RawMessage `json:"differs,omitempty"`
		CreatedAt   json.RawMessage `json:"createdAt"`
		Until       json.RawMessage `json:"canRollBackUntil,omitempty"`
		Progress    string          `json:"progress,omitempty"`
	}
	var r rebuildState
	if err := errors.Join(json.Unmarshal(without(raw, "progress"), &all), json.Unmarshal(raw, &r)); err != nil {
		return fmt.Errorf("read a rebuild: %w", err)
	}
	if r.Progress != nil {
		all.Progress = progressLine(&r)
	}
	for _, member := range []*json.RawMessage{&all.TenantID, &all.PeriodKey, &all.Failure, &all.Differs, &all.Until} {
		if string(*member) == "null" {
			*member = nil
		}
	}
	short, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("write a rebuild: %w", err)
	}
	return a.object(short)
}

// without removes a member from a JSON object.
func without(raw json.RawMessage, name string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return raw
	}
	delete(members, name)
	rest, err := json.Marshal(members)
	if err != nil {
		return raw
	}
	return rest
}

// ProjectionsPromote promotes a rebuild.
type ProjectionsPromote struct {
	Decided
	IfMatch string `placeholder:"ETAG" help:"Promote only if the difference is still the one with this etag, as projections diff -o json shows it."`
	Yes     bool   `help:"Skip the confirmation, although billed figures change."`
}

// Run asks for confirmation if billed figures change.
func (c *ProjectionsPromote) Run(a *app) error {
	if err := a.confirmBilled(c.ID, "Promote it", c.Yes); err != nil {
		return err
	}
	return c.decideIf(a, "promote", c.IfMatch)
}

// ProjectionsRollback rolls back a promotion.
type ProjectionsRollback struct {
	Decided
	Yes bool `help:"Skip the confirmation, although billed figures change."`
}

// Run asks for confirmation if billed figures change.
func (c *ProjectionsRollback) Run(a *app) error {
	if err := a.confirmBilled(c.ID, "Roll it back", c.Yes); err != nil {
		return err
	}
	return c.decide(a, "rollback")
}

// ProjectionsAbandon drops a rebuild.
type ProjectionsAbandon struct{ Decided }

// Run prints the rebuild.
func (c *ProjectionsAbandon) Run(a *app) error { return c.decide(a, "abandon") }

// ProjectionsVerify compares a projection with the log.
type ProjectionsVerify struct {
	Name   string `arg:"" help:"The projection's name, e.g. usage_aggregates."`
	Repair bool   `help:"Replace the live rows where they differ; needs --reason."`
	Reason string `placeholder:"TEXT" help:"The reason, recorded in the log."`
	Scoped
}

// Run prints the keys that differ. Without a result it exits with 2, never with 0 or 1.
func (c *ProjectionsVerify) Run(a *app) error {
	if c.Repair && c.Reason == "" {
		return fmt.Errorf("--repair changes figures: give the reason by --reason")
	}
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	body := c.body(c.Reason)
	if c.Repair {
		body["repair"] = true
	}
	v, err := a.verify(cl, c.Name, body)
	if err != nil {
		return cannotTell(err)
	}
	return c.conclude(a, v)
}

// verify makes the service compare a projection with the log, and waits for the result.
func (a *app) verify(cl *client.Client, name string, body map[string]any) (*verifyOutcome, error) {
	header := http.Header{"Idempotency-Key": {newKey()}, "Prefer": {"wait=30"}}
	raw, err := cl.Send(a.ctx, http.MethodPost, client.Path("projections", name, "verify"), header, body)
	if err != nil {
		return nil, err
	}
	var v verifyOutcome
	if err := json.Unmarshal(raw, &v); err != nil || v.RebuildID == "" {
		return nil, fmt.Errorf("the answer is no verify: %s", raw)
	}
	if v.Differs == nil {
		if raw, err = a.follow(cl, v.RebuildID, newProgress(a, ""), ended); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			return nil, fmt.Errorf("read a verify: %w", err)
		}
	}
	return &v, nil
}

// verifyOutcome is the response to a verify, completed from its rebuild.
type verifyOutcome struct {
	RebuildID string
	State     string
	Differs   *int64
	Failure   string
	Drift     []json.RawMessage
}

func (c *ProjectionsVerify) conclude(a *app, v *verifyOutcome) error {
	if v.Differs == nil {
		return fmt.Errorf("the verify %s ended %s without an outcome: %s", v.RebuildID, v.State, output.Printable(v.Failure))
	}
	columns, err := diffColumns(c.Name)
	if err != nil {
		return err
	}
	p := a.rows(columns...)
	for _, row := range v.Drift {
		if err := p.Row(row); err != nil {
			return err
		}
	}
	if *v.Differs > 0 || a.flags.Output != "table" {
		if err := p.Close(); err != nil {
			return err
		}
	}
	switch {
	case *v.Differs == 0:
		a.report("%s agrees with the log, key for key.", c.Name)
		return nil
	case v.State == "PROMOTED":
		a.report("%s differs from the log for %s; rebuild %s repairs the rows.", c.Name, keys(*v.Differs), v.RebuildID)
	default:
		a.report("%s differs from the log for %s. --repair --reason TEXT repairs the rows.", c.Name, keys(*v.Differs))
	}
	return errNo
}

// undecided is an error that leaves the question unanswered: exit code 2.
type undecided struct{ cause error }

func (u *undecided) Error() string { return u.cause.Error() }

// cannotTell wraps a refusal, so that it is not mistaken for the answer no.
func cannotTell(err error) error { return &undecided{err} }

// diffColumns returns the columns of a printed difference: the API's columns without the
// event count of the live figure and the number of the snapshot, which do not fit on a terminal.
func diffColumns(projection string) ([]string, error) {
	p, err := models.Definition(projection)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(p.Diff.Columns, func(column string) bool { return column == "liveEventCount" || column == "closedSnapshot" }), nil
}

// keyOf returns the query parameters of a key written tenant/feature/period[/subscription].
func keyOf(text string) (url.Values, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return nil, fmt.Errorf("write the key %q as TENANT/FEATURE/PERIOD, and /SUBSCRIPTION for one", text)
	}
	q := url.Values{"tenantId": {parts[0]}, "feature": {parts[1]}, "periodKey": {parts[2]}}
	if len(parts) == 4 {
		q.Set("subscriptionId", parts[3])
	}
	return q, nil
}
