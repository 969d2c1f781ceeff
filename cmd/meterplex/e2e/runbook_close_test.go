package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// The commands of docs/runbooks/partial-close.md run on a service with two closes that are partial: the events of one are dead letters, the figures of the other are rebuilt, too. Each
// command ends without an error and shows the condition that the runbook names; the remedies close both periods.
func TestTheRunbookOfAPartialClose(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := &alertsTest{deployment: newDeployment(t), dir: t.TempDir()}
	w.pipe = "postgres"
	w.front = w.serve("")
	w.catalogue(w.front)
	tenants := w.createTenants(w.front, 2)
	g := &billingFaults{alertsTest: w}
	w.run(`ALTER TABLE usage_aggregates ADD CONSTRAINT planted CHECK (tenant_id NOT IN ('` + tenants[0].id + `', '` + tenants[1].id + `')) NOT VALID`)
	for _, x := range tenants {
		w.ingest(w.front, x, "accepted", events("poison", 2, "api_calls")...)
		w.becomes("the events are dead letters", 2, `SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND generation = 1 AND status = 'FAILED'`, x)
	}
	w.run(`ALTER TABLE usage_aggregates DROP CONSTRAINT planted`)
	if out, code := w.command(w.front, "projections", "rebuild", "usage_aggregates", "--tenant-id", tenants[1].id, "--reason", "a test"); code != 0 {
		t.Fatalf("the rebuild: exit code %d\n%s", code, out)
	}
	for n, x := range tenants {
		g.partial(x)
		g.checkPartial(x)
		if n == 1 { // promoted, or abandoned
			var page struct{ Data []struct{ ID, State string } }
			w.ask(w.operator, http.MethodGet, w.front, "/api/v1/rebuilds", nil, &page, http.StatusOK)
			if out, code := w.command(w.front, "projections", "abandon", page.Data[0].ID, "--reason", "a test"); code != 0 {
				t.Fatalf("the abandonment of %v: exit code %d\n%s", page, code, out)
			}
		}
		g.closeDespite(x)
	}
	w.settle(w.front, tenants...)
}

// becomes waits until a statement about a tenant counts n rows.
func (w *alertsTest) becomes(condition string, n int, sql string, x *tenant) {
	w.t.Helper()
	within(w.t, condition, func(context.Context) (bool, string) {
		got := w.count(sql, x.id)
		return got == n, fmt.Sprint(got)
	})
}

// partial requests a close that waits for dead letters, and lets 15 minutes pass.
func (w *billingFaults) partial(x *tenant) {
	w.t.Helper()
	w.closes(x)
	w.becomes("the close waits", 1, `SELECT count(*) FROM sagas WHERE tenant_id = $1 AND kind = 'period_close' AND 'dead_letters' = ANY (missing) AND NOT 'not_aggregated' = ANY (missing)`, x)
	w.run(`UPDATE sagas SET deadline_at = now() WHERE tenant_id = '` + x.id + `'`)
	w.soon(x)
	w.becomes("the close is partial", 1, `SELECT count(*) FROM sagas WHERE tenant_id = $1 AND kind = 'period_close' AND state = 'PARTIAL'`, x)
}

// partOfClose returns the commands of a part of the runbook.
func (w *billingFaults) partOfClose(part string) []step {
	w.t.Helper()
	parts, err := runbookOf("partial-close.md")
	must.OK(w.t, err)
	return commandsOf(parts[part])
}

// checkPartial runs the commands that show the symptom and its conditions.
func (w *billingFaults) checkPartial(x *tenant) {
	w.t.Helper()
	b, ran := &brokenPart{words: w.known(x, "")()}, map[string]bool{}
	for _, part := range []string{"Symptom", checkPart} {
		for _, s := range w.partOfClose(part) {
			s.want = []string{"…dead_letters…"}
			if strings.HasPrefix(s.command, "meterplex dead-letters") {
				s.want = []string{"…FAILED…"}
			} else if strings.HasPrefix(s.command, "meterplex projections") {
				s.want = []string{"…usage_aggregates…"}
			}
			w.runStep(b, s)
			ran[strings.Join(strings.Fields(s.command)[1:3], " ")] = true
		}
	}
	for _, command := range []string{"periods list", "sagas list", "periods show", "dead-letters list", "projections list"} {
		if !ran[command] {
			w.t.Errorf("the check has no command %q, it has %v", command, ran)
		}
	}
}

// closeDespite runs the commands that close the period without its dead letters.
func (w *billingFaults) closeDespite(x *tenant) {
	w.t.Helper()
	b := &brokenPart{words: w.known(x, "")()}
	steps, over := w.partOfClose("Close without them"), w.partOfClose("How to see that it is done")
	if len(steps) != 1 || len(over) != 1 {
		w.t.Fatalf("the runbook closes by %v, and sees the end by %v", steps, over)
	}
	w.runStep(b, steps[0])
	over[0].want = []string{"…CLOSED…"}
	within(w.t, "the period is closed", func(context.Context) (bool, string) {
		failure := w.tryStep(b, over[0])
		return failure == "", failure
	})
	if n := w.count(`SELECT count(*) FROM period_snapshots WHERE tenant_id = $1 AND despite = '{dead_letters}'`, x.id); n != 1 {
		w.t.Errorf("%d snapshots of %s keep the waived condition", n, x.id)
	}
}
