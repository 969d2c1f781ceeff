package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// EntitlementsConsume uses amounts within limits.
type EntitlementsConsume struct {
	Feature  string            `arg:"" optional:"" help:"The feature's lookup key."`
	Amount   *int64            `placeholder:"N" help:"How much is used (default 1)."`
	EventID  string            `placeholder:"ID" help:"The request's own id; sending it again gets the first answer. Not given: a new one, printed with the answer."`
	Metadata map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"Text kept with the event; may be repeated."`
	Items    []string          `name:"item" sep:"none" placeholder:"FEATURE=AMOUNT[,ID]" help:"Instead of FEATURE: an amount of a feature, with its event id; may be repeated."`
}

// Help returns the long help text.
func (EntitlementsConsume) Help() string {
	return `The limit is checked and the usage is recorded in one step: a HARD limit is never passed. The time of the usage is the service's.

    meterplex entitlements consume api_calls --amount 3 --event-id req-1

Several features are granted together or not at all:

    meterplex entitlements consume --item requests=1,r1 --item tokens=1800,r1-t

After a failure send the same ids again: a request that was granted gets its first answer. A refused request is not remembered, and records nothing.`
}

// consumption is one item; its feature is in the path of a request for one.
type consumption struct {
	Feature  string            `json:"feature,omitempty"`
	EventID  string            `json:"eventId"`
	Amount   int64             `json:"amount"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Run prints the grants.
func (c *EntitlementsConsume) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	if len(c.Items) > 0 {
		return c.several(a, cl)
	}
	if c.Feature == "" {
		return errors.New("give a feature, or --item")
	}
	one := consumption{EventID: c.EventID, Amount: 1, Metadata: c.Metadata}
	if c.Amount != nil {
		one.Amount = *c.Amount
	}
	if one.EventID == "" {
		one.EventID = client.NewEventID()
	}
	raw, err := cl.Send(a.ctx, http.MethodPost, client.Path("entitlements", c.Feature, "consume"), nil, one)
	if err != nil {
		a.reportUnanswered(err, onceByEventID, one.EventID)
		return err
	}
	return a.object(raw)
}

// several sends all items in one request.
func (c *EntitlementsConsume) several(a *app, cl *client.Client) error {
	if c.Feature != "" || c.Amount != nil || c.EventID != "" || len(c.Metadata) > 0 {
		return errors.New("give a feature with --amount, --event-id and --metadata, or --item, not both")
	}
	items, ids := make([]consumption, len(c.Items)), make([]string, len(c.Items))
	for i, text := range c.Items {
		of, err := parseItem(text)
		if err != nil {
			return err
		}
		items[i], ids[i] = consumption{Feature: of.feature, EventID: of.id, Amount: of.amount}, of.id
	}
	raw, err := cl.Send(a.ctx, http.MethodPost, "/entitlements/consume", nil, map[string]any{"items": items})
	if err != nil {
		a.reportUnanswered(err, onceByEventID, ids...)
		return err
	}
	answers, err := answersAbout(raw, len(items))
	if err != nil {
		return err
	}
	return a.printAll(answers, "feature", "eventId", "amount", "periodKey", "limit", "used", "held", "remaining", "resetAt", "position")
}

// answersAbout returns the answers about the items of a request, in their order.
func answersAbout(raw json.RawMessage, items int) ([]json.RawMessage, error) {
	var answer struct{ Data []json.RawMessage }
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Data) != items {
		return nil, fmt.Errorf("the answer does not have %d items: %s", items, raw)
	}
	return answer.Data, nil
}

// printAll prints rows.
func (a *app) printAll(list []json.RawMessage, columns ...string) error {
	rows := a.rows(columns...)
	for _, row := range list {
		if err := rows.Row(row); err != nil {
			return err
		}
	}
	return rows.Close()
}

// item is an amount of a feature under an id.
type item struct {
	feature, id string
	amount      int64
}

// parseItem parses feature=amount,id; the service validates the feature and the id.
func parseItem(text string) (item, error) {
	feature, rest, given := strings.Cut(text, "=")
	amount, id, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(amount, 10, 64)
	if !given || err != nil {
		return item{}, fmt.Errorf("item %q: write feature=amount or feature=amount,id, e.g. tokens=1800,r1-t", text)
	}
	if id == "" {
		id = client.NewEventID()
	}
	return item{feature, id, n}, nil
}

const (
	onceByEventID       = "the same event ids, it counts once"
	onceByReservationID = "the same reservation ids, each holds once"
)

// reportUnanswered prints the ids of a request without an answer: the same ids again get the outcome.
func (a *app) reportUnanswered(err error, once string, ids ...string) {
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Status/100 != 5 {
		return
	}
	a.report("The outcome is unknown. Send the request again with %s: %s", once, strings.Join(ids, " "))
}
