package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

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
	return verifyWith(w, at, func() {}, args...)
}

// verifyWith calls watching as soon as verify watches for changes below known positions.
func verifyWith(w *deployment, at *instance, watching func(), args ...string) (p verifyResult) {
	w.t.Helper()
	path, err := binary()
	must.OK(w.t, err)
	cmd := exec.Command(path, append([]string{"verify", "-o", "json"}, args...)...)
	cmd.Env, cmd.SysProcAttr = []string{"HOME=" + w.t.TempDir(), "DATABASE_URL=" + w.db, "METERPLEX_PIPE=" + w.pipe,
		"METERPLEX_TOPIC_PREFIX=" + w.prefix,
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
func requireProven(w *deployment, when string, p verifyResult) {
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

// verify proves a live service under load, with events of every kind, and again after it has stopped; then each planted row is found by
// its check.
func TestVerifyHoldsAndReportsEachPlantedFault(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i, other := w.serve("", hooksAllowed), w.serve("api")
	w.catalogue(i)
	tenants := createTenantsApart(w, i, 6)
	l := w.startLoad(tenants, 1, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(100)
	refused := acceptThenReject(w, i, other, tenants[0])
	retryDeadLetter(w, i, tenants[0], refused)
	requireProven(w, "under load", w.verify(i, "--all"))
	l.stop()
	w.settle(i, tenants...)
	told := events("told", 1, "api_calls") // some rows need these events of this tenant
	w.ingest(i, tenants[0], "accepted", told...)
	w.ingest(i, tenants[0], "duplicate", told...)
	told[0].Amount++
	w.ingest(i, tenants[0], "conflict", told...)
	limitedUsage(w, i, tenants[0])
	for n := range 3 { // a figure of so many events has running totals
		w.ingest(i, tenants[0], "accepted", events(fmt.Sprint("many", n), 1000, "api_calls")...)
	}
	sendGroups(w, i, tenants[0])
	sendCorrections(w, i, tenants[0])
	w.drain()
	requireProven(w, "with corrections", w.verify(i, "--all"))
	repairFigures(w, i, tenants[2])
	sendWebhooks(w, i, tenants[0])
	closeAndAdjust(w, i, tenants[0])
	definePrice(w, i)
	offboard(w, i, tenants[1])
	delivered(w)
	told[0].Amount--
	w.ingest(i, tenants[0], "duplicate", told...) // recorded last: no other event follows from its event
	w.drain()
	requireProven(w, "with a closed period", w.verify(i, "--all"))
	checkLimitedAccess(w, i)
	i.stop()
	other.stop()
	still := w.verify(nil, "--only", "database,topics", "--watch", "0s")
	requireProven(w, "stopped", still)
	if got := w.count(`SELECT count(*) FROM usage_running_totals`); got == 0 {
		t.Error("no running totals were compared with the log")
	}
	w.sql.Reset() // a database with sessions cannot be copied
	seen := map[string]bool{}
	for _, p := range plants(w, tenants) {
		plant(w, p)
		seen[p.check] = true
	}
	for _, line := range still.lines {
		if !seen[line.Check] {
			t.Errorf("no plant for %q", line.Check)
		}
	}
}

// repairFigures repairs wrong rows of a tenant, or of all, in each projection. The wrong rows stay for a day: readers never see them
// again, and verify does not compare them.
func repairFigures(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	again := events("again", 1, "api_calls")
	w.ingest(at, x, "accepted", again...)
	w.ingest(at, x, "accepted", events("limited", 3, "calls")...)
	again[0].Amount += 10
	w.ingest(at, x, "conflict", again...) // a dead letter
	w.drain()
	for name, wrong := range map[string][]string{
		"usage_aggregates": {`DELETE FROM usage_aggregates WHERE feature = 'calls'`,
			`UPDATE usage_aggregates SET amount = amount + 1 WHERE feature = 'api_calls'`},
		"usage_series":       {`UPDATE usage_series SET amount = amount + 1 WHERE true`},
		"entitlement_reads":  {`UPDATE entitlement_usage SET used = used + 1 WHERE true`},
		"dead_letter_events": {`UPDATE dead_letter_events SET status = 'DISCARDED' WHERE true`},
	} {
		for _, change := range wrong { // of the rows that readers see, not of a rebuild that still exists
			w.run(change + fmt.Sprintf(` AND tenant_id = '%s' AND generation = live_generation('%s', tenant_id)`, x.id, name))
		}
		args := []string{"projections", "verify", name, "--repair", "--reason", "planted"}
		if name != "usage_series" { // all of its rows are replaced
			args = append(args, "--tenant", x.id)
		}
		if out, code := w.command(at, args...); code != 1 || !strings.Contains(out, x.id) {
			w.t.Fatalf("the repair of %s: exit code %d\n%s", name, code, out)
		}
	}
	requireProven(w, "repaired", w.verify(at, "--all"))
}

// P3: a verdict that cannot be published is withheld and parked, and redone once the
// broker accepts it; verify holds in both states.
func TestP3_VerifyHandlesWithheldAndRetriedEvents(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	small, large := "500", "1048588"
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	within(t, "the topic for small records exists", func(ctx context.Context) (bool, string) {
		_, err := admin.CreateTopic(ctx, 32, 1, map[string]*string{"max.message.bytes": &small}, w.prefix+"usage.validated")
		return err == nil || errors.Is(err, kerr.TopicAlreadyExists), fmt.Sprint(err) // a busy broker may answer late
	})
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	one := events("", 1, "api_calls")
	noise := make([]byte, 120) // incompressible
	_, _ = rand.Read(noise)
	one[0].EventID = hex.EncodeToString(noise)
	w.ingest(i, x, "accepted", one...)
	letter := awaitLetter(w, i, x, "FAILED")
	if letter.Stage != "PUBLISHING" && letter.Stage != "AGGREGATION" {
		t.Errorf("the dead letter is of %s", letter.Stage)
	}
	w.drain()
	p := w.verify(nil, "--only", "database,topics", "--watch", "0s")
	requireProven(w, "withheld", p)
	checkFigure(w, p, "P3 consumed results = ", "1 withheld")
	checkFigure(w, p, "P11 each record equals its event", "1 stand-ins")

	_, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &large}},
		w.prefix+"usage.validated")
	must.OK(t, err)
	within(t, "the verdict is redone", func(context.Context) (bool, string) {
		var page struct{ Data []deadLetter }
		w.ask(w.operator, http.MethodGet, i, "/api/v1/dead-letters?tenantId="+x.id, nil, &page, http.StatusOK)
		if len(page.Data) == 1 && page.Data[0].Status == "FAILED" {
			// 409 if a retry is under way
			_, _, _ = w.call(t.Context(), w.operator, http.MethodPost, i.url()+"/api/v1/dead-letters/"+letter.ID+"/retry",
				object{"reason": "a test"})
		}
		return len(page.Data) == 1 && page.Data[0].Status == "RESOLVED", fmt.Sprintf("%+v", page.Data)
	})
	w.drain()
	p = w.verify(nil, "--only", "database,topics", "--watch", "0s")
	requireProven(w, "redone", p)
	checkFigure(w, p, "P3 consumed results = ", "1 applied")
	if n := w.count(`SELECT count(*) FROM event_log_rows WHERE subject = 12`); n == 0 {
		t.Error("no verdict was redone")
	}
}

// checkFigure fails the test unless a check's figures contain a text.
func checkFigure(w *deployment, p verifyResult, check, text string) {
	w.t.Helper()
	n := slices.IndexFunc(p.lines, func(l verifyLine) bool { return strings.HasPrefix(l.Check, check) })
	if n < 0 || !strings.Contains(p.lines[n].Figures, text) {
		w.t.Errorf("%s has no figures with %q: %s", check, text, p.String())
	}
}

// checkLimitedAccess checks that verify without access still runs the other checks, reports the
// skipped ones, and does not mistake hidden rows for missing rows.
func checkLimitedAccess(w *deployment, at *instance) {
	w.t.Helper()
	out, code := w.command(at, "verify")
	if code != 0 || !strings.Contains(out, "43 of 49 checks were skipped: set DATABASE_URL (43)\n") {
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
