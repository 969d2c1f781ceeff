package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// docBlock is a block of shell commands in a document, with their output.
type docBlock struct {
	path  string // from the root of the repository
	steps []step
}

// name identifies a block: its document and its first command.
func (b *docBlock) name() string { return b.path + " $ " + b.steps[0].command }

// docBlocks returns the blocks of commands of the README and of all documents in docs.
func docBlocks(t testing.TB) (all []docBlock) {
	t.Helper()
	root := filepath.Join("..", "..")
	read := func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all = append(all, blocksOf(filepath.ToSlash(name), string(text))...)
		return err
	}
	for _, at := range []string{"README.md", "docs"} {
		must.OK(t, filepath.WalkDir(filepath.Join(root, at), read))
	}
	return all
}

// blocksOf returns the blocks of commands of a document: a block is fenced, or indented by four spaces.
func blocksOf(path, text string) (all []docBlock) {
	var language string
	var lines []string
	end := func() {
		if steps := stepsOf(language, lines); len(steps) > 0 {
			all = append(all, docBlock{path, steps})
		}
		language, lines = "", nil
	}
	fenced, indent := false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if before, after, isFence := strings.Cut(line, "```"); isFence && strings.TrimSpace(before) == "" {
			end()
			fenced, language, indent = !fenced, after, before
			continue
		}
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case fenced:
			lines = append(lines, strings.TrimPrefix(line, indent))
		case indented:
			lines = append(lines, code)
		default:
			end()
		}
	}
	end()
	return all
}

// command matches the first line of a block of commands without a prompt.
var command = regexp.MustCompile(`^([A-Z_]+=\S+ )?(meterplex|make|go|curl|kcat|echo|psql|export|docker|npm|openssl|df) `)

// stepsOf returns the commands of a block: the lines behind "$ ", each with its output, else all lines if the
// block is of a shell or begins with a command.
func stepsOf(language string, lines []string) (steps []step) {
	for _, line := range lines {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, step{command: command})
		} else if len(steps) > 0 {
			last := &steps[len(steps)-1]
			last.want = append(last.want, line)
		}
	}
	if len(steps) > 0 || len(lines) == 0 || !slices.Contains([]string{"sh", "bash", "shell", "console"}, language) &&
		!command.MatchString(lines[0]) {
		return steps
	}
	more := false // the line before goes on
	for _, line := range lines {
		if more {
			steps[len(steps)-1].command += "\n" + line
		} else {
			steps = append(steps, step{command: line})
		}
		more = strings.HasSuffix(line, "\\") || strings.HasSuffix(line, "|")
	}
	return steps
}

// runnableBlocks returns the begins of the blocks that TestTranscriptsOfTheDocs runs. Those of the README, of limits, corrections, periods
// and prices and those of runbooks have tests of their own. The other blocks name objects of an installation, or need Docker, kcat or
// minutes of load.
func runnableBlocks() []string {
	return []string{
		"docs/how-to/prove-an-invoice-line.md $ curl", "docs/how-to/search-the-log.md $ curl",
		"docs/how-to/dead-letters.md $ meterplex dead-letters gr", "docs/reference/envelope.md $ meterplex schemas list",
		"docs/runbooks/kafka-data-lost.md $ meterplex", "docs/how-to/chart-usage.md $ meterplex usage series",
		"docs/how-to/chart-usage.md $ meterplex features put",
		"docs/how-to/rebuild.md $ meterplex projections verify", "docs/how-to/verify.md $ export",
		"docs/reference/overview.md $ meterplex system",
	}
}

// The commands of docs have the documented effect, on one service.
func TestTranscriptsOfTheDocs(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	at := w.serve("")
	dir := t.TempDir()
	var blocks []docBlock
	for _, b := range docBlocks(t) {
		if slices.ContainsFunc(runnableBlocks(), func(begin string) bool { return strings.HasPrefix(b.name(), begin) }) {
			blocks = append(blocks, b)
		}
	}
	define := slices.IndexFunc(blocks, func(b docBlock) bool {
		return strings.HasPrefix(b.name(), "docs/how-to/chart-usage.md $ meterplex features put")
	})
	runBlock(w, at, dir, blocks[define]) // keys of a new feature apply at once
	w.ask(w.operator, http.MethodPut, at, "/api/v1/plans/all", object{"name": "All", "entitlements": []object{
		{"feature": "api_calls", "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"}}}, nil, http.StatusCreated)
	x := w.createTenants(at, 1)[0]
	days := sendSeries(w, at, x)
	search, audit := auditing(w, at, x)
	for _, b := range blocks {
		switch b.path {
		case "docs/how-to/chart-usage.md":
			key := x.key
			if strings.Contains(b.name(), "features put") {
				key = w.operator
			}
			runBlock(w, at, dir, b.replaced(days), "METERPLEX_KEY="+key)
		case "docs/how-to/verify.md":
			b.steps = b.steps[1:] // the settings, which the shell has
			runBlock(w, at, dir, b, "DATABASE_URL="+w.db, "KAFKA_BROKERS="+strings.Join(w.brokers().Brokers(), ","),
				"METERPLEX_TOPIC_PREFIX="+w.prefix)
		case "docs/how-to/prove-an-invoice-line.md", "docs/how-to/search-the-log.md":
			runBlock(w, at, dir, b.replaced(search), audit...)
		default:
			runBlock(w, at, dir, b)
		}
	}
	if exported, err := os.ReadFile(filepath.Join(dir, "log.ndjson")); err != nil || !strings.Contains(string(exported), "series-1") {
		t.Errorf("docs/how-to/search-the-log.md exports %d bytes, %v", len(exported), err)
	}
}

// auditing returns the settings of the pages that search the log, and the replacement of its position and times. Commands that
// follow the log end at its end.
func auditing(w *deployment, at *instance, x *tenant) (*strings.Replacer, []string) {
	w.t.Helper()
	var found struct {
		Data []struct{ EventID, Position string }
	}
	w.ask(w.operator, http.MethodGet, at, "/api/v1/events?stream=usage/series-1&tenantId="+x.id, nil, &found, http.StatusOK)
	if len(found.Data) == 0 {
		w.t.Fatal("series-1 is not in the log")
	}
	month, position := time.Now().UTC().AddDate(0, 0, -2).Format("2006-01"), found.Data[0].Position
	return strings.NewReplacer("17-4711", position, "=2026-05&", "="+month+"&", "=2026-05\"", "="+month+"\"",
			"period 2026-05", "period "+month,
			"2026-06-01T00:00:00Z", time.Now().UTC().Format(time.RFC3339), "stream?last=10", "stream?last=10&follow=false", "tail -f",
			"tail"),
		[]string{"auth=Authorization: Bearer " + w.operator, "TENANT=" + x.id, "SUBSCRIPTION=" + x.subscription, "ID=" + found.Data[0].EventID,
			"MONTH=" + month, "FEATURE=api_calls", "POSITION=" + position}
}

// sendSeries sends the usage that docs/how-to/chart-usage.md shows, of the days before yesterday and yesterday instead of those of
// the document. It returns the replacement of the dates.
func sendSeries(w *deployment, at *instance, x *tenant) *strings.Replacer {
	w.t.Helper()
	day := func(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly) }
	days := []string{day(-2), day(-1), day(0)}
	n := 0
	for _, group := range []struct {
		day, region    string
		amount, events int
	}{{days[0], "eu", 4200, 17}, {days[0], "us", 950, 4}, {days[1], "eu", 3100, 12}} {
		var list []map[string]any
		for i := range group.events {
			amount := 1
			if i == 0 {
				amount = group.amount - group.events + 1
			}
			n++
			list = append(list, map[string]any{"type": "usage", "eventId": fmt.Sprint("series-", n), "feature": "api_calls",
				"amount":    amount,
				"timestamp": group.day + "T12:00:00Z", "metadata": map[string]any{"region": group.region}})
		}
		w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", map[string]any{"events": list}, nil, http.StatusAccepted)
	}
	w.drain()
	return strings.NewReplacer("2026-05-01", days[0], "2026-05-02", days[1], "2026-05-03", days[2])
}

func (b docBlock) replaced(by *strings.Replacer) docBlock {
	other := docBlock{path: b.path}
	for _, s := range b.steps {
		s.command = by.Replace(s.command)
		want := s.want
		s.want = nil
		for _, line := range want {
			s.want = append(s.want, by.Replace(line))
		}
		other.steps = append(other.steps, s)
	}
	return other
}

// changing matches values that differ in each run: times to the fraction of a second, positions and numbers of events.
var changing = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]*\.\d+Z|\b\d+-\d+\b\.?$|\d+ events|accepted \d+ = applied \d+ \+ rejected \d+`)

// runBlock runs the commands of a block, and compares their output with that of the document; a command without output in it must succeed.
func runBlock(w *deployment, at *instance, dir string, b docBlock, env ...string) {
	w.t.Helper()
	env = append([]string{"METERPLEX_URL=" + at.url(), "METERPLEX_ADMIN_URL=" + at.health(), "METERPLEX_KEY=" + w.operator}, env...)
	for _, s := range b.steps {
		for n := range s.want {
			s.want[n] = changing.ReplaceAllString(s.want[n], "…")
		}
		command := "curl() { command curl -sSf \"$@\"; }\n" + s.command
		if failure := tryCommand(w, dir, step{command, s.want}, []string{"0"}, env...); failure != "" {
			w.t.Errorf("%s: %s", b.path, failure)
		}
	}
}

// tryCommand runs a command in a shell, and returns "" or how its exit code or its output differs: the wanted lines are printed in their
// order, beside others.
func tryCommand(w *deployment, dir string, s step, codes []string, env ...string) (failure string) {
	w.t.Helper()
	built, err := binary()
	must.OK(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-c", "exec 2>&1\nmeterplex() { "+built+" \"$@\"; }\n"+s.command)
	shell.Dir, shell.WaitDelay, shell.SysProcAttr = dir, 10*time.Second, childAttributes()
	shell.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, env...)
	out, err := shell.CombinedOutput()
	code := "0"
	if err != nil {
		code = strings.TrimPrefix(err.Error(), "exit status ")
	}
	w.t.Logf("$ %s\n%.1500s", s.command, out)
	if !slices.Contains(codes, code) {
		return fmt.Sprintf("$ %s\nended with %s, and the document says %v:\n%s", s.command, code, codes, out)
	}
	rest := strings.Split(string(out), "\n")
	for _, want := range s.want {
		if strings.TrimSpace(want) == "…" {
			continue
		}
		n := slices.IndexFunc(rest, func(got string) bool { return matches(want, got) })
		if n < 0 {
			return fmt.Sprintf("$ %s\nprinted no line %q of the document:\n%s", s.command, want, out)
		}
		rest = rest[n+1:]
	}
	return ""
}
