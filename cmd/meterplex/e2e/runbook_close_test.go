package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The commands of docs/runbooks/partial-close.md run on a service with two closes that are partial: the events of one are dead letters, the figures of the other are rebuilt, too. Each
// command ends without an error and shows the condition that the runbook names; the remedies close both periods.
func TestTheRunbookOfAPartialClose(t *testing.T) {
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
		within(t, "the events are dead letters", func(context.Context) (bool, string) {
			n := w.count(`SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND generation = 1 AND status = 'FAILED'`, x.id)
			return n == 2, fmt.Sprint(n)
		})
	}
	w.run(`ALTER TABLE usage_aggregates DROP CONSTRAINT planted`)
	if out, code := w.command(w.front, "projections", "rebuild", "usage_aggregates", "--tenant-id", tenants[1].id, "--reason", "a test"); code != 0 {
		t.Fatalf("the rebuild: exit code %d\n%s", code, out)
	}
	parts, err := runbookOf("partial-close.md")
	if err != nil {
		t.Fatal(err)
	}
	for n, x := range tenants {
		g.closes(x)
		within(t, "the close waits", func(context.Context) (bool, string) {
			n := w.count(`SELECT count(*) FROM sagas WHERE tenant_id = $1 AND kind = 'period_close' AND 'dead_letters' = ANY (missing) AND NOT 'not_aggregated' = ANY (missing)`, x.id)
			return n == 1, fmt.Sprint(n)
		})
		w.run(`UPDATE sagas SET deadline_at = now() WHERE tenant_id = '` + x.id + `'`) // 15 minutes have passed
		g.soon(x)
		within(t, "the close is partial", func(context.Context) (bool, string) {
			n := w.count(`SELECT count(*) FROM sagas WHERE tenant_id = $1 AND kind = 'period_close' AND state = 'PARTIAL'`, x.id)
			return n == 1, fmt.Sprint(n)
		})
		b := &brokenPart{words: g.known(x, "")()}
		ran := map[string]bool{}
		for _, part := range []string{"Symptom", checkPart} {
			for _, s := range commandsOf(parts[part]) {
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
				t.Errorf("the check has no command %q, it has %v", command, ran)
			}
		}
		if n == 1 { // promoted, or abandoned
			var page struct{ Data []struct{ ID, State string } }
			w.ask(w.operator, http.MethodGet, w.front, "/api/v1/rebuilds", nil, &page, http.StatusOK)
			if out, code := w.command(w.front, "projections", "abandon", page.Data[0].ID, "--reason", "a test"); code != 0 {
				t.Fatalf("the abandonment of %v: exit code %d\n%s", page, code, out)
			}
		}
		steps := commandsOf(parts["Close without them"])
		if len(steps) != 1 {
			t.Fatalf("the runbook closes by %v", steps)
		}
		w.runStep(b, steps[0])
		over := commandsOf(parts["How to see that it is done"])
		if len(over) != 1 {
			t.Fatalf("the runbook sees the end by %v", over)
		}
		over[0].want = []string{"…CLOSED…"}
		within(t, "the period is closed", func(context.Context) (bool, string) {
			failure := w.tryStep(b, over[0])
			return failure == "", failure
		})
		if left := w.number(`SELECT count(*) FROM period_snapshots WHERE tenant_id = $1 AND despite = '{dead_letters}'`, x.id); left != 1 {
			t.Errorf("%d snapshots of %s keep the waived condition", left, x.id)
		}
	}
	w.settle(w.front, tenants...)
}
