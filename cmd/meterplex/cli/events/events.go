// Package events holds the commands of the event log and of the schemas of its events.
package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/events"
)

// Cmd groups the events commands.
type Cmd struct {
	Query  Query  `cmd:"" help:"List events of the log."`
	Tail   Tail   `cmd:"" help:"Show the newest events, and with -f those that come."`
	Export Export `cmd:"" help:"Write events to stdout, one JSON object for each line."`
}

// WantedEvents holds the flags that select events.
type WantedEvents struct {
	TenantID      string `name:"tenant" placeholder:"ID" aliases:"tenant-id" help:"Of one tenant; platform: events without a tenant."`
	Subject       string `placeholder:"SUBJECT" help:"A subject, or a prefix of subjects, e.g. meterplex.usage."`
	Stream        string `placeholder:"KIND/ID" help:"Of one aggregate, e.g. usage/evt_1, dead-letter/ID or plan/pro."`
	CorrelationID string `placeholder:"TRACE" help:"Of one trace."`
	From          string `placeholder:"TIME" help:"Recorded at or after this time, RFC 3339."`
}

func (e *WantedEvents) query() url.Values {
	return url.Values{"tenantId": {e.TenantID}, "subject": {e.Subject}, "stream": {e.Stream}, "correlationId": {e.CorrelationID},
		"from": {e.From}}
}

// BoundedEvents adds the flags that bound a finite query.
type BoundedEvents struct {
	WantedEvents
	To    string `placeholder:"TIME" help:"Recorded before this time, RFC 3339."`
	After string `placeholder:"POSITION" help:"After this position, e.g. 17-4711, in the order of partitions."`
}

func (e *BoundedEvents) query() url.Values {
	q := e.WantedEvents.query()
	q["to"], q["after"] = []string{e.To}, []string{e.After}
	return q
}

// Query lists events.
type Query struct {
	BoundedEvents
	Limit int `default:"100" placeholder:"N" help:"Maximum number of events (default 100); 0 means all."`
}

// Run prints the rows, and a hint on stderr if there are more.
func (c *Query) Run(a *app.App) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	columns, shown := "position recordedAt eventType tenantId eventId payload", func(event json.RawMessage) json.RawMessage { return event }
	if a.Flags.Output == "table" {
		columns, shown = "position recordedAt eventType tenantId by reason eventId payload", withCause
	}
	p := a.Rows(strings.Fields(columns)...)
	ask := c.Limit
	if c.Limit > 0 {
		ask++ // one more shows if there are more
	}
	seen := 0
	err = cl.Each(a.Ctx, "/events", c.query(), ask, func(raw json.RawMessage) error {
		if seen++; c.Limit > 0 && seen > c.Limit {
			return nil
		}
		return p.Row(shown(raw))
	})
	if err != nil {
		return err
	}
	if err := a.Close(p, app.NoRows); err != nil {
		return err
	}
	if c.Limit > 0 && seen > c.Limit {
		a.Report("There are more than %d events: list all with --limit 0, or write them to a file with meterplex events export.", c.Limit)
	}
	return nil
}

// withCause adds who caused an event, and the reason of a decision.
func withCause(event json.RawMessage) json.RawMessage {
	var of struct {
		Actor   events.Actor
		Payload struct{ Reason json.RawMessage }
	}
	body, isObject := bytes.CutSuffix(bytes.TrimSpace(event), []byte("}"))
	if json.Unmarshal(event, &of) != nil || !isObject || of.Actor.Type == "" {
		return event
	}
	by := strings.TrimSuffix(of.Actor.Type+"/"+of.Actor.ID, "/") // tenants read no id
	if of.Actor.ID == events.BootstrapKeyID.String() {
		by = events.BootstrapKeyName
	}
	if of.Actor.Via != "" {
		by += " via " + of.Actor.Via
	}
	name, _ := json.Marshal(by)
	reason := of.Payload.Reason
	if len(reason) == 0 {
		reason = json.RawMessage("null")
	}
	return fmt.Appendf(nil, `%s,"by":%s,"reason":%s}`, body, name, reason)
}

// showEvent prints the envelope, and the id of its trace as traceparent headers and collectors write it.
func showEvent(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return producersID(err, l.Last())
	}
	return a.Object(withTrace(raw))
}

// withTrace adds traceId to an event that belongs to a trace.
func withTrace(event json.RawMessage) json.RawMessage {
	var of struct{ CorrelationID string }
	body, isObject := bytes.CutSuffix(bytes.TrimSpace(event), []byte("}"))
	if json.Unmarshal(event, &of) != nil || of.CorrelationID == "" || !isObject {
		return event
	}
	return fmt.Appendf(nil, `%s,"traceId":%q}`, body, strings.ReplaceAll(of.CorrelationID, "-", ""))
}

// logID matches the ids that the log knows: a UUID, or a position.
var logID = regexp.MustCompile(`^([0-9a-fA-F-]{36}|[0-9]{1,2}-[0-9]+)$`)

// producersID explains an event that is not found by an id of a producer's form.
func producersID(err error, id string) error {
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Status/100 == 4 && !logID.MatchString(id) {
		shown := id
		if strings.HasPrefix(id, "-") {
			shown = "-- " + id // no flag
		}
		p.Hint = fmt.Sprintf("%s is a producer's eventId; the log's id is recorded.logEventId of: meterplex usage receipt %s", id, shown)
	}
	return err
}

// graph is a lineage in the API's form.
type graph struct {
	Root  string `json:"root"`
	Nodes []struct {
		EventID    string `json:"eventId"`
		Position   string `json:"position"`
		RecordedAt string `json:"recordedAt"`
		Summary    string `json:"summary"`
	} `json:"nodes"`
	Edges        []struct{ From, To string } `json:"edges"`
	CompleteUpTo string                      `json:"completeUpTo"`
	Truncated    bool                        `json:"truncated"`
}

// showLineage prints a tree: causes above the event, effects below. Other formats print the
// graph or its nodes.
func showLineage(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return producersID(err, l.Last())
	}
	if a.Flags.Output == "json" {
		return a.Object(raw)
	}
	var g graph
	if err := json.Unmarshal(raw, &g); err != nil {
		return fmt.Errorf("read the lineage: %w", err)
	}
	if a.Flags.Output == "table" {
		printTree(a, &g)
		return nil
	}
	var nodes struct{ Nodes []json.RawMessage }
	if err := json.Unmarshal(raw, &nodes); err != nil {
		return fmt.Errorf("read the lineage: %w", err)
	}
	return a.PrintAll(nodes.Nodes, "position", "recordedAt", "subject", "summary", "eventId")
}

// printTree prints a graph as a tree.
func printTree(a *app.App, g *graph) {
	lines, cause, effects := map[string]string{}, map[string]string{}, map[string][]string{}
	for _, n := range g.Nodes { // in log order
		lines[n.EventID] = output.Printable(n.Position + "  " + n.Summary + "  " + n.RecordedAt)
	}
	for _, e := range g.Edges {
		cause[e.To], effects[e.From] = e.From, append(effects[e.From], e.To)
	}
	var above []string
	for at, ok := cause[g.Root]; ok; at, ok = cause[at] {
		above = append([]string{at}, above...)
	}
	for depth, id := range above {
		fmt.Fprintln(a.Stdout, indent(depth)+lines[id])
	}
	fmt.Fprintln(a.Stdout, indent(len(above))+lines[g.Root]+"  <- this")
	var below func(id string, depth int)
	below = func(id string, depth int) {
		for _, effect := range effects[id] {
			fmt.Fprintln(a.Stdout, indent(depth)+lines[effect])
			below(effect, depth+1)
		}
	}
	below(g.Root, len(above)+1)
	if g.Truncated {
		a.Report("There is more than a graph holds.")
	}
}

func indent(depth int) string {
	if depth == 0 {
		return ""
	}
	return strings.Repeat("   ", depth-1) + "└─ "
}
