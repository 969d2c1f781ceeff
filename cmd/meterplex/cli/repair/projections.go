// Package repair holds the commands for failures and repeated folds: dead letters, replays, the outbox, projections and their rebuilds.
package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/projections/models"
)

// ProjectionsCmd groups the projections commands.
type ProjectionsCmd struct {
	List   ProjectionsList   `cmd:"" help:"List projections: the rows that readers see, and their freshness."`
	Status ProjectionsStatus `cmd:"" help:"Show a projection, or a rebuild by its id."`
	Events ProjectionsEvents `cmd:"" help:"Show the events that make the difference of a key."`
}

// ProjectionsList lists projections.
type ProjectionsList struct{}

// Run prints the rows; in a table the last rebuild is its state and its id.
func (c *ProjectionsList) Run(a *app.App) error {
	all, err := Projections(a)
	if err != nil {
		return err
	}
	p := a.Rows("name", "generation", "foldVersion", "checkpoint", "lagEvents", "lagSeconds", "driftRows", "lastRebuild")
	for _, raw := range all {
		if a.Flags.Output == "table" || a.Flags.Output == "csv" {
			raw = withLastRebuild(raw)
		}
		if err := p.Row(raw); err != nil {
			return err
		}
	}
	return p.Close()
}

// Projections reads all projections, which fit into one page.
func Projections(a *app.App) ([]json.RawMessage, error) {
	raw, err := a.Get("/projections", nil)
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
func (c *ProjectionsStatus) Run(a *app.App) error {
	if isRebuildID(c.Name) {
		raw, err := a.Get(client.Path("rebuilds", c.Name), nil)
		if err != nil {
			return err
		}
		return printRebuild(a, raw)
	}
	all, err := Projections(a)
	if err != nil {
		return err
	}
	for _, raw := range all {
		var row struct{ Name string }
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("read a projection: %w", err)
		}
		if row.Name == c.Name {
			return a.Object(raw)
		}
	}
	a.Report("meterplex: there is no projection %q", c.Name)
	return app.ErrNo
}

func isRebuildID(s string) bool { return len(s) == 36 && strings.Count(s, "-") == 4 }

// decide sends a decision on a rebuild, and prints the rebuild.
func decide(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	return printRebuild(a, raw)
}

// promoting holds the flags of a promotion.
type promoting struct {
	IfMatch string `placeholder:"ETAG" help:"Promote only if the difference still has this etag of projections diff -o json."`
	agreeing
}

// agreeing holds the flag that skips a confirmation.
type agreeing struct {
	Yes bool `help:"Skip the confirmation, although billed figures change."`
}

// promote asks for confirmation if billed figures change.
func promote(a *app.App, l *app.Call) error {
	own := app.FlagOf[promoting](l, "Own")
	if err := confirmBilled(a, l.Last(), "Promote it", own.Yes); err != nil {
		return err
	}
	l.Match = own.IfMatch
	if l.Match != "" && l.Match != "*" {
		l.Match = `"` + strings.Trim(l.Match, `"`) + `"` // with or without its quotes
	}
	return decide(a, l)
}

// rollBack asks for confirmation if billed figures change.
func rollBack(a *app.App, l *app.Call) error {
	if err := confirmBilled(a, l.Last(), "Roll it back", app.FlagOf[agreeing](l, "Own").Yes); err != nil {
		return err
	}
	return decide(a, l)
}

// rebuild prints a rebuild; a table omits its work units.
func printRebuild(a *app.App, raw json.RawMessage) error {
	if a.Flags.Output != "table" && a.Flags.Output != "csv" {
		return a.Object(raw)
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
	return a.Object(short)
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

// verifyProjection prints the keys that differ. Without a result it exits with 2, never with 0 or 1.
func verifyProjection(a *app.App, l *app.Call) error {
	r, err := l.Request(a)
	if err != nil {
		return err
	}
	v, err := CompareProjection(a, r)
	if err != nil {
		return app.CannotTell(err)
	}
	return v.conclude(a, l.Last())
}

// verify makes the service compare a projection with the log, and waits for the result.
func CompareProjection(a *app.App, r client.Request) (*verifyOutcome, error) {
	cl, err := a.NewClient()
	if err != nil {
		return nil, err
	}
	r.Header.Set("Prefer", "wait=30")
	raw, err := cl.Do(a.Ctx, r)
	if err != nil {
		return nil, err
	}
	var v verifyOutcome
	if err := json.Unmarshal(raw, &v); err != nil || v.RebuildID == "" {
		return nil, fmt.Errorf("the answer is no verify: %s", raw)
	}
	if v.Differs == nil {
		if raw, err = follow(a, cl, v.RebuildID, newProgress(a, ""), ended); err != nil {
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

func (v *verifyOutcome) conclude(a *app.App, name string) error {
	if v.Differs == nil {
		return fmt.Errorf("the verify %s ended %s without an outcome: %s", v.RebuildID, v.State, output.Printable(v.Failure))
	}
	columns, err := diffColumns(name)
	if err != nil {
		return err
	}
	p := a.Rows(columns...)
	for _, row := range v.Drift {
		if err := p.Row(row); err != nil {
			return err
		}
	}
	if *v.Differs > 0 || a.Flags.Output != "table" {
		if err := p.Close(); err != nil {
			return err
		}
	}
	switch {
	case *v.Differs == 0:
		a.Report("%s agrees with the log, key for key.", name)
		return nil
	case v.State == "PROMOTED":
		a.Report("%s differs from the log for %s; rebuild %s repairs the rows.", name, keys(*v.Differs), v.RebuildID)
	default:
		a.Report("%s differs from the log for %s. --repair --reason TEXT repairs the rows.", name, keys(*v.Differs))
	}
	return app.ErrNo
}

// diffColumns returns the columns of a printed difference: the API's columns without the
// event count of the live figure and the number of the snapshot, which do not fit on a terminal.
func diffColumns(projection string) ([]string, error) {
	p, err := models.Definition(projection)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(p.Diff.Columns, func(column string) bool { return column == "liveEventCount" || column == "closedSnapshot" }),
		nil
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
