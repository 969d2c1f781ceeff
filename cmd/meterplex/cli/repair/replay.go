package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// waiting holds the flag to wait for a replay.
type waiting struct {
	Wait bool `help:"Wait until it is done; exit code 1 if it failed."`
}

// rewinding holds the targets of a rewind, beside positions.
type rewinding struct {
	ToStart bool          `xor:"to" help:"To the beginning."`
	ToTime  string        `xor:"to" placeholder:"TIME" help:"To a time, RFC 3339."`
	Since   time.Duration `xor:"to" placeholder:"DURATION" help:"To this long ago, e.g. 168h."`
	waiting
}

const rewindHelp = `Use it with --since after Kafka lost its data: the relay publishes the events again that readers outside
should find. 168h is the retention of the topics.`

// rewindTo sets the target of a rewind.
func rewindTo(a *app.App, l *app.Call, in map[string]any) error {
	to := app.FlagOf[rewinding](l, "Own")
	switch {
	case to.ToStart:
		in["to"] = "start"
	case to.ToTime != "":
		in["to"] = to.ToTime
	case to.Since > 0:
		in["to"] = a.Now().UTC().Add(-to.Since).Truncate(time.Microsecond).Format(time.RFC3339Nano)
	case in["positions"] == nil:
		return errors.New("give the place to rewind to: --to-start, --to-time, --since or --to-position")
	}
	return nil
}

// replayEvery is how often a replay is polled while a command waits for it.
const replayEvery = 500 * time.Millisecond

// replay requests a replay and prints it, immediately or when it is done.
func replay(a *app.App, l *app.Call) error {
	c, err := a.NewClient()
	if err != nil {
		return err
	}
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	wait := app.FlagOf[waiting](l, "Own").Wait || app.FlagOf[rewinding](l, "Own").Wait
	var now struct {
		ID, State, Failure string
		Remaining          int64
	}
	for {
		if err := json.Unmarshal(raw, &now); err != nil {
			return fmt.Errorf("read the replay: %w", err)
		}
		if !wait || now.State == "FAILED" || now.State == "DONE" && now.Remaining == 0 {
			break
		}
		select {
		case <-a.Ctx.Done():
			return a.Ctx.Err()
		case <-time.After(replayEvery):
		}
		if raw, err = c.Get(a.Ctx, client.Path("replays", now.ID), nil); err != nil {
			return err
		}
	}
	if err := a.Object(raw); err != nil {
		return err
	}
	if now.State == "FAILED" {
		return app.ErrNo
	}
	return nil
}
