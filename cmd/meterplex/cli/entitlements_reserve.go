package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

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

func orNo(yes bool) error {
	if yes {
		return nil
	}
	return errNo
}

// wholeTime is a time in seconds.
type wholeTime int64

// UnmarshalText parses seconds, e.g. 300, or a duration of whole seconds, e.g. 5m. The service validates the bounds.
func (s *wholeTime) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		var d time.Duration
		if d, err = time.ParseDuration(string(text)); d%time.Second != 0 {
			err = strconv.ErrSyntax
		}
		n = int64(d / time.Second)
	}
	if err != nil || n < 1 {
		return fmt.Errorf("%q: write seconds, or a duration of whole seconds, e.g. 300 or 5m", text)
	}
	*s = wholeTime(n)
	return nil
}

// reservation names one reservation.
type reservation struct {
	Feature string `arg:"" help:"The feature's lookup key."`
	ID      string `arg:"" help:"The reservation's id."`
}

func (r *reservation) path(action ...string) string {
	return client.Path(append([]string{"entitlements", r.Feature, "reservations", r.ID}, action...)...)
}

// EntitlementsExtend holds an amount longer.
type EntitlementsExtend struct {
	reservation
	TTL wholeTime `required:"" placeholder:"DURATION" help:"How long from now: seconds, e.g. 300, or a duration, e.g. 5m (at most 24h). A longer time that is left stays."`
}

// Run prints the reservation.
func (c *EntitlementsExtend) Run(a *app) error {
	return a.change(http.MethodPost, c.path("extend"), map[string]wholeTime{"ttlSeconds": c.TTL})
}

// EntitlementsCommit uses a held amount.
type EntitlementsCommit struct {
	reservation
	Amount  int64  `required:"" placeholder:"N" help:"How much has been used."`
	EventID string `placeholder:"ID" help:"The usage's own id; sending it again gets the first answer. Not given: a new one, printed with the answer."`
	Overage string `enum:"deny,record" default:"deny" placeholder:"HOW" help:"If more than the held amount has been used: deny (default), or record all of it, also above the limit."`
}

// Help returns the long help text.
func (EntitlementsCommit) Help() string {
	return `The usage counts in the subscription and the period of the hold, also if its limit is reached by now. The rest of the hold is released in
the same step.

    meterplex entitlements commit tokens job-1 --amount 2741 --event-id job-1-usage
    meterplex entitlements commit tokens job-1 --amount 4100 --event-id job-1-usage --overage record

After a failure send the same ids again: usage that was recorded gets its first answer.`
}

// Run prints the usage.
func (c *EntitlementsCommit) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	sent := struct {
		EventID string `json:"eventId"`
		Amount  int64  `json:"amount"`
		Overage string `json:"overage,omitempty"`
	}{EventID: c.EventID, Amount: c.Amount}
	if sent.EventID == "" {
		sent.EventID = client.NewEventID()
	}
	if c.Overage != "deny" {
		sent.Overage = c.Overage
	}
	raw, err := cl.Send(a.ctx, http.MethodPost, c.path("commit"), nil, sent)
	if err != nil {
		a.reportUnanswered(err, onceByEventID, sent.EventID)
		return err
	}
	return a.object(raw)
}

// EntitlementsRelease ends a reservation without usage.
type EntitlementsRelease struct{ reservation }

// Run prints the reservation.
func (c *EntitlementsRelease) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := cl.Do(a.ctx, client.Request{Method: http.MethodDelete, Path: c.path()})
	if err != nil {
		return err
	}
	return a.object(raw)
}

// EntitlementsReservations lists reservations.
type EntitlementsReservations struct {
	Feature  string `arg:"" help:"The feature's lookup key."`
	ID       string `arg:"" optional:"" help:"Only this reservation."`
	State    string `placeholder:"STATE" help:"HELD, COMMITTED, RELEASED or EXPIRED. Ended ones are listed for 7 days."`
	TenantID string `placeholder:"ID" aliases:"tenant" help:"The tenant, with an operator's key."`
	Limit
}

// Run prints the rows.
func (c *EntitlementsReservations) Run(a *app) error {
	query := url.Values{}
	if c.TenantID != "" {
		query.Set("tenantId", c.TenantID)
	}
	if c.ID != "" {
		if c.State != "" {
			return errors.New("give an id or --state, not both")
		}
		return a.show(client.Path("entitlements", c.Feature, "reservations", c.ID), query)
	}
	if c.State != "" {
		query.Set("state", c.State)
	}
	return a.list(client.Path("entitlements", c.Feature, "reservations"), query, c.Limit.Limit,
		"reservationId", "amount", "state", "periodKey", "expiresAt", "committed", "eventId", "endedAt", "position")
}
