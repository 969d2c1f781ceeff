// Package conformance runs one table of cases for each SDK, against a real service behind a proxy that fails as each case says. An SDK is a
// program that answers lines of JSON (README.md). The package is for tests, and does not know how the service is started.
package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Language is an SDK: the command of its program, which runs until its standard input ends.
type Language struct {
	Name    string
	Command []string
}

// Service is the service under test. The cases create features, a plan and tenants with the operator's key, which needs the scope admin.
type Service struct{ URL, OperatorKey string }

// Case is one promise that each SDK keeps.
type Case struct {
	Name, Promise string
	// Essential cases show the most important promises at little cost; Slow ones wait or write for longer than a second.
	Essential, Slow bool

	local bool // without a service
	run   func(x *trial)
}

// Suite runs cases against a service. Testdata is the folder sdk/testdata.
type Suite struct {
	Service   Service
	Languages []Language
	Testdata  string
	Parallel  int // how many cases run at once; 0: 4

	mu      sync.Mutex
	results map[string]map[string]string // by case and language
	others  []Case                       // that have results and are not in the table
}

// Cases returns the table.
func (s *Suite) Cases(t testing.TB) []Case {
	t.Helper()
	return slices.Concat(vectorCases(), goldenCases(t, s.Testdata), verdictCases(), batchCases(), proxyCases(), foreignCases(),
		refusalCases(), waitCases(), keyCases(), certificateCases(),
		queueCases(), takeOverCases(), processCases(), checkCases(), limitCases(), reservationCases(), readCases())
}

// Run runs the chosen cases for each language, and notes their results.
func (s *Suite) Run(t *testing.T, chosen func(c Case, language string) bool) {
	t.Helper()
	s.Service.prepare(t)
	var all []func()
	for _, c := range s.Cases(t) {
		for _, l := range s.Languages {
			if chosen(c, l.Name) {
				all = append(all, func() { s.try(t, c, l) })
			}
		}
	}
	s.atOnce(all)
}

// atOnce runs functions, some at the same time.
func (s *Suite) atOnce(all []func()) {
	work := make(chan func())
	var wait sync.WaitGroup
	for range cmp.Or(s.Parallel, 4) {
		wait.Go(func() {
			for f := range work {
				f()
			}
		})
	}
	for _, f := range all {
		work <- f
	}
	close(work)
	wait.Wait()
}

// try runs one case for one language.
func (s *Suite) try(t *testing.T, c Case, l Language) {
	ok := t.Run(l.Name+"/"+c.Name, func(t *testing.T) {
		x := newTrial(t, s, l, c.local)
		defer func() {
			if t.Failed() {
				t.Logf("promise: %s", c.Promise)
			}
		}()
		c.run(x)
	})
	s.note(c, l.Name, ok)
}

func (s *Suite) note(c Case, language string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results == nil {
		s.results = map[string]map[string]string{}
	}
	if s.results[c.Name] == nil {
		s.results[c.Name] = map[string]string{}
		if c.run == nil {
			s.others = append(s.others, c)
		}
	}
	s.results[c.Name][language] = map[bool]string{true: "passes", false: "FAILS"}[ok]
}

// Table returns the results as a table in Markdown: a row for each case, a column for each language.
func (s *Suite) Table(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	b.WriteString("| case | promise |")
	for _, l := range s.Languages {
		fmt.Fprintf(&b, " %s |", l.Name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(s.Languages)) + "\n")
	for _, c := range append(s.Cases(t), s.others...) {
		fmt.Fprintf(&b, "| %s | %s |", c.Name, c.Promise)
		for _, l := range s.Languages {
			result := s.results[c.Name][l.Name]
			if result == "" {
				result = "–"
			}
			fmt.Fprintf(&b, " %s |", result)
		}
		b.WriteString("\n")
	}
	return b.String()
}
