package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// P5: a repair replaces rows of a tenant, or all rows, that differ from the log. They are kept for a day, known to be wrong: verify holds, readers never see them again, and differences
// of all other rows are found.
func TestP5_VerifyHoldsAfterARepair(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	at := w.serve("")
	w.catalogue(at)
	tenants := w.createTenants(at, 2)
	one, other := tenants[0], tenants[1]
	for _, x := range tenants {
		w.ingest(at, x, "accepted", events("usage", 5, "api_calls")...)
		w.ingest(at, x, "accepted", events("limited", 3, "calls")...)
		again := events("limited", 1, "calls")
		again[0].Amount += 10
		w.ingest(at, x, "conflict", again...) // a dead letter
	}
	w.drain()
	const usage, series, entitlements, letters = "P5 usage_aggregates equals the sum of the log up to its checkpoint", "P5 usage_series equals the sum of the log up to its checkpoint, hour by hour",
		"P5 entitlement_usage equals the sum of the log up to its checkpoint", "P3 dead letters and their states match the log"
	sound := planted{args: []string{"--only", "database"}}
	w.plant(sound)
	of := func(x *tenant) string { return ` WHERE tenant_id = '` + x.id + `'` }
	for name, wrong := range map[string][]string{
		"usage_aggregates":   {`DELETE FROM usage_aggregates` + of(one) + ` AND feature = 'calls'`, `UPDATE usage_aggregates SET amount = amount + 1` + of(one) + ` AND feature = 'api_calls'`},
		"usage_series":       {`UPDATE usage_series SET amount = amount + 1` + of(one)},
		"entitlement_reads":  {`UPDATE entitlement_usage SET used = used + 1` + of(one)},
		"dead_letter_events": {`UPDATE dead_letter_events SET status = 'DISCARDED'` + of(one)},
	} {
		w.run(wrong...)
		args := []string{"projections", "verify", name, "--repair", "--reason", "planted"}
		if name != "usage_series" { // all of its rows are replaced
			args = append(args, "--tenant-id", one.id)
		}
		out, code := w.command(at, args...)
		if code != 1 || !strings.Contains(out, one.id) {
			t.Fatalf("the repair of %s: exit code %d\n%s", name, code, out)
		}
	}
	w.plant(sound)
	var repairs []string
	within(t, "four repairs are promoted", func(ctx context.Context) (bool, string) {
		var page struct {
			Data []struct{ ID, State, CanRollBackUntil string }
		}
		err := w.get(ctx, w.operator, at, "/api/v1/rebuilds", &page)
		repairs = nil
		for _, r := range page.Data {
			if r.State == "PROMOTED" && r.CanRollBackUntil == "" {
				repairs = append(repairs, r.ID)
			}
		}
		return len(repairs) == 4, fmt.Sprintf("%+v %v", page, err)
	})
	for _, id := range repairs {
		if out, code := w.command(at, "projections", "rollback", id, "--reason", "a test", "--yes"); code == 0 || !strings.Contains(out, "rebuild_is_repair") {
			t.Errorf("the rollback of a repair: exit code %d\n%s", code, out)
		}
	}
	for _, p := range []planted{
		{check: usage, do: []string{`UPDATE usage_aggregates SET amount = amount + 1` + of(one) + ` AND feature = 'api_calls' AND generation > 1`}, undo: []string{`UPDATE usage_aggregates SET amount = amount - 1` + of(one) + ` AND feature = 'api_calls' AND generation > 1`}},
		{check: usage, do: []string{`UPDATE usage_aggregates SET amount = amount + 1` + of(other) + ` AND feature = 'api_calls'`}, undo: []string{`UPDATE usage_aggregates SET amount = amount - 1` + of(other) + ` AND feature = 'api_calls'`}},
		{check: "P3 consumed verdicts = applied + dead-lettered + withheld", do: []string{`UPDATE usage_aggregates SET applied_count = applied_count + 1` + of(one) + ` AND feature = 'api_calls' AND generation > 1`}, undo: []string{`UPDATE usage_aggregates SET applied_count = applied_count - 1` + of(one) + ` AND feature = 'api_calls' AND generation > 1`}},
		{check: series, do: []string{`UPDATE usage_series SET amount = amount + 1` + of(one) + ` AND generation > 1`}, undo: []string{`UPDATE usage_series SET amount = amount - 1` + of(one) + ` AND generation > 1`}},
		{check: entitlements, do: []string{`UPDATE entitlement_usage SET used = used + 1` + of(other)}, undo: []string{`UPDATE entitlement_usage SET used = used - 1` + of(other)}},
		{check: letters, do: []string{`UPDATE dead_letter_events SET status = 'DISCARDED'` + of(other)}, undo: []string{`UPDATE dead_letter_events SET status = 'FAILED'` + of(other)}},
	} {
		p.args = []string{"--only", "database"}
		w.plant(p)
	}
	w.finish()
}

// run executes statements as the superuser.
func (w *deployment) run(statements ...string) {
	w.t.Helper()
	for _, s := range statements {
		if _, err := w.sql.Exec(w.t.Context(), s); err != nil {
			w.t.Fatalf("%v: %s", err, s)
		}
	}
}
