// Package entitlements holds the commands of a tenant's entitlements: checks, accounts, amounts and reservations.
package entitlements

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// checkEntitlement prints the answer and returns it as the exit code.
func checkEntitlement(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	var answer struct{ Allowed *bool }
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Allowed == nil {
		return fmt.Errorf("the answer does not show whether it is allowed: %s", raw)
	}
	if err := a.Object(raw); err != nil {
		return err
	}
	return app.OrNo(*answer.Allowed)
}

// oneReservation selects one of a list.
type oneReservation struct {
	ID string `arg:"" optional:"" help:"Only this reservation."`
}

// reservations lists the reservations of a feature, or shows one.
func reservations(a *app.App, l *app.Call) error {
	r, err := l.Request(a)
	if err != nil {
		return err
	}
	id := app.FlagOf[oneReservation](l, "Own").ID
	switch {
	case id == "":
		return l.List(a, r)
	case r.Query.Has("state"):
		return errors.New("give an id or --state, not both")
	}
	return a.Show(r.Path+client.Path(id), r.Query)
}

const commitHelp = `    meterplex entitlements commit tokens job-1 --amount 2741 --event-id job-1-usage
    meterplex entitlements commit tokens job-1 --amount 4100 --event-id job-1-usage --overage record

After a failure send the same ids again: usage that was recorded gets its first answer.`

// commitReservation prints the usage.
func commitReservation(a *app.App, l *app.Call) error {
	raw, err := sendUnder(a, l, "eventId", onceByEventID)
	if err != nil {
		return err
	}
	return a.Object(raw)
}

// entitlements prints the features of a tenant.
func entitlements(a *app.App, l *app.Call) error {
	return app.Figures(a, l, "", "feature", "type", "allowed", "limit", "used", "held", "remaining", "limitBehavior", "resetAt")
}
