package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// EntitlementsReconcile compares the accounts and the held reservations of a tenant with the log.
type EntitlementsReconcile struct {
	TenantID string `required:"" placeholder:"ID" aliases:"tenant" help:"The tenant."`
	Repair   bool   `help:"Set the accounts that differ to the log, by an event each; needs --reason."`
	Reason   string `placeholder:"TEXT" help:"The reason, recorded in the log."`
}

// Help returns the long help text.
func (EntitlementsReconcile) Help() string {
	return `Folds the accounts and the held reservations from the tenant's events and prints those that differ: was in the table, is in the log. None differs unless rows were changed outside of the service; find out which program did. --repair sets accounts, not reservations. Needs an operator's key with billing.

Exit code 0: none differs, or all were repaired; 1: some differ; 2: not compared.`
}

// Run prints the accounts that differ. Without a result it exits with 2, never with 0 or 1.
func (c *EntitlementsReconcile) Run(a *app) error {
	if c.Repair && c.Reason == "" {
		return errors.New("--repair changes accounts: give the reason by --reason")
	}
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	body := map[string]any{"tenantId": c.TenantID}
	if c.Repair {
		body["repair"], body["reason"] = true, c.Reason
	}
	raw, err := cl.Post(a.ctx, "/quota/accounts/reconcile", "", body)
	if err != nil {
		return cannotTell(err)
	}
	var result struct {
		Drift, Reservations []json.RawMessage
		Repaired            bool
	}
	if err := json.Unmarshal(raw, &result); err != nil || result.Drift == nil {
		return cannotTell(fmt.Errorf("the answer is no comparison: %s", raw))
	}
	p := a.rows("feature", "periodKey", "used", "held", "reservationId", "was", "is")
	for _, of := range slices.Concat(result.Drift, result.Reservations) {
		if err := p.Row(of); err != nil {
			return err
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	differ := false
	switch {
	case len(result.Drift) == 0 && len(result.Reservations) == 0:
		a.report("All accounts and reservations equal the log.")
	case result.Repaired:
		a.report("%d accounts differed and were set to the log.", len(result.Drift))
	case len(result.Drift) > 0:
		a.report("%d accounts differ from the log; --repair --reason TEXT sets them to it.", len(result.Drift))
		differ = true
	}
	if n := len(result.Reservations); n > 0 {
		a.report("%d reservations differ from the log; they are not repaired: restore their rows.", n)
		differ = true
	}
	if differ {
		return errNo
	}
	return nil
}
