package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/local"
)

// report is the result of a run.
type report struct {
	length, tortured time.Duration
	start            time.Time
	rounds           []string
	kinds            map[string]*faultCount
	recoveries       []time.Duration
	limit            time.Duration // the longest limit of a recovery
	others           float64       // greatest share of the machine that other programs used
	invariants       []invariant
	figures          string
	unknown          int // at the end, of requests
	messages         int // whose events had no answer
	unanswered       int // requests, in total
	lost, doubled    int
	goroutines       int
	verify           string
	versions         string
	whole            bool // the run reached its end
}

// faultCount counts how often a kind of fault was reached.
type faultCount struct {
	Reached, Missed int
	took            []time.Duration
}

type invariant struct {
	Name    string `json:"invariant"`
	Figures string `json:"figures"`
	Holds   bool   `json:"holds"`
	Took    string `json:"took"`
}

func newReport(x *torture, length time.Duration) *report {
	r := &report{length: length, start: time.Now(), kinds: map[string]*faultCount{}, versions: x.versions()}
	for _, k := range faultKinds(len(x.brokers())) {
		r.kinds[k.name] = &faultCount{} // kinds that are never drawn are reported, too
	}
	return r
}

func (r *report) fault(f drawnFault, why string, recovery time.Duration) {
	k := r.kinds[f.kind.name]
	if why != "" {
		k.Missed++
		return
	}
	k.Reached++
	k.took = append(k.took, recovery)
}

func (r *report) recovered(took, limit time.Duration, others float64) {
	r.recoveries, r.limit, r.others = append(r.recoveries, took), max(r.limit, limit), max(r.others, others)
}

func (r *report) round(now round, recovery, limit time.Duration, wrong int) {
	text := fmt.Sprintf("%s: recovered after %s, limit %s", now, recovery.Round(time.Millisecond), limit)
	if wrong > 0 {
		text += fmt.Sprintf(", %d FAULTS", wrong)
	}
	r.rounds = append(r.rounds, text)
}

func (r *report) proved(name, figures string, holds bool, took time.Duration) {
	r.invariants = append(r.invariants, invariant{name, figures, holds, took.Round(time.Millisecond).String()})
}

// medianAndMax returns the median and the greatest of some times.
func medianAndMax(all []time.Duration) (p50, most time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2].Round(time.Millisecond), sorted[len(sorted)-1].Round(time.Millisecond)
}

// write writes the report, also of a failed run, which keeps its logs.
func (r *report) write(x *torture) {
	outcome := "all invariants held"
	if x.rec.Failed() || !r.whole {
		outcome = "FAILED"
		x.t.Logf("SEED=%d repeats it; its logs are in %s", x.seed, x.keepLogs())
	}
	x.t.Logf("%s in %s of faults, %d rounds; acked %d, duplicates %d, conflicts %d, rejected %d, %d requests without an answer, unknown at the end %d (all settled), lost %d, doubled %d; %s",
		outcome, r.tortured.Round(time.Second), len(r.rounds), x.total("accepted"), x.total("duplicate"), x.total("conflict"), x.total("rejected"), r.unanswered, r.unknown, r.lost, r.doubled, x.work)
	path := os.Getenv("METERPLEX_TORTURE_REPORT")
	if path == "" {
		return
	}
	raw, err := json.MarshalIndent(r.figuresOf(x, outcome), "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, []byte(r.page(x, outcome)), 0o644)
	}
	if err == nil {
		err = os.WriteFile(strings.TrimSuffix(path, ".md")+".json", append(raw, '\n'), 0o644)
	}
	if err != nil {
		x.t.Errorf("write the report: %v", err)
	}
}

func (r *report) command(x *torture) string {
	text := fmt.Sprintf("make torture DURATION=%s SEED=%d", r.length, x.seed)
	if n := len(x.brokers()); n > 1 {
		text += fmt.Sprintf(" BROKERS=%d", n)
	}
	return text
}

func (r *report) figuresOf(x *torture, outcome string) object {
	kinds := object{}
	for name, k := range r.kinds {
		p50, most := medianAndMax(k.took)
		kinds[name] = object{"reached": k.Reached, "missed": k.Missed, "recoveryP50Ms": p50.Milliseconds(), "recoveryMaxMs": most.Milliseconds()}
	}
	beside := object{}
	for _, c := range x.work.counts() {
		beside[c.name] = c.n
	}
	p50, most := medianAndMax(r.recoveries)
	return object{
		"outcome": outcome, "command": r.command(x), "seed": x.seed, "commit": commit(), "machine": machineName(), "versions": r.versions,
		"started": r.start.UTC().Format(time.RFC3339), "torturedSeconds": int(r.tortured.Seconds()), "instances": len(x.members), "rounds": r.rounds,
		"counts": object{"acked": x.total("accepted"), "duplicate": x.total("duplicate"), "conflict": x.total("conflict"), "rejected": x.total("rejected"),
			"requestsWithoutAnswer": r.unanswered, "unknown": r.unknown, "unknownOfMessages": r.messages, "lost": r.lost, "doubled": r.doubled},
		"beside": beside, "faults": kinds, "recoveryP50Ms": p50.Milliseconds(), "recoveryMaxMs": most.Milliseconds(),
		"othersPercent": int(r.others * 100), "limitSeconds": r.limit.Seconds(), "invariants": r.invariants, "failures": x.rec.failures,
	}
}

func (r *report) page(x *torture, outcome string) string {
	var b strings.Builder
	p50, most := medianAndMax(r.recoveries)
	fmt.Fprintf(&b, "# Torture: %s\nWritten by a run, which docs/reliability/README.md describes.\n\n", outcome)
	fmt.Fprintf(&b, "    %s\n\n", r.command(x))
	fmt.Fprintf(&b, "Commit %s, started %s, %s of faults in %d rounds, %d instances. %s. %s.\n\n", commit(), r.start.UTC().Format(time.RFC3339),
		r.tortured.Round(time.Second), len(r.rounds), len(x.members), machineName(), r.versions)
	if len(x.rec.failures) > 0 {
		fmt.Fprintf(&b, "## Failures\n```\n%s\n```\n\n", strings.Join(x.rec.failures[:min(len(x.rec.failures), 50)], "\n"))
	}
	fmt.Fprintf(&b, "## Counts\n| acked | duplicate | conflict | rejected | requests without an answer | events unknown at the end, settled by sending again | lost | doubled |\n|---|---|---|---|---|---|---|---|\n| %d | %d | %d | %d | %d | %d, and %d of messages | **%d** | **%d** |\n\n",
		x.total("accepted"), x.total("duplicate"), x.total("conflict"), x.total("rejected"), r.unanswered, r.unknown, r.messages, r.lost, r.doubled)
	fmt.Fprintf(&b, "Besides: %s.\n\n", x.work)
	fmt.Fprintf(&b, "## Faults\nRecovery is the time from the end of a round's last fault, when all stopped processes serve again, until relay and consumers have reached the end of the log; a round has several faults. A kind that was never drawn has 0. In total: p50 %s, max %s; the limit is 30 s of the whole machine. Other programs used at most %.0f %% of the machine meanwhile, which raised the limit to at most %s.\n\n", p50, most, r.others*100, r.limit)
	b.WriteString("| fault | reached | missed | recovery p50 | max |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.kinds)) {
		k := r.kinds[name]
		p50, most := medianAndMax(k.took)
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %s |\n", name, k.Reached, k.Missed, p50, most)
	}
	b.WriteString("\n## Invariants\n| invariant | figures | holds |\n|---|---|---|\n")
	fmt.Fprintf(&b, "| lag 0 within 30 s (see above) of the end of the faults, in each round | max %s | %t |\n", most, !slices.ContainsFunc(x.rec.failures, func(f string) bool { return strings.Contains(f, "recovered") }))
	for _, i := range r.invariants {
		fmt.Fprintf(&b, "| %s | %s | %t |\n", i.Name, i.Figures, i.Holds)
	}
	fmt.Fprintf(&b, "\n## meterplex verify --all\n```\n%s\n```\n\n## Rounds\n", strings.TrimSpace(r.verify))
	for _, text := range r.rounds {
		fmt.Fprintf(&b, "- %s\n", text)
	}
	return b.String()
}

func (x *torture) versions() string {
	database := "?"
	_ = x.sql.QueryRow(x.t.Context(), `SHOW server_version`).Scan(&database)
	broker := "?"
	if raw, err := filepath.Glob(filepath.Join("..", "..", "..", "infra", "local", "localkafka", "kafka-*-jars.sha256")); err == nil && len(raw) == 1 {
		broker = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(raw[0]), "kafka-"), "-jars.sha256")
	}
	if n := len(x.brokers()); n > 1 {
		broker += fmt.Sprintf(" of %d brokers", n)
	}
	return fmt.Sprintf("PostgreSQL %s with a synchronous standby, Apache Kafka %s, %s", database, broker, goVersion())
}

func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// keepLogs copies the logs of instances and servers to a folder that is not removed.
func (x *torture) keepLogs() string {
	dir := os.Getenv("METERPLEX_TORTURE_LOGS")
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "meterplex-torture-"); err != nil {
			return err.Error()
		}
	}
	_ = os.MkdirAll(dir, 0o755)
	for _, m := range x.members {
		_ = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(m.name, " ", "-")+".log"), []byte(m.lastLines(1<<30)), 0o644)
	}
	servers := map[string]string{}
	for name, server := range map[string]*local.Postgres{"postgres": x.servers.primary, "postgres-standby": x.servers.standby, "postgres-former": x.servers.former} {
		if server != nil {
			servers[name+".log"] = filepath.Join(server.Dir(), "postgres.log")
		}
	}
	for _, k := range x.brokers() {
		home := filepath.Dir(k.Dir())
		servers[filepath.Base(home)+".log"] = filepath.Join(home, "kafka.log")
	}
	for name, path := range servers {
		if raw, err := os.ReadFile(path); err == nil {
			_ = os.WriteFile(filepath.Join(dir, name), raw, 0o644)
		}
	}
	_ = os.WriteFile(filepath.Join(dir, "failures.txt"), []byte(strings.Join(x.rec.failures, "\n")), 0o644)
	return dir
}
