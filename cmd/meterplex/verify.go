package main

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// VerifyCmd proves what can be proved from outside, on a running service.
type VerifyCmd struct{}

// Help is the long form.
func (VerifyCmd) Help() string {
	return `Reads the identity (accepted = applied + rejected + undecided + unapplied + parked) from one snapshot, each term from its own source, and folds each projection anew from the log to compare it with the live rows, at equal positions, while both go on. Needs a key with billing. Exit code 0: all of it holds; 1: something does not; 2: it could not be told. Nothing is mended: projections verify --repair does that.`
}

// check is a line of the outcome.
type check struct {
	Check   string `json:"check"`
	Holds   *bool  `json:"holds"` // null: it could not be told
	Figures string `json:"figures"`
}

// Run prints each check with its figures.
func (c *VerifyCmd) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	checks := []check{identityCheck(a, cl)}
	all, err := a.projections()
	if err != nil {
		return err
	}
	for _, raw := range all {
		var p struct{ Name string }
		if err := json.Unmarshal(raw, &p); err != nil {
			return fmt.Errorf("read a projection: %w", err)
		}
		checks = append(checks, projectionCheck(a, cl, p.Name))
	}
	rows := a.rows("check", "holds", "figures")
	outcome := error(nil)
	for i := range checks {
		raw, err := json.Marshal(&checks[i])
		if err == nil {
			err = rows.row(raw)
		}
		if err != nil {
			return err
		}
		switch holds := checks[i].Holds; {
		case holds == nil:
			outcome = fmt.Errorf("%s: it could not be told: %s", checks[i].Check, checks[i].Figures)
		case !*holds && outcome == nil:
			outcome = errNo
		}
	}
	if err := rows.close(); err != nil {
		return err
	}
	return outcome
}

func identityCheck(a *app, cl *client) check {
	found := check{Check: "P3 every accepted event is in exactly one place"}
	raw, err := cl.get(a.ctx, "/system/identity", nil)
	var answer struct {
		Holds *bool
		Total struct{ Accepted, Applied, Rejected, Undecided, Unapplied, Parked, Missing int64 }
	}
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if err != nil {
		found.Figures = printable(err.Error())
		return found
	}
	t := answer.Total
	found.Holds = answer.Holds
	found.Figures = fmt.Sprintf("accepted %d = applied %d + rejected %d + undecided %d + unapplied %d + parked %d, missing %d",
		t.Accepted, t.Applied, t.Rejected, t.Undecided, t.Unapplied, t.Parked, t.Missing)
	return found
}

func projectionCheck(a *app, cl *client, name string) check {
	found := check{Check: "P5 " + name + " is what the log says"}
	v, err := a.verify(cl, name, map[string]any{"reason": "meterplex verify"})
	switch {
	case err != nil:
		found.Figures = printable(err.Error())
	case v.Differs == nil:
		found.Figures = "the verify " + v.RebuildID + " ended " + v.State + ": " + printable(v.Failure)
	default:
		holds := *v.Differs == 0
		found.Holds, found.Figures = &holds, strconv.FormatInt(*v.Differs, 10)+" keys differ (rebuild "+v.RebuildID+")"
	}
	return found
}
