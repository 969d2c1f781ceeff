package entitlements

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

const reconcileHelp = `Prints those that differ: was in the table, is in the log. They only differ if rows were changed outside of the
service;
find out which program did. Needs an operator's key with billing.

Exit code 0: all are equal, or all were repaired; 1: some differ; 2: not compared.`

// reconcile prints the accounts and reservations that differ. Without a result it exits with 2, never with 0 or 1.
func reconcile(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return app.CannotTell(err)
	}
	var result struct {
		Drift, Reservations []json.RawMessage
		Repaired            bool
	}
	if err := json.Unmarshal(raw, &result); err != nil || result.Drift == nil {
		return app.CannotTell(fmt.Errorf("the answer is no comparison: %s", raw))
	}
	if err := a.PrintAll(slices.Concat(result.Drift, result.Reservations), "feature", "periodKey", "used", "held", "reservationId", "was",
		"is"); err != nil {
		return err
	}
	differ := false
	switch {
	case len(result.Drift) == 0 && len(result.Reservations) == 0:
		a.Report("All accounts and reservations equal the log.")
	case result.Repaired:
		a.Report("%d accounts differed and were set to the log.", len(result.Drift))
	case len(result.Drift) > 0:
		a.Report("%d accounts differ from the log; --repair --reason TEXT sets them to it.", len(result.Drift))
		differ = true
	}
	if n := len(result.Reservations); n > 0 {
		a.Report("%d reservations differ from the log; they are not repaired: restore their rows.", n)
		differ = true
	}
	return app.OrNo(!differ)
}
