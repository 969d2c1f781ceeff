package cli

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/doctor"
)

// A failure outweighs a check that could not look; warnings count with --strict.
func TestDoctorSetsTheExitCode(t *testing.T) {
	for _, c := range []struct {
		states string
		strict bool
		want   int
	}{
		{"ok skipped", false, exitYes}, {"ok warning", false, exitYes}, {"ok warning", true, exitNo}, {"ok failure unknown", false, exitNo},
		{"ok warning unknown", false, exitUnknown}, {"ok unknown warning", true, exitNo}, {"skipped", false, exitUnknown}, {"", false, exitUnknown},
	} {
		console := newConsole(t, newFakeService(t))
		var list []doctor.Finding
		for _, state := range strings.Fields(c.states) {
			list = append(list, doctor.Finding{Area: "a", Check: "c", State: doctor.State(state), Finding: "f\x1b[2J", Remedy: "r"})
		}
		console.app.flags.Output = "table"
		cmd := DoctorCmd{Strict: c.strict}
		if got := console.app.exitCode(cmd.print(console.app, list)); got != c.want {
			t.Errorf("%q, strict %v: exit code %d, want %d", c.states, c.strict, got, c.want)
		}
	}
}

// Without settings only the service at METERPLEX_URL is examined; a password never reaches the output.
func TestDoctorExaminesWhatIsSet(t *testing.T) {
	p := newFakeService(t)
	code, out, errs := newConsole(t, p).run("doctor", "-o", "json", "--database-url", "postgres://meterplex:canary-secret@127.0.0.1:1/meterplex", "--kafka-sasl-mechanism", "PLAIN",
		"--kafka-sasl-username", "u", "--kafka-sasl-password", "canary-secret", "--kafka-brokers", "127.0.0.1:1")
	if code != exitNo || strings.Contains(out+errs, "canary-secret") || !strings.Contains(out, `"check": "kafka_login"`) && !strings.Contains(out, `"check":"kafka_login"`) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if code, out, _ := newConsole(t, p).run("doctor", "--quiet", "-o", "ndjson"); code != exitNo || strings.Contains(out, `"skipped"`) || !strings.Contains(out, `"service"`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
