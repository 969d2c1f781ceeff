package cli

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// Without settings only the service at METERPLEX_URL is examined; a password never reaches the output.
func TestDoctorExaminesWhatIsSet(t *testing.T) {
	p := newFakeService(t)
	code, out, errs := newConsole(t, p).run("doctor", "-o", "json", "--database-url",
		"postgres://meterplex:canary-secret@127.0.0.1:1/meterplex", "--kafka-sasl-mechanism", "PLAIN",
		"--kafka-sasl-username", "u", "--kafka-sasl-password", "canary-secret", "--kafka-brokers", "127.0.0.1:1")
	if code != app.ExitNo || strings.Contains(out+errs, "canary-secret") || !strings.Contains(out, `"check": "kafka_login"`) &&
		!strings.Contains(out, `"check":"kafka_login"`) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if code, out, _ := newConsole(t, p).run("doctor", "--quiet", "-o", "ndjson"); code != app.ExitNo ||
		strings.Contains(out, `"skipped"`) || !strings.Contains(out, `"service"`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
