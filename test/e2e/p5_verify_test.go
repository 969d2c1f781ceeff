package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// command runs the binary as an operator does.
func (w *deployment) command(at *instance, args ...string) (out string, code int) {
	w.t.Helper()
	path, err := binary()
	must.OK(w.t, err)
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.SysProcAttr = []string{"METERPLEX_URL=" + at.url(), "METERPLEX_KEY=" + w.operator, "HOME=" + w.t.TempDir()},
		childAttributes()
	raw, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(raw), exit.ExitCode()
	} else if err != nil {
		w.t.Fatal(err)
	}
	return string(raw), 0
}

// P5: under load, verify finds planted drift and reports its key; a repair fixes it, and
// then all checks hold.
func TestP5_VerifyFindsPlantedDrift(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 1, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(150)
	within(t, "an aggregate exists and is changed", func(ctx context.Context) (bool, string) {
		tag, err := w.sql.Exec(ctx,
			`UPDATE usage_aggregates SET amount = amount + 1 WHERE tenant_id = $1 AND feature = 'api_calls' AND generation = 1`,
			tenants[0].id)
		return tag.RowsAffected() > 0, fmt.Sprint(err) // two rows if the load spans two months
	})
	if out, code := w.command(i, "verify"); code != 1 || !strings.Contains(out, "false") {
		t.Errorf("with drift, exit code %d\n%s", code, out)
	}
	out, code := w.command(i, "projections", "verify", "usage_aggregates", "--repair", "--reason", "planted")
	if code != 1 || !strings.Contains(out, tenants[0].id) || strings.Contains(out, tenants[1].id) {
		t.Errorf("repair: exit code %d\n%s", code, out)
	}
	if out, code := w.command(i, "verify"); code != 0 || !strings.Contains(out, "P5 usage_aggregates") {
		t.Errorf("after the repair, exit code %d\n%s", code, out)
	}
	if _, code := w.command(w.prepare(""), "verify", "--retry-for", "1ms"); code != 2 {
		t.Errorf("without a service, exit code %d", code)
	}
	l.stop()
	w.settle(i, tenants...)
	w.drain()
}
