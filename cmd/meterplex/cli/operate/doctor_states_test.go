package operate

import (
	"io"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/doctor"
)

// A failure outweighs a check that could not look; warnings count with --strict.
func TestDoctorSetsTheExitCode(t *testing.T) {
	for _, c := range []struct {
		states string
		strict bool
		want   int
	}{
		{"ok skipped", false, app.ExitYes}, {"ok warning", false, app.ExitYes}, {"ok warning", true, app.ExitNo},
		{"ok failure unknown", false, app.ExitNo},
		{"ok warning unknown", false, app.ExitUnknown}, {"ok unknown warning", true, app.ExitNo}, {"skipped", false, app.ExitUnknown},
		{"", false, app.ExitUnknown},
	} {
		a := &app.App{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}
		var list []doctor.Finding
		for _, state := range strings.Fields(c.states) {
			list = append(list, doctor.Finding{Area: "a", Check: "c", State: doctor.State(state), Finding: "f\x1b[2J", Remedy: "r"})
		}
		a.Flags.Output = "table"
		cmd := DoctorCmd{Strict: c.strict}
		if got := a.ExitCode(cmd.print(a, list)); got != c.want {
			t.Errorf("%q, strict %v: exit code %d, want %d", c.states, c.strict, got, c.want)
		}
	}
}
