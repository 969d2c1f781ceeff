package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// verifyLine is a line of the output of meterplex verify.
type verifyLine struct {
	Check, Figures, Needs string
	Holds                 *bool
	Looked                bool
}

// verifyResult is an outcome of meterplex verify.
type verifyResult struct {
	lines  []verifyLine
	code   int
	stderr string
}

// verify runs meterplex verify with access to the database and the topics. If at is not nil, verify also reads
// its HTTP API.
func (w *deployment) verify(at *instance, args ...string) (p verifyResult) {
	w.t.Helper()
	return w.verifyWith(at, func() {}, args...)
}

// verifyWith calls watching as soon as verify watches for changes below known positions.
func (w *deployment) verifyWith(at *instance, watching func(), args ...string) (p verifyResult) {
	w.t.Helper()
	path, err := binary()
	must.OK(w.t, err)
	cmd := exec.Command(path, append([]string{"verify", "-o", "json"}, args...)...)
	cmd.Env, cmd.SysProcAttr = []string{"HOME=" + w.t.TempDir(), "DATABASE_URL=" + w.db, "METERPLEX_PIPE=" + w.pipe, "METERPLEX_TOPIC_PREFIX=" + w.prefix,
		"KAFKA_BROKERS=" + strings.Join(w.brokers().Brokers(), ","), "METERPLEX_KEY=" + w.operator}, childAttributes()
	if at != nil {
		cmd.Env = append(cmd.Env, "METERPLEX_URL="+at.url())
	}
	cmd.Env = append(cmd.Env, w.access...)
	var out, seen bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trigger{Writer: &seen, on: "watching", do: watching}
	if err := cmd.Run(); err != nil {
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			w.t.Fatal(err)
		}
		p.code = exit.ExitCode()
	}
	p.stderr = seen.String()
	if err := json.Unmarshal(out.Bytes(), &p.lines); err != nil && p.code != 2 {
		w.t.Fatalf("verify %v: %v\n%s\n%s", args, err, out.String(), p.stderr)
	}
	return p
}

// failedChecks returns the checks that do not hold.
func (p *verifyResult) failedChecks() (names []string) {
	for _, l := range p.lines {
		if l.Holds != nil && !*l.Holds {
			names = append(names, l.Check)
		}
	}
	return names
}

func (p *verifyResult) String() string {
	var b strings.Builder
	for _, l := range p.lines {
		holds := "-"
		if l.Holds != nil {
			holds = fmt.Sprint(*l.Holds)
		}
		fmt.Fprintf(&b, "%-5s %s: %s\n", holds, l.Check, l.Figures)
	}
	return fmt.Sprintf("exit code %d\n%s%s", p.code, b.String(), p.stderr)
}

// requireProven fails the test unless every check ran and holds.
func (w *deployment) requireProven(when string, p verifyResult) {
	w.t.Helper()
	for _, l := range p.lines {
		if !l.Looked || l.Holds == nil || !*l.Holds {
			w.t.Errorf("%s: %s: %s", when, l.Check, l.Figures)
		}
	}
	if p.code != 0 || len(p.lines) < 20 {
		w.t.Errorf("%s, %d lines: %s", when, len(p.lines), p.String())
	}
}

// verify proves a live service under load, and again after it has stopped; then each
// plant is found by exactly one check.
func TestVerifyHoldsAndReportsEachPlantedFault(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i, other := w.serve("", hooksAllowed), w.serve("api")
	w.catalogue(i)
	tenants := w.createTenantsApart(i, 6)
	l := w.startLoad(tenants, 1, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(100)
	refused := w.acceptThenReject(i, other, tenants[0])
	w.retryDeadLetter(i, tenants[0], refused)
	w.requireProven("under load", w.verify(i, "--all"))
	l.stop()
	w.settle(i, tenants...)
	// Some plants need these events of this tenant; the load may not have sent any.
	response := events("told", 1, "api_calls")
	w.ingest(i, tenants[0], "accepted", response...)
	w.ingest(i, tenants[0], "duplicate", response...)
	response[0].Amount++
	w.ingest(i, tenants[0], "conflict", response...)
	w.limitedUsage(i, tenants[0])
	for n := range 3 { // a figure of so many events has running totals
		w.ingest(i, tenants[0], "accepted", events(fmt.Sprint("many", n), 1000, "api_calls")...)
	}
	w.sendGroups(i, tenants[0])
	w.sendCorrections(i, tenants[0])
	w.drain()
	w.requireProven("with corrections", w.verify(i, "--all"))
	w.sendWebhooks(i, tenants[0])
	w.closeAndAdjust(i, tenants[0])
	w.definePrice(i)
	w.offboard(i, tenants[1])
	w.delivered()
	response[0].Amount--
	w.ingest(i, tenants[0], "duplicate", response...) // recorded last: no other event follows from its event
	w.drain()
	w.requireProven("with a closed period", w.verify(i, "--all"))
	w.checkLimitedAccess(i)
	i.stop()
	other.stop()
	still := w.verify(nil, "--only", "database,topics", "--watch", "0s")
	w.requireProven("stopped", still)
	t.Log(still.String())
	if got := w.number(`SELECT count(*) FROM usage_running_totals`); got == 0 {
		t.Error("no running totals were compared with the log")
	}
	seen := map[string]bool{}
	for _, p := range w.plants(tenants) {
		w.plant(p)
		seen[p.check] = true
	}
	for _, line := range still.lines {
		if !seen[line.Check] {
			t.Errorf("no plant for %q", line.Check)
		}
	}
}

// sendGroups sends usage of one hour in several groups, and some that has no value.
func (w *deployment) sendGroups(at *instance, x *tenant) {
	w.t.Helper()
	hour := time.Now().UTC().Truncate(time.Hour)
	var list []object
	for n, metadata := range []object{{"region": "eu"}, {"region": "us"}, {"region": "a < \"b\" é"}, {"region": 7}, {"region": nil}, {"region": []int{1}}, {"region": strings.Repeat("x", 101)}, {"region": "other"}, {"else": "eu"}, {}} {
		list = append(list, object{"type": "usage", "eventId": fmt.Sprint("grouped-", n), "feature": "grouped", "amount": 1 << n, "timestamp": hour.Format(time.RFC3339), "metadata": metadata})
	}
	w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": list}, nil, http.StatusAccepted)
}

// checkLimitedAccess checks that verify without access still runs the other checks, reports the
// skipped ones, and does not mistake hidden rows for missing rows.
func (w *deployment) checkLimitedAccess(at *instance) {
	w.t.Helper()
	out, code := w.command(at, "verify")
	if code != 0 || !strings.Contains(out, "not checked: set DATABASE_URL") || !strings.Contains(out, "40 of 45 checks were skipped") {
		w.t.Errorf("over HTTP only, exit code %d\n%s", code, out)
	}
	if out, code := w.command(at, "verify", "--only", "database"); code != 2 {
		w.t.Errorf("--only database without a database, exit code %d\n%s", code, out)
	}
	blind, secret := "blind_"+strings.TrimSuffix(w.prefix, "."), "'only for a test'"
	if _, err := w.sql.Exec(w.t.Context(), `CREATE ROLE `+blind+` LOGIN PASSWORD `+secret); err != nil {
		w.t.Fatal(err)
	}
	defer func() { _, _ = w.sql.Exec(context.Background(), `DROP ROLE `+blind) }()
	address, err := url.Parse(w.db)
	must.OK(w.t, err)
	address.User = url.UserPassword(blind, strings.Trim(secret, "'"))
	out, code = w.command(at, "verify", "--only", "database", "--database-url", address.String())
	if code != 2 || !strings.Contains(out, "row level security hides every tenant's rows") {
		w.t.Errorf("with a login that sees no rows, exit code %d\n%s", code, out)
	}
	if _, err := w.sql.Exec(w.t.Context(), `GRANT meterplex_worker TO `+blind); err != nil {
		w.t.Fatal(err)
	}
	out, code = w.command(at, "verify", "--only", "database", "-o", "csv", "--watch", "0s", "--database-url", address.String())
	if code != 2 || strings.Contains(out, ",false,") || !strings.Contains(out, "GRANT pg_read_all_stats") {
		w.t.Errorf("with a login that cannot see sessions, exit code %d\n%s", code, out)
	}
}

// createTenantsApart creates tenants in different partitions.
func (w *deployment) createTenantsApart(at *instance, n int) (all []*tenant) {
	w.t.Helper()
	w.createTenants(at, 3*n)
	in := map[int]*tenant{}
	for _, x := range w.tenants {
		if p := partitionOf(x.id); in[p] == nil && len(in) < n {
			in[p] = x
		}
	}
	if len(in) < n {
		w.t.Fatalf("%d tenants are in only %d partitions", 3*n, len(in))
	}
	return slices.Collect(maps.Values(in))
}

// retryDeadLetter retries the dead letter of an event that was rejected after it was accepted. The
// tenant has a subscription again.
func (w *deployment) retryDeadLetter(at *instance, x *tenant, refused event) {
	w.t.Helper()
	within(w.t, "the refused event is a dead letter", func(ctx context.Context) (bool, string) {
		var page struct{ Data []deadLetter }
		w.ask(w.operator, http.MethodGet, at, "/api/v1/dead-letters?stage=VALIDATION&tenantId="+x.id, nil, &page, http.StatusOK)
		for _, letter := range page.Data {
			if letter.EventID == refused.EventID {
				w.ask(w.operator, http.MethodPost, at, "/api/v1/dead-letters/"+letter.ID+"/retry", object{"reason": "a test"}, nil, http.StatusAccepted)
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", page.Data)
	})
}

// planted is a corruption, the check that finds it, and its removal.
type planted struct {
	check    string
	also     []string // checks that compare the same rows with something else
	do, undo []string
	by       func()
	during   string // SQL, while verify watches
	args     []string
}

func (w *deployment) plant(p planted) {
	w.t.Helper()
	for _, sql := range p.do {
		if tag, err := w.sql.Exec(w.t.Context(), sql); err != nil || (strings.HasPrefix(sql, "UPDATE") || strings.HasPrefix(sql, "INSERT")) && tag.RowsAffected() == 0 {
			w.t.Fatalf("plant for %q: %v\n%s", p.check, err, sql)
		}
	}
	if p.by != nil {
		p.by()
	}
	if !slices.Contains(p.args, "--watch") {
		p.args = append(p.args, "--watch", "0s")
	}
	if !slices.Contains(p.args, "--only") {
		p.args = append(p.args, "--only", "database,topics")
	}
	found := w.verifyWith(nil, func() {
		if _, err := w.sql.Exec(w.t.Context(), cmp.Or(p.during, "SELECT")); err != nil {
			w.t.Error(err)
		}
	}, p.args...)
	if p.during != "" && found.code == 0 { // the change may have come after the watch
		p.args[slices.Index(p.args, "--watch")+1] = "20s"
		found = w.verifyWith(nil, func() { _, _ = w.sql.Exec(w.t.Context(), p.during) }, p.args...)
	}
	names, want, code := found.failedChecks(), append([]string{p.check}, p.also...), 1
	if p.check == "" { // it is sound
		want, code = nil, 0
	}
	if found.code != code || !slices.Equal(names, want) {
		w.t.Errorf("planted for %q, found: %q\n%v\n%s", p.check, names, p.do, found.String())
	}
	for _, sql := range p.undo {
		if _, err := w.sql.Exec(context.Background(), sql); err != nil {
			w.t.Fatalf("undo the plant for %q: %v\n%s", p.check, err, sql)
		}
	}
}

// verifyAtEnd runs verify at the end of a test, after the tests' own checker.
func (w *deployment) verifyAtEnd() {
	w.t.Helper()
	only := "database"
	if w.pipe == "kafka" && w.goneUpTo == nil {
		only += ",topics"
	}
	p := w.verify(nil, "--only", only, "--watch", "0s")
	for _, l := range p.lines {
		if l.Holds == nil || !*l.Holds {
			w.t.Errorf("verify: %s: %s", l.Check, l.Figures)
		}
	}
	if p.code != 0 {
		w.t.Errorf("verify: %s", p.String())
	}
}
