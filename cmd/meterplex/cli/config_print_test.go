package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

func TestConfigPrintMasksSecrets(t *testing.T) {
	const canary = "hidden-canary-of-thirty-two-characters"
	file := filepath.Join(t.TempDir(), "settings")
	letters := strings.ReplaceAll(canary, "-", "")
	text := "METERPLEX_STRIPE_KEY=sk_live_" + letters + "\nKAFKA_SASL_PASSWORD=" + canary +
		"\nKAFKA_SASL_USERNAME=u\nKAFKA_SASL_MECHANISM=PLAIN\nMETERPLEX_BOOTSTRAP_OPERATOR_KEY=mp_op_" + canary +
		"\nMETERPLEX_KEY=mp_live_" + canary + "\nDATABASE_MIGRATE_URL=host=h password=" + canary +
		"\nDATABASE_READ_URL=postgres://h/d?sslpassword=" + canary
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	for _, format := range []string{"table", "json", "ndjson", "csv"} {
		c := newConsole(t, nil)
		c.app.Env = func(string) (string, bool) { return "", false }
		code, out, errs := c.run("config", "print", "-o", format, "--config", file, "--database-url", "postgres://u:"+canary+"@h/d")
		if code != app.ExitYes || strings.Contains(out+errs, canary) || strings.Contains(out+errs, letters) ||
			!strings.Contains(out, "flag --database-url") || !strings.Contains(out, "u:********@h") {
			t.Errorf("%s: exit code %d\n%s%s", format, code, out, errs)
		}
	}
}
