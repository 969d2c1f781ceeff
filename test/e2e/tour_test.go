package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// P5: the tour checks itself: it exits with 0 if the diff was exactly the planted fault,
// and no read failed or saw figures of two generations. It runs on a fresh machine if this one
// can hide its PostgreSQL.
func TestP5_TourBugfix(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	if !*fresh && runFresh(t, "TestP5_TourBugfix") == "" {
		return
	}
	path, err := binary()
	must.OK(t, err)
	cmd := exec.Command(path, "tour", "bugfix")
	cmd.SysProcAttr = childAttributes()
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "METERPLEX_") && !strings.HasPrefix(v, "KAFKA_") && !strings.HasPrefix(v, "DATABASE_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// The shell's settings of a real service must not reach a release with a fault.
	cmd.Env = append(cmd.Env, "DATABASE_URL=postgres://nobody@127.0.0.1:1/theirs", "KAFKA_BROKERS=127.0.0.1:1", "METERPLEX_ROLES=api",
		"METERPLEX_TOPIC_PREFIX=theirs.", "METERPLEX_HTTP_ADDR=127.0.0.1:1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if err != nil || !strings.Contains(out.String(), "no read failed or saw figures of both") ||
		!strings.Contains(out.String(), "The tour took") {
		t.Errorf("%v\n%s\n%s", err, out.String(), errs.String())
	}
}
