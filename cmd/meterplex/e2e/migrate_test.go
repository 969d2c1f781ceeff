package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

// migrate prints its answer in the requested form.
func TestMigrateUsesTheRequestedOutputFormat(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for first := range 2 {
		cmd := exec.Command(path, "migrate", "-o", "json")
		cmd.SysProcAttr = childAttributes()
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "DATABASE_URL=" + w.db, "METERPLEX_PIPE=postgres"}
		out, err := cmd.Output()
		var answer struct{ Applied *int }
		if err != nil || json.Unmarshal(out, &answer) != nil || answer.Applied == nil || (*answer.Applied == 0) != (first == 1) {
			t.Errorf("%v: %s", err, out)
		}
	}
}
