package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// checkEntitlement prints the answer and returns it as the exit code.
func checkEntitlement(a *app, l *call) error {
	raw, err := l.send(a)
	if err != nil {
		return err
	}
	var answer struct{ Allowed *bool }
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Allowed == nil {
		return fmt.Errorf("the answer does not show whether it is allowed: %s", raw)
	}
	if err := a.object(raw); err != nil {
		return err
	}
	return orNo(*answer.Allowed)
}

// oneReservation selects one of a list.
type oneReservation struct {
	ID string `arg:"" optional:"" help:"Only this reservation."`
}

// reservations lists the reservations of a feature, or shows one.
func reservations(a *app, l *call) error {
	r, err := l.request(a)
	if err != nil {
		return err
	}
	id := flagOf[oneReservation](l, "Own").ID
	switch {
	case id == "":
		return l.list(a, r)
	case r.Query.Has("state"):
		return errors.New("give an id or --state, not both")
	}
	return a.show(r.Path+client.Path(id), r.Query)
}

const commitHelp = `    meterplex entitlements commit tokens job-1 --amount 2741 --event-id job-1-usage
    meterplex entitlements commit tokens job-1 --amount 4100 --event-id job-1-usage --overage record

After a failure send the same ids again: usage that was recorded gets its first answer.`

// commitReservation prints the usage.
func commitReservation(a *app, l *call) error {
	raw, err := l.sendUnder(a, "eventId", onceByEventID)
	if err != nil {
		return err
	}
	return a.object(raw)
}

func orNo(yes bool) error {
	if yes {
		return nil
	}
	return errNo
}

// seconds reads a time in whole seconds, at least so many: 300, or 5m. The service validates the bounds.
func seconds(least int64) func(text string) (any, error) {
	return func(text string) (any, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			var d time.Duration
			if d, err = time.ParseDuration(text); d%time.Second != 0 {
				err = strconv.ErrSyntax
			}
			n = int64(d / time.Second)
		}
		if err != nil || n < least {
			return nil, fmt.Errorf("%q: write seconds, or a duration of whole seconds, e.g. 300 or 5m", text)
		}
		return n, nil
	}
}
