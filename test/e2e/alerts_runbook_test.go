package e2e

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/test/observe/feed"
)

// The parts of a runbook.
const (
	checkPart  = "Check"
	remedyPart = "Remedy"
	overPart   = "How to see that it is over"
)

// partsOfRunbooks lists the parts that each runbook of an alert has.
func partsOfRunbooks() []string {
	return []string{"Symptom", "Not in danger", checkPart, remedyPart, overPart}
}

// partBegins matches the begin of a part: a bold label, or a heading.
var partBegins = regexp.MustCompile(`(?m)^(?:\*\*|## )([A-Z][A-Za-z ]+?)\.?(?:\*\*|$)`)

// runbookOf returns the parts of the runbook of an alert: a section of a page, or a page.
func runbookOf(runbook string) (parts map[string]string, err error) {
	page, anchor, found := strings.Cut(runbook, "#")
	text, err := os.ReadFile(filepath.Join(repository(), "docs", "runbooks", page))
	if err != nil {
		return nil, err
	}
	section := string(text)
	if found {
		section = ""
		for _, s := range strings.Split("\n"+string(text), "\n## ")[1:] {
			heading, rest, _ := strings.Cut(s, "\n")
			if strings.ToLower(strings.ReplaceAll(heading, " ", "-")) == anchor {
				section = rest
			}
		}
	}
	parts = map[string]string{}
	begins := partBegins.FindAllStringSubmatchIndex(section, -1)
	for n, at := range begins {
		end := len(section)
		if n+1 < len(begins) {
			end = begins[n+1][0]
		}
		name := section[at[2]:at[3]]
		if name == "Promote the standby" {
			name = remedyPart
		}
		if parts[name] == "" {
			parts[name] = section[at[1]:end]
		}
	}
	return parts, nil
}

// inlineCode matches code in a sentence.
var inlineCode = regexp.MustCompile("`([^`\n]+)`")

// commandsOf returns the commands of a part of a runbook: of its blocks, and those in its sentences.
func commandsOf(part string) (steps []step) {
	for n, piece := range strings.Split(part, "```") {
		if n%2 == 1 {
			steps = append(steps, stepsOf("sh",
				strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(piece, "console"), "\n"),
					"\n"), "\n"))...)
			continue
		}
		for _, code := range inlineCode.FindAllStringSubmatch(piece, -1) {
			if command.MatchString(code[1]) && !strings.Contains(code[1], "…") {
				steps = append(steps, step{command: code[1]})
			}
		}
	}
	return steps
}

// follow runs the commands of parts of a page.
func (w *alerts) follow(page string, words func() map[string]string, parts ...string) {
	w.t.Helper()
	all, err := runbookOf(page)
	must.OK(w.t, err)
	for _, part := range parts {
		steps := commandsOf(all[part])
		if len(steps) == 0 {
			w.t.Errorf("docs/runbooks/%s has no commands in %q", page, part)
		}
		for _, s := range steps {
			w.runStep(&alertFault{alert: page, words: words}, s)
		}
	}
}

// partOf returns the commands of a part of the runbook of an alert.
func (w *alerts) partOf(alert, part string) []step {
	w.t.Helper()
	a, _ := feed.AlertOf(alert)
	parts, err := runbookOf(a.Runbook)
	must.OK(w.t, err)
	return commandsOf(parts[part])
}

// check runs the commands of the runbook's check while the fault lasts.
func (w *alerts) check(b *alertFault) {
	w.t.Helper()
	for _, s := range w.partOf(b.alert, checkPart) {
		w.runStep(b, s)
	}
}

// mend runs the commands of the runbook's remedy that the fault needs, behind what is no command.
func (w *alerts) mend(b *alertFault) {
	w.t.Helper()
	if b.mends != nil {
		b.mends()
	}
	steps := w.partOf(b.alert, remedyPart)
	for _, begin := range b.remedies {
		n := slices.IndexFunc(steps, func(s step) bool { return strings.HasPrefix(s.command, begin) })
		if n < 0 {
			w.t.Errorf("the runbook of %s has no remedy %q", b.alert, begin)
			continue
		}
		w.runStep(b, steps[n])
	}
}

// isOver runs the commands that show that the fault is over. A figure may need a moment.
func (w *alerts) isOver(b *alertFault) {
	w.t.Helper()
	for _, s := range w.partOf(b.alert, overPart) {
		var failure string
		if !becomesTrueEvery(w.deployment, scrapeAge/2, patience, func(context.Context) bool {
			failure = w.tryStep(b, s)
			return failure == ""
		}) {
			w.t.Errorf("%s: %s", b.alert, failure)
		}
	}
}

// runStep runs a command of a runbook, whose exit code and output have to be as the runbook says. It waits for the verification of another
// fault, as a person has to.
func (w *alerts) runStep(b *alertFault, s step) {
	w.t.Helper()
	var failure string
	becomesTrueEvery(w.deployment, scrapeAge/2, patience, func(context.Context) bool {
		failure = w.tryStep(b, s)
		return !strings.Contains(failure, "rebuild_in_progress")
	})
	if failure != "" {
		w.t.Errorf("%s: %s", b.alert, failure)
	}
}

// worded replaces the words of a runbook that stand for others.
func (b *alertFault) worded(text string) string {
	if b.words == nil {
		return text
	}
	for word, value := range b.words() {
		text = regexp.MustCompile(`\b`+word+`\b`).ReplaceAllLiteralString(text, value)
	}
	return text
}

// exitCodes matches the exit codes that a comment behind a command names. Other commands end with 0.
var exitCodes = regexp.MustCompile(`# exit code (\d)(?: or (\d))?`)

// tryStep runs a command, and returns "" or how it differs from the runbook.
func (w *alerts) tryStep(b *alertFault, s step) (failure string) {
	w.t.Helper()
	codes := []string{"0"}
	if named := exitCodes.FindStringSubmatch(s.command); named != nil {
		codes = named[1:]
	}
	worded := step{command: b.worded(s.command)}
	for _, line := range s.want {
		worded.want = append(worded.want, b.worded(line))
	}
	url := cmp.Or(w.front.url(), w.url)
	env := []string{"METERPLEX_URL=" + url, "METERPLEX_ADMIN_URL=" + url, "METERPLEX_KEY=" + w.operator, "DATABASE_URL=" + w.db,
		"DATABASE=" + w.database, "METERPLEX_PIPE=" + w.pipe, "METERPLEX_TOPIC_PREFIX=" + w.prefix}
	if w.pipe == "kafka" {
		env = append(env, "KAFKA_BROKERS="+strings.Join(w.brokers().Brokers(), ","))
	}
	return tryCommand(w.deployment, w.dir, worded, codes, append(env, b.env...)...)
}
