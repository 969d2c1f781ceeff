package repair

import (
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

const (
	replaysPath   = console.Prefix + "/replays"
	replayPath    = replaysPath + "/{replayId}"
	newReplayPath = console.Prefix + "/new/replay"
	newRewindPath = console.Prefix + "/new/rewind"
)

func replaysPage() *console.Page {
	return &console.Page{Path: replaysPath, Title: "Replays", Group: "Operations", Menu: "Replays", Template: "replays.html",
		New: newReplayPath, Needs: "GET /api/v1/replays",
		Params: []string{"cursor"}, CLI: []string{"meterplex replay list"}}
}

func replayPageOf() *console.Page {
	return &console.Page{Path: replayPath, Title: "Replay", Template: "replay.html", Needs: "GET /api/v1/replays/{replayId}",
		CLI: []string{"meterplex replay show {replayId}"}}
}

func newReplayPage() *console.Page {
	return &console.Page{Path: newReplayPath, Title: "New replay",
		Text:  "A range of the log is published again, for readers outside. Our own consumers skip it: no figure changes.",
		Needs: "POST /api/v1/replays", Params: []string{"key"},
		CLI: []string{"meterplex replay range --help"},
		Actions: []*console.Action{{Name: "replay", Path: newReplayPath, Label: "Publish again", Does: "POST /api/v1/replays",
			Fields: []console.Field{
				{Name: "topic", Hint: "E.g. usage.raw."},
				{Name: "from", Label: "First position", Hint: "Partition-position, e.g. 17-4711; its partition is the range's."},
				{Name: "to", Label: "Last position"},
				{Name: "fromTime", Label: "Recorded from", Hint: "An RFC 3339 time, instead of positions: in all partitions."},
				{Name: "toTime", Label: "Recorded before"},
				{Name: "tenantId", Hint: "Only the events of one tenant."},
			},
			Next: console.Made(replaysPath, "id")}}}
}

func newRewindPage() *console.Page {
	return &console.Page{Path: newRewindPath, Title: "New rewind",
		Text:  "The relay publishes again, or the consumer of usage.commands reads again, from an earlier place. No event is counted twice.",
		Needs: "POST /api/v1/replays/rewind", Params: []string{"key"},
		CLI: []string{"meterplex replay rewind --help"},
		Actions: []*console.Action{{Name: "rewind", Path: newRewindPath, Label: "Rewind", Does: "POST /api/v1/replays/rewind",
			Warn: "Records are published or read again. It never goes forward, and cannot be taken back; no event is counted twice.",
			Fields: []console.Field{
				{Name: "consumer", Hint: "E.g. meterplex-usage-commands; empty: the relay."},
				{Name: "to", Hint: "start, or an RFC 3339 time."},
				{Name: "positions", Kind: "area",
					Hint: "Instead of a target: the first position to publish or read again, one for a partition, separated by spaces."},
			},
			Adds: func(_ *console.Visit, f console.Form, body map[string]any) error {
				if body["positions"] != nil {
					body["positions"] = strings.Fields(strings.ReplaceAll(f.Get("positions"), ",", " "))
				}
				return nil
			},
			Next: console.Made(replaysPath, "id")}}}
}
