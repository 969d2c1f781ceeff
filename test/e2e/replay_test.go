package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
)

// cli runs the client commands of the binary.
type cli struct {
	w      *deployment
	env    []string
	stderr bytes.Buffer
}

func (w *deployment) cli(at *instance, key string) *cli {
	w.t.Helper()
	return &cli{w: w, env: []string{"METERPLEX_URL=" + at.url(), "METERPLEX_KEY=" + key, "METERPLEX_DATA_DIR=" + w.t.TempDir(), "HOME=" +
		w.t.TempDir()}}
}

func (c *cli) command(ctx context.Context, args ...string) *exec.Cmd {
	c.w.t.Helper()
	path, err := binary()
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.stderr.Reset()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = c.env, &c.stderr, childAttributes()
	return cmd
}

// replayed is a replay as the command prints it.
type replayed struct {
	ID, Kind, State    string
	Records, Remaining int64
	Partitions         []struct{ Partition, From, To int64 }
}

// replay runs `meterplex replay …` to its end.
func (c *cli) replay(args ...string) (r replayed) {
	c.w.t.Helper()
	ctx, cancel := context.WithTimeout(c.w.t.Context(), patience)
	defer cancel()
	args = append([]string{"replay"}, append(args, "--reason", "a test", "--wait", "-o", "json")...)
	out, err := c.command(ctx, args...).Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || r.State != "DONE" || r.Remaining != 0 {
		c.w.t.Fatalf("%v: %v\n%s\n%s", args, err, out, c.stderr.String())
	}
	return r
}

// awaitFolded waits until a consumer has folded an event: before that a rewind has no effect.
func awaitFolded(w *deployment, consumer string) {
	w.t.Helper()
	within(w.t, consumer+" has folded an event", func(context.Context) (bool, string) {
		n := w.count(`SELECT count(*) FROM consumer_checkpoints WHERE consumer = $1 AND position > 0`, consumer)
		return n > 0, fmt.Sprint(n)
	})
}
