package entitlements

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

const consumeHelp = `    meterplex entitlements consume api_calls --amount 3 --event-id req-1

Several features are granted together or not at all:

    meterplex entitlements consume --item requests=1,r1 --item tokens=1800,r1-t

After a failure send the same ids again: a request that was granted gets its first answer. A refused request is not remembered, and
records no usage.`

const reserveHelp = `    meterplex entitlements reserve tokens --amount 4000 --reservation-id job-1 --ttl 5m
    meterplex entitlements commit tokens job-1 --amount 2741 --event-id job-1-usage

Several amounts are held together or not at all:

    meterplex entitlements reserve --item requests=1,r1 --item tokens=1800,r1-t

After a failure send the same ids again: an amount is held once. The answer shows the state that the reservation has by then; if it has
ended, no amount is held, and the exit code is 1. A refused request is not remembered, and holds no amount.`

// together holds the flag of a request for several features.
type together struct {
	Items []string `name:"item" sep:"none" placeholder:"FEATURE=AMOUNT[,ID]" help:"In place of FEATURE, repeatable: an amount and its id."`
}

// amounts is a request for an amount of a feature, or of several features together, each under an id.
type amounts struct {
	id      string // the member that is the id
	several string // the operation for several features
	once    string // a hint to repeat a request: its ids and their effect
	columns string
	held    bool // the answer is no if an amount is not held
}

func consume(a *app.App, l *app.Call) error {
	return amounts{"eventId", "consumeTogether", onceByEventID,
		"feature eventId amount periodKey limit used held remaining resetAt position", false}.run(a, l)
}

func reserve(a *app.App, l *app.Call) error {
	return amounts{"reservationId", "reserveTogether", "the same reservation ids, each holds once",
		"feature reservationId amount state expiresAt periodKey limit used held remaining resetAt position", true}.run(a, l)
}

const onceByEventID = "the same event ids, it counts once"

// run prints the answers.
func (m amounts) run(a *app.App, l *app.Call) error {
	texts := app.FlagOf[together](l, "Own").Items
	if len(texts) > 0 {
		return m.runTogether(a, l, texts)
	}
	raw, err := sendUnder(a, l, m.id, m.once)
	if err != nil {
		return err
	}
	yes, err := m.yes(raw)
	if err != nil {
		return err
	}
	if err := a.Object(raw); err != nil {
		return err
	}
	return app.OrNo(yes)
}

// sendUnder sends an amount under an id: 1 under a new one, if they are not given.
func sendUnder(a *app.App, l *app.Call, id, once string) (json.RawMessage, error) {
	sent := ""
	l.Amend = func(_ *app.App, _ *app.Call, in map[string]any) error {
		if in["feature"] == nil {
			return errors.New("give a feature, or --item")
		}
		if in["amount"] == nil {
			in["amount"] = 1
		}
		if in[id] == nil {
			in[id] = client.NewEventID()
		}
		sent, _ = in[id].(string)
		return nil
	}
	raw, err := l.Send(a)
	if err != nil && sent != "" {
		reportUnanswered(a, err, once, sent)
	}
	return raw, err
}

// runTogether sends all items in one request.
func (m amounts) runTogether(a *app.App, l *app.Call, texts []string) error {
	var ttl any
	for i := range l.Inputs {
		value, err := l.Given(&l.Inputs[i])
		switch {
		case err != nil:
			return err
		case l.Inputs[i].Name == "ttlSeconds":
			ttl = value
		case value != nil:
			return errors.New("give a feature with its amount and its id, or --item, not both")
		}
	}
	items, ids := make([]map[string]any, len(texts)), make([]string, len(texts))
	for i, text := range texts {
		feature, id, amount, err := parseItem(text)
		if err != nil {
			return err
		}
		items[i], ids[i] = map[string]any{"feature": feature, m.id: id, "amount": amount}, id
		if ttl != nil {
			items[i]["ttlSeconds"] = ttl
		}
	}
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	o := app.OperationOf(m.several)
	raw, err := cl.Send(a.Ctx, o.Method, o.Path, nil, map[string]any{"items": items})
	if err != nil {
		reportUnanswered(a, err, m.once, ids...)
		return err
	}
	answers, err := answersAbout(raw, len(items))
	if err != nil {
		return err
	}
	yes, err := m.yes(answers...)
	if err != nil {
		return err
	}
	if err := a.PrintAll(answers, strings.Fields(m.columns)...); err != nil {
		return err
	}
	return app.OrNo(yes)
}

// yes reports whether all amounts are held, if they are to be: a repeated request is answered with the present states of the reservations.
func (m amounts) yes(answers ...json.RawMessage) (bool, error) {
	held := true
	for _, raw := range answers {
		if !m.held {
			break
		}
		var r struct{ State string }
		if err := json.Unmarshal(raw, &r); err != nil || r.State == "" {
			return false, fmt.Errorf("the answer does not show a reservation's state: %s", raw)
		}
		held = held && r.State == "HELD"
	}
	return held, nil
}

// answersAbout returns the answers about the items of a request, in their order.
func answersAbout(raw json.RawMessage, items int) ([]json.RawMessage, error) {
	var answer struct{ Data []json.RawMessage }
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Data) != items {
		return nil, fmt.Errorf("the answer does not have %d items: %s", items, raw)
	}
	return answer.Data, nil
}

// parseItem parses feature=amount,id; the service validates the feature and the id.
func parseItem(text string) (feature, id string, amount int64, err error) {
	feature, rest, given := strings.Cut(text, "=")
	digits, id, _ := strings.Cut(rest, ",")
	if amount, err = strconv.ParseInt(digits, 10, 64); !given || err != nil {
		return "", "", 0, fmt.Errorf("item %q: write feature=amount or feature=amount,id, e.g. tokens=1800,r1-t", text)
	}
	if id == "" {
		id = client.NewEventID()
	}
	return feature, id, amount, nil
}

// reportUnanswered prints the ids of a request without an answer: the same ids again get the outcome.
func reportUnanswered(a *app.App, err error, once string, ids ...string) {
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Status/100 != 5 {
		return
	}
	a.Report("The outcome is unknown. Send the request again with %s: %s", once, strings.Join(ids, " "))
}
