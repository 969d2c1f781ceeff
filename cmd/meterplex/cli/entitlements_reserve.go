package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// EntitlementsReserve holds amounts within limits.
type EntitlementsReserve struct {
	Feature       string    `arg:"" optional:"" help:"The feature's lookup key."`
	Amount        *int64    `placeholder:"N" help:"How much is held (default 1)."`
	ReservationID string    `placeholder:"ID" help:"The reservation's own id; sending it again gets the reservation as it is. Not given: a new one, printed with the answer."`
	TTL           wholeTime `placeholder:"DURATION" help:"How long the amount is held: seconds, e.g. 300, or a duration, e.g. 5m (default 60 s, at most 24h)."`
	Items         []string  `name:"item" sep:"none" placeholder:"FEATURE=AMOUNT[,ID]" help:"Instead of FEATURE: an amount of a feature, with its reservation id; may be repeated."`
}

// Help returns the long help text.
func (EntitlementsReserve) Help() string {
	return `The amount is held at once, and counts against the limit until the reservation is committed or released, or its time is over:

    meterplex entitlements reserve tokens --amount 4000 --reservation-id job-1 --ttl 5m
    meterplex entitlements commit tokens job-1 --amount 2741 --event-id job-1-usage

Several amounts are held together or not at all:

    meterplex entitlements reserve --item requests=1,r1 --item tokens=1800,r1-t

After a failure send the same ids again: an amount is held once. The answer shows the state that the reservation has by then; if it has
ended, nothing is held, and the exit code is 1. A refused request is not remembered, and holds nothing.`
}

// holding is one item; its feature is in the path of a request for one.
type holding struct {
	Feature       string    `json:"feature,omitempty"`
	ReservationID string    `json:"reservationId"`
	Amount        int64     `json:"amount"`
	TTLSeconds    wholeTime `json:"ttlSeconds,omitempty"`
}

// Run prints the reservations.
func (c *EntitlementsReserve) Run(a *app) error {
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
	one := holding{ReservationID: c.ReservationID, Amount: 1, TTLSeconds: c.TTL}
	if c.Amount != nil {
		one.Amount = *c.Amount
	}
	if one.ReservationID == "" {
		one.ReservationID = client.NewEventID()
	}
	raw, err := cl.Send(a.ctx, http.MethodPost, client.Path("entitlements", c.Feature, "reservations"), nil, one)
	if err != nil {
		a.reportUnanswered(err, onceByReservationID, one.ReservationID)
		return err
	}
	held, err := allHeld(raw)
	if err != nil {
		return err
	}
	if err := a.object(raw); err != nil {
		return err
	}
	return orNo(held)
}

// several sends all items in one request.
func (c *EntitlementsReserve) several(a *app, cl *client.Client) error {
	if c.Feature != "" || c.Amount != nil || c.ReservationID != "" {
		return errors.New("give a feature with --amount and --reservation-id, or --item, not both")
	}
	items, ids := make([]holding, len(c.Items)), make([]string, len(c.Items))
	for i, text := range c.Items {
		of, err := parseItem(text)
		if err != nil {
			return err
		}
		items[i], ids[i] = holding{of.feature, of.id, of.amount, c.TTL}, of.id
	}
	raw, err := cl.Send(a.ctx, http.MethodPost, "/entitlements/reservations", nil, map[string]any{"items": items})
	if err != nil {
		a.reportUnanswered(err, onceByReservationID, ids...)
		return err
	}
	answers, err := answersAbout(raw, len(items))
	if err != nil {
		return err
	}
	held, err := allHeld(answers...)
	if err != nil {
		return err
	}
	if err := a.printAll(answers, "feature", "reservationId", "amount", "state", "expiresAt", "periodKey", "limit", "used", "held", "remaining", "resetAt", "position"); err != nil {
		return err
	}
	return orNo(held)
}

// allHeld reports whether all reservations of an answer are held: a repeated request is answered with their present states.
func allHeld(answers ...json.RawMessage) (bool, error) {
	held := true
	for _, raw := range answers {
		var r struct{ State string }
		if err := json.Unmarshal(raw, &r); err != nil || r.State == "" {
			return false, fmt.Errorf("the answer does not show a reservation's state: %s", raw)
		}
		held = held && r.State == "HELD"
	}
	return held, nil
}
