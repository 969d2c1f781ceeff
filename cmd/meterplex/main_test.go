package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// leakCheck runs the tests and fails if they leak goroutines.
type leakCheck struct{ *testing.M }

func (l leakCheck) Run() int {
	code := l.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(leakCheck{m}, map[string]func(){"meterplex": main})
}

// TestScripts runs the transcripts in testdata/script with the real program.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
