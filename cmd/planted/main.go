// Command planted proves the tests: it builds the project with one planted bug after the other,
// and runs the test that has to catch it. Without the bug the same test has to pass. A bug that no
// test catches is reported: a test is missing.
//
// The bugs are edits of the present sources, built through the Go tool's -overlay (see
// docs/decisions/0010-planted-bugs-by-overlay.md): the sources stay free of them, and an edit
// that no longer matches is an error.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	root, err := projectRoot()
	code := exitUnbuilt
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = run(ctx, &prover{root: root, bugs: catalogue(), log: os.Stdout}, os.Args[1:])
	}
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitCaught   = 0
	exitSurvived = 1 // a bug that no test caught, a test that failed for another reason, or a test that fails without the bug
	exitUnbuilt  = 2 // an edit that does not match or does not compile, or an invalid flag
)

// run executes the command line and returns the exit code.
func run(ctx context.Context, p *prover, args []string) int {
	flags := flag.NewFlagSet("planted", flag.ContinueOnError)
	flags.SetOutput(p.log)
	flags.Usage = func() {
		fmt.Fprintln(p.log, "planted [flags] [name or pattern, e.g. 'relay-*' …]")
		flags.PrintDefaults()
	}
	list := flags.Bool("list", false, "list the bugs and their tests, and run none")
	out := flags.String("out", "", "write the findings into the table of this Markdown `file`; bugs that are not run keep their rows")
	flags.BoolVar(&p.verbose, "v", false, "show what the tests print")
	flags.DurationVar(&p.limit, "limit", usualLimit, "time limit of a test; increase it on a busy machine")
	control := flags.Bool("control", true, "run the tests without the bugs, too")
	if err := flags.Parse(args); err != nil {
		return exitUnbuilt
	}
	chosen, err := choose(p.bugs, flags.Args())
	if err != nil {
		fmt.Fprintln(p.log, err)
		return exitUnbuilt
	}
	if *list {
		printList(p.log, chosen)
		return exitCaught
	}
	if *control {
		if err := p.control(ctx, chosen); err != nil {
			fmt.Fprintln(p.log, err)
			return exitSurvived
		}
	}
	findings, code := p.proveAll(ctx, chosen)
	if *out != "" {
		if err := writeTable(*out, p.bugs, findings); err != nil {
			fmt.Fprintln(p.log, err)
			return exitUnbuilt
		}
	}
	return code
}

func printList(to io.Writer, bugs []bug) {
	for _, b := range bugs {
		fmt.Fprintf(to, "%-34s %s\n%-34s %s %s\n", b.name, b.what, "", b.pkg, b.run)
	}
}

// proveAll plants the bugs one by one. The worst outcome decides the code.
func (p *prover) proveAll(ctx context.Context, bugs []bug) (findings []finding, code int) {
	began := time.Now()
	counts := map[outcome]int{}
	for i := range bugs {
		f := p.prove(ctx, &bugs[i])
		if ctx.Err() != nil {
			fmt.Fprintln(p.log, "interrupted")
			return findings, exitUnbuilt
		}
		findings = append(findings, f)
		counts[f.outcome]++
		fmt.Fprintf(p.log, "%-9s %-34s %5.1fs  %s\n", f.outcome, f.name, f.took.Seconds(), f.summary())
		switch {
		case f.outcome == unbuilt:
			code = exitUnbuilt
		case f.outcome != caught && code == exitCaught:
			code = exitSurvived
		}
	}
	fmt.Fprintf(p.log, "%d planted: %d caught, %d survived, %d unclear, %d not built, in %s\n",
		len(bugs), counts[caught], counts[survived], counts[unclear], counts[unbuilt], time.Since(began).Round(time.Second))
	return findings, code
}

// projectRoot returns the folder of go.mod.
func projectRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the project's root: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", fmt.Errorf("run this inside the project")
	}
	return filepath.Dir(mod), nil
}
