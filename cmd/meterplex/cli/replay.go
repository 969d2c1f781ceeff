package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// ReplayCmd groups the replay commands.
type ReplayCmd struct {
	Range  ReplayRangeCmd  `cmd:"" help:"Publish a range of the log again, for other consumers."`
	Rewind ReplayRewindCmd `cmd:"" help:"Rewind the relay, so that it publishes again; or a consumer."`
	List   ReplayListCmd   `cmd:"" help:"List replays and rewinds, newest first."`
	Show   ReplayShowCmd   `cmd:"" help:"Show the progress of a replay."`
}

// Waiting holds the flag to wait for a replay.
type Waiting struct {
	Wait bool `help:"Wait until it is done; exit code 1 if it failed."`
}

// ReplayRangeCmd publishes a range again.
type ReplayRangeCmd struct {
	Topic    string `required:"" placeholder:"NAME" help:"The topic, e.g. usage.raw."`
	From     string `placeholder:"P-N" help:"First position, e.g. 17-4711."`
	To       string `placeholder:"P-N" help:"Last position."`
	Tenant   string `placeholder:"ID" aliases:"tenant-id" help:"Only this tenant's events."`
	FromTime string `placeholder:"TIME" help:"Events recorded from this time on, RFC 3339."`
	ToTime   string `placeholder:"TIME" help:"Events recorded before this time."`
	Reason   string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Waiting
	Once
}

// Help returns the long help text.
func (ReplayRangeCmd) Help() string {
	return `Every record is the same as when it was first published, plus the header mp-replay: 1. Our own consumers skip such records: no figure changes.`
}

// Run requests the replay.
func (c *ReplayRangeCmd) Run(a *app) error {
	body := map[string]any{"topic": c.Topic, "reason": c.Reason}
	for name, value := range map[string]string{"from": c.From, "to": c.To, "tenantId": c.Tenant, "fromTime": c.FromTime, "toTime": c.ToTime} {
		if value != "" {
			body[name] = value
		}
	}
	return a.replay("/replays", c.IdempotencyKey, body, c.Wait)
}

// ReplayRewindCmd moves the relay or a consumer back.
type ReplayRewindCmd struct {
	Consumer   string        `placeholder:"NAME" help:"A consumer, e.g. meterplex-usage-aggregator. Not given: the relay."`
	ToStart    bool          `xor:"to" help:"To the beginning."`
	ToTime     string        `xor:"to" placeholder:"TIME" help:"To a time, RFC 3339."`
	Since      time.Duration `xor:"to" placeholder:"DURATION" help:"To this long ago, e.g. 168h."`
	ToPosition []string      `xor:"to" placeholder:"P-N" help:"To a position, one for a partition; it is the first that comes again."`
	Reason     string        `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Waiting
	Once
}

// Help returns the long help text.
func (ReplayRewindCmd) Help() string {
	return `After Kafka lost its data this is the one command: the relay publishes again from where a consumer of ours still needs it, or, with --since, what readers outside should find again: 168h is as long as the topics keep anything.

Never forward. Nothing is counted twice: each consumer knows what it has.`
}

// Run requests the rewind.
func (c *ReplayRewindCmd) Run(a *app) error {
	body := map[string]any{"reason": c.Reason}
	if c.Consumer != "" {
		body["consumer"] = c.Consumer
	}
	switch {
	case c.ToStart:
		body["to"] = "start"
	case c.ToTime != "":
		body["to"] = c.ToTime
	case c.Since > 0:
		body["to"] = a.now().UTC().Add(-c.Since).Truncate(time.Microsecond).Format(time.RFC3339Nano)
	case len(c.ToPosition) > 0:
		body["positions"] = c.ToPosition
	case c.Consumer != "":
		return errors.New("give the place to rewind to: --to-start, --to-time, --since or --to-position")
	}
	return a.replay("/replays/rewind", c.IdempotencyKey, body, c.Wait)
}

// ReplayListCmd lists replays.
type ReplayListCmd struct{ Limit }

// Run prints the rows.
func (c *ReplayListCmd) Run(a *app) error {
	return a.list("/replays", nil, c.Limit.Limit, "id", "kind", "state", "topic", "consumer", "to", "records", "remaining", "createdAt", "reason")
}

// ReplayShowCmd shows a replay.
type ReplayShowCmd struct {
	ID string `arg:"" help:"The replay's id."`
}

// Run prints it.
func (c *ReplayShowCmd) Run(a *app) error { return a.show(client.Path("replays", c.ID), nil) }

// replayEvery is how often a replay is polled while a command waits for it.
const replayEvery = 500 * time.Millisecond

// replay requests a replay and prints it, immediately or when it is done.
func (a *app) replay(path, once string, body any, wait bool) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := c.Post(a.ctx, path, once, body)
	if err != nil {
		return err
	}
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
		case <-a.ctx.Done():
			return a.ctx.Err()
		case <-time.After(replayEvery):
		}
		if raw, err = c.Get(a.ctx, client.Path("replays", now.ID), nil); err != nil {
			return err
		}
	}
	if err := a.object(raw); err != nil {
		return err
	}
	if now.State == "FAILED" {
		return errNo
	}
	return nil
}
