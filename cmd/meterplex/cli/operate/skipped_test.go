package operate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/doctor"
	"github.com/meterplex/meterplex/verify"
)

// Skipped checks are one line with their causes, not a line for each check.
func TestSkippedChecksAreOneLine(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app.App{Ctx: t.Context(), Stdout: &out, Stderr: &errs}
	a.Flags.Output = "table"
	holds := true
	checks := []verify.Check{{Name: "a", Holds: &holds, Looked: true}, {Name: "b", Figures: "not checked: set DATABASE_URL"},
		{Name: "c", Figures: "not checked: set KAFKA_BROKERS"},
		{Name: "d", Figures: "not checked: set DATABASE_URL"}}
	if err := new(VerifyCmd).print(a, checks); err != nil || strings.Count(out.String(), "\n") != 2 ||
		errs.String() != "3 of 4 checks were skipped: set DATABASE_URL (2), set KAFKA_BROKERS (1)\n" {
		t.Errorf("%v\n%s%s", err, &out, &errs)
	}
	out.Reset()
	errs.Reset()
	list := []doctor.Finding{{Check: "a", State: doctor.OK}, {Check: "b", State: doctor.Skipped, Finding: "not checked",
		Remedy: "set DATABASE_URL"}, {Check: "c", State: doctor.Skipped, Finding: "no key is set"}}
	if err := new(DoctorCmd).print(a, list); err != nil || strings.Count(out.String(), "\n") != 2 ||
		!strings.HasSuffix(errs.String(), "\nSkipped: set DATABASE_URL (1), no key is set (1)\n") {
		t.Errorf("%v\n%s%s", err, &out, &errs)
	}
	a.Flags.Output = "ndjson"
	out.Reset()
	if err := new(VerifyCmd).print(a, checks); err != nil || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%v\n%s", err, &out)
	}
}
