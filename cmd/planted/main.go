// Command planted checks that the tests catch bugs. For each planted bug it builds the project with that bug
// alone, and runs the test that has to catch it. Without the bug the same test has to pass. A bug that no
// test catches is reported: a test is missing.
//
// The bugs are patches of the present sources, built through the Go tool's -overlay (see
// docs/decisions/0010-planted-bugs-by-overlay.md): the sources stay free of them, and a patch
// that no longer fits is an error.
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
		code = run(ctx, &prover{root: root, log: os.Stdout}, os.Args[1:])
	}
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitCaught   = 0
	exitSurvived = 1 // a bug that no test caught, a test that failed for another reason, or a test that fails without the bug
	exitUnbuilt  = 2 // a patch that does not fit or does not compile, or an invalid flag
)

// command holds the flags.
type command struct {
	list, control, refresh  bool
	out, newPatch, newGroup string
	names                   []string
}

func (p *prover) parse(args []string) (c command, err error) {
	flags := flag.NewFlagSet("planted", flag.ContinueOnError)
	flags.SetOutput(p.log)
	flags.Usage = func() {
		fmt.Fprintln(p.log, "planted [flags] [name or pattern, e.g. 'relay-*' …]")
		flags.PrintDefaults()
	}
	flags.BoolVar(&c.list, "list", false, "list the bugs and their tests, and run none")
	flags.StringVar(&c.out, "out", "", "write the findings into the table of this Markdown `file`; bugs that are not run keep their rows")
	flags.BoolVar(&p.verbose, "v", false, "show what the tests print")
	flags.DurationVar(&p.limit, "limit", usualLimit, "time limit of a test; increase it on a busy machine")
	flags.BoolVar(&c.control, "control", true, "run the tests without the bugs, too")
	flags.BoolVar(&c.refresh, "refresh", false, "write the line numbers and the context of the patches again after a change of the sources, and run none")
	flags.StringVar(&c.newPatch, "new", "", "write the uncommitted changes of the sources, or of the named files only, as the patch of the bug `name`, and run none")
	flags.StringVar(&c.newGroup, "group", "", "the `group` of a new patch")
	err = flags.Parse(args)
	c.names = flags.Args()
	return c, err
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, p *prover, args []string) int {
	c, err := p.parse(args)
	if err != nil {
		return exitUnbuilt
	}
	if c.newPatch != "" {
		if err := p.writeNew(ctx, c.newPatch, c.newGroup, c.names); err != nil {
			fmt.Fprintln(p.log, err)
			return exitUnbuilt
		}
		return exitCaught
	}
	if p.bugs == nil {
		p.bugs, err = catalogue(p.root)
	}
	var chosen []bug
	if err == nil {
		chosen, err = choose(p.bugs, c.names)
	}
	if err != nil {
		fmt.Fprintln(p.log, err)
		return exitUnbuilt
	}
	switch {
	case c.list:
		printList(p.log, chosen)
		return exitCaught
	case c.refresh:
		return p.refreshAll(chosen)
	}
	return p.runTests(ctx, chosen, c)
}

// runTests runs the control and the tests of the chosen bugs, and writes the findings.
func (p *prover) runTests(ctx context.Context, chosen []bug, c command) int {
	if c.control {
		if err := p.control(ctx, chosen); err != nil {
			fmt.Fprintln(p.log, err)
			return exitSurvived
		}
	}
	findings, code := p.proveAll(ctx, chosen)
	if c.out != "" {
		if err := writeTable(c.out, p.bugs, findings); err != nil {
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
