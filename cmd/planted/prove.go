package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// envOverlay names the overlay for tests that build the service.
const envOverlay = "METERPLEX_TEST_OVERLAY"

// envPatience bounds the waits of end-to-end tests: with a bug in it, the service often never reaches the awaited state.
const envPatience, patience = "METERPLEX_TEST_PATIENCE", "60s"

// prover runs tests of a project with bugs planted.
type prover struct {
	root    string
	bugs    []bug
	log     io.Writer
	verbose bool
	limit   time.Duration // of one test
}

// outcome is the result for a planted bug.
type outcome string

// The outcomes.
const (
	caught   outcome = "caught"
	survived outcome = "SURVIVED"
	unclear  outcome = "UNCLEAR" // the test failed with another text than the bug's
	unbuilt  outcome = "UNBUILT"
	notRun   outcome = "not run yet"
)

// finding is the result for one bug with its message.
type finding struct {
	*bug
	outcome outcome
	by      string // the test that failed
	message string // the first failure text, or why the bug could not be built
	took    time.Duration
}

func (f *finding) summary() string {
	if f.by != "" {
		return f.by + ": " + f.message
	}
	return f.message
}

// prove plants a bug and runs its test, which has to fail.
func (p *prover) prove(ctx context.Context, b *bug) finding {
	f := finding{bug: b, outcome: unbuilt}
	began := time.Now()
	defer func() { f.took = time.Since(began) }()
	dir, err := os.MkdirTemp("", "meterplex-planted-*")
	if err != nil {
		f.message = err.Error()
		return f
	}
	defer os.RemoveAll(dir)
	path, err := b.plant(dir, p.root)
	if err != nil {
		f.message = err.Error()
		return f
	}
	r, err := p.test(ctx, b.pkg, b.run, p.limit, path)
	if err != nil {
		f.message = err.Error()
		return f
	}
	f.outcome, f.by, f.message = r.outcomeOf(b)
	f.took = time.Since(began)
	return f
}

// control runs the bugs' tests without the bugs: a test that fails by itself catches no bug.
func (p *prover) control(ctx context.Context, bugs []bug) error {
	tests := map[string][]string{}
	for _, b := range bugs {
		if !slices.Contains(tests[b.pkg], b.run) {
			tests[b.pkg] = append(tests[b.pkg], b.run)
		}
	}
	for _, pkg := range slices.Sorted(keys(tests)) {
		began := time.Now()
		for _, run := range combinedPatterns(tests[pkg]) {
			r, err := p.test(ctx, pkg, run, 3*p.limit, "")
			if err != nil {
				return err
			}
			if r.build != "" || !r.passed || r.ran == 0 {
				_, by, message := r.outcomeOf(&bug{hangs: true, says: "."})
				return fmt.Errorf("without any bug %s %s does not pass: %s %s%s", pkg, run, by, message, r.build)
			}
		}
		fmt.Fprintf(p.log, "%-9s %-34s %5.1fs  %d tests pass without any bug\n", "control", pkg, time.Since(began).Seconds(), len(tests[pkg]))
	}
	return nil
}

func keys(m map[string][]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// combinedPatterns makes one pattern of whole tests. A part of a test gets a pattern of its own,
// since go test splits a pattern at its slashes first.
func combinedPatterns(runs []string) (patterns []string) {
	var whole []string
	for _, r := range runs {
		if strings.Contains(r, "/") {
			patterns = append(patterns, r)
		} else {
			whole = append(whole, r)
		}
	}
	if len(whole) > 0 {
		patterns = append(patterns, "^("+strings.Join(whole, "|")+")$")
	}
	return patterns
}

// anchored makes an anchored pattern of a test's name and its parts.
func anchored(run string) string {
	if strings.HasPrefix(run, "^") {
		return run
	}
	parts := strings.Split(run, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}
	return strings.Join(parts, "/")
}

// test runs tests of a package, with or without an overlay.
func (p *prover) test(ctx context.Context, pkg, run string, limit time.Duration, overlaid string) (*report, error) {
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout", limit.String(), "-run", anchored(run)}
	if overlaid != "" {
		args = append(args, "-overlay", overlaid)
	}
	args = append(args, pkg)
	if p.drawsCases(pkg) {
		// rapid would store a failed case in the sources and replay it without the bug. The failure
		// is enough, so it need not be shrunk for long.
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime=1s")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = p.root
	cmd.Env = append(os.Environ(), envOverlay+"="+overlaid)
	if os.Getenv(envPatience) == "" {
		cmd.Env = append(cmd.Env, envPatience+"="+patience)
	}
	// An interrupt, not a kill: the tests stop their servers.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	r := &report{output: map[string][]string{}}
	readErr := r.read(out, func(line string) {
		if p.verbose {
			fmt.Fprint(p.log, line)
		}
	})
	r.passed = cmd.Wait() == nil && readErr == nil
	if readErr != nil {
		return nil, fmt.Errorf("read the output of go test: %w", readErr)
	}
	if !r.passed && len(r.failed) == 0 && r.build == "" && !r.timedOut {
		r.build = "go test failed without a failed test: " + firstLine(stderr.String()+strings.Join(r.output[""], ""))
	}
	return r, nil
}

// drawsCases reports whether tests of a package draw their cases by rapid.
func (p *prover) drawsCases(pkg string) bool {
	files, _ := filepath.Glob(filepath.Join(p.root, pkg, "*_test.go"))
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

// report is the parsed output of go test -json.
type report struct {
	passed   bool
	ran      int
	failed   []string            // tests and parts of tests, in the order of their ends
	output   map[string][]string // by test
	build    string              // the compiler's output; "": the build succeeded
	timedOut bool
}

// event is a line of go test -json: of a test, or of the build.
type event struct {
	Action, Test, Output, FailedBuild string
}

func (r *report) read(from io.Reader, show func(string)) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	var compiler strings.Builder
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			show(lines.Text() + "\n")
			continue
		}
		switch e.Action {
		case "build-output":
			compiler.WriteString(e.Output)
		case "build-fail":
			r.build = compiler.String()
		case "output":
			r.output[e.Test] = append(r.output[e.Test], e.Output)
			r.timedOut = r.timedOut || strings.HasPrefix(e.Output, "panic: test timed out after ")
		case "run":
			r.ran++
		case "fail":
			if e.Test != "" {
				r.failed = append(r.failed, e.Test)
			} else if e.FailedBuild != "" && r.build == "" {
				r.build = compiler.String() + "(" + e.FailedBuild + ")"
			}
		}
		show(e.Output)
	}
	return lines.Err()
}

// outcomeOf returns the outcome of a test run with a bug.
func (r *report) outcomeOf(b *bug) (o outcome, by, message string) {
	switch {
	case r.build != "":
		return unbuilt, "", compilerLine(r.build)
	case r.ran == 0:
		return unbuilt, "", "test not found: " + b.run
	case r.timedOut && !b.hangs:
		return survived, "", "the test timed out, which proves nothing here"
	case r.timedOut:
		return caught, b.run, "it does not end"
	case len(r.failed) == 0:
		return survived, "", b.run + " of " + b.pkg + " passes"
	}
	// Any other failure, such as a server that does not start or a slow machine, is no proof.
	says, err := regexp.Compile(b.says)
	if err != nil || b.says == "" {
		return unbuilt, "", fmt.Sprintf("the bug has no valid failure text: %q %v", b.says, err)
	}
	by = r.failed[0] // the innermost part fails first
	for _, name := range r.failed {
		for _, said := range r.messagesOf(name) {
			if says.MatchString(said) {
				return caught, name, said
			}
			if message == "" {
				by, message = name, said
			}
		}
	}
	if message == "" {
		return unclear, by, "the test failed without a message"
	}
	return unclear, by, message
}

var (
	errorLine = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: (.+)`)
	panicLine = regexp.MustCompile(`^panic: (.+)`)
	// notes match the log lines that tests print whether they pass or fail.
	notes = regexp.MustCompile(`^(METERPLEX_TEST_\w+=|seed \d+$|\d+ (cases|backends)|\d+ requests[,:] |[\w ]+ started in |the log of |answers by status|taken over |drained )`)
)

// messagesOf returns the first lines of a test's failure texts.
func (r *report) messagesOf(test string) (messages []string) {
	for _, at := range []*regexp.Regexp{errorLine, panicLine} {
		for _, line := range r.output[test] {
			if m := at.FindStringSubmatch(line); m != nil && !notes.MatchString(m[1]) {
				messages = append(messages, strings.TrimSpace(m[1]))
			}
		}
	}
	return messages
}

// compilerLine returns the first error in the output of a failed build.
func compilerLine(text string) string {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			return strings.TrimSpace(line)
		}
	}
	return firstLine(text)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
