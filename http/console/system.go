package console

import (
	"errors"
	"slices"
	"strings"
)

const (
	systemPath    = Prefix + "/system"
	settingsPath  = systemPath + "/settings"
	withheldPath  = systemPath + "/withheld"
	replaysPath   = Prefix + "/replays"
	replayPath    = replaysPath + "/{replayId}"
	newReplayPath = Prefix + "/new/replay"
	newRewindPath = Prefix + "/new/rewind"
)

// instancesShown bounds the instances on the page: restarts of a day may be many.
const instancesShown = 50

func systemPage() *page {
	return &page{path: systemPath, title: "System", menu: "System", template: "system.html", needs: "GET /api/v1/system", params: []string{"cursor"},
		cli: []string{"meterplex system ready", "meterplex system instances", "meterplex system show", "meterplex system identity", "meterplex outbox show"},
		load: func(v *visit) (doc, error) {
			data, err := v.all(map[string]section{
				"system":    {api("system"), nil},
				"outbox":    {api("outbox"), nil},
				"identity":  {api("system", "identity"), nil},
				"instances": {api("system", "instances"), limited(instancesShown, v.pick("cursor"))},
			})
			if err != nil {
				return nil, err
			}
			data["leases"] = leasesIn(data["outbox"].(doc))
			if v.c.Operation("GET /readyz") != nil {
				data["ready"], err = v.ready()
			}
			return data, err
		}}
}

// leasesIn counts the leases in force of each instance.
func leasesIn(outbox doc) (list []doc) {
	for _, p := range items(outbox["partitions"]) {
		owner := text(member(p, "owner"))
		if member(p, "leased") != true {
			continue
		}
		at := slices.IndexFunc(list, func(d doc) bool { return d["instance"] == owner })
		if at < 0 {
			at, list = len(list), append(list, doc{"instance": owner, "leases": 0})
		}
		list[at]["leases"] = list[at]["leases"].(int) + 1
	}
	return list
}

// settingsPage shows the instance that answers. The API masks passwords and keys.
func settingsPage() *page {
	return &page{path: settingsPath, title: "Instance and settings", template: "settings.html", needs: "GET /api/v1/system/instance",
		cli: []string{"meterplex system instance", "meterplex config print"}}
}

// ready reads the dependencies. Those that do not answer make the answer a refusal, which the page shows.
func (v *visit) ready() (doc, error) {
	d, err := v.get("/readyz", nil)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		return doc{"problem": refused}, nil
	}
	return d, err
}

func withheldPage() *page {
	return &page{path: withheldPath, title: "Withheld records", template: "withheld.html", needs: "GET /api/v1/outbox/withheld",
		params: []string{"tenantId", "topic", "cursor"}, cli: []string{"meterplex outbox withheld[ --tenant-id {tenantId}][ --topic {topic}]"}}
}

func replaysPage() *page {
	return &page{path: replaysPath, title: "Replays", menu: "Replays", template: "replays.html", needs: "GET /api/v1/replays",
		params: []string{"cursor"}, cli: []string{"meterplex replay list"}}
}

func replayPageOf() *page {
	return &page{path: replayPath, title: "Replay", template: "replay.html", needs: "GET /api/v1/replays/{replayId}",
		cli: []string{"meterplex replay show {replayId}"}}
}

func newReplayPage() *page {
	return &page{path: newReplayPath, title: "New replay", text: "A range of the log is published again, for readers outside. Our own consumers skip it: no figure changes.", needs: "POST /api/v1/replays", params: []string{"key"},
		cli: []string{"meterplex replay range --help"},
		actions: []*action{{name: "replay", path: newReplayPath, label: "Publish again", does: "POST /api/v1/replays",
			fields: []field{
				{name: "topic", hint: "E.g. usage.raw."},
				{name: "from", label: "First position", hint: "Partition-position, e.g. 17-4711; its partition is the range's."},
				{name: "to", label: "Last position"},
				{name: "fromTime", label: "Recorded from", hint: "An RFC 3339 time, instead of positions: in all partitions."},
				{name: "toTime", label: "Recorded before"},
				{name: "tenantId", hint: "Only the events of one tenant."},
			},
			next: made(replaysPath, "id")}}}
}

func newRewindPage() *page {
	return &page{path: newRewindPath, title: "New rewind", text: "The relay publishes again, or a consumer reads again, from an earlier position. Checkpoints drop duplicates: no event is counted twice.", needs: "POST /api/v1/replays/rewind", params: []string{"key"},
		cli: []string{"meterplex replay rewind --help"},
		actions: []*action{{name: "rewind", path: newRewindPath, label: "Rewind", does: "POST /api/v1/replays/rewind",
			warn: "Records are published or read again. It never goes forward, and cannot be taken back; no event is counted twice.",
			fields: []field{
				{name: "consumer", hint: "E.g. meterplex-usage-aggregator; empty: the relay."},
				{name: "to", hint: "start, an RFC 3339 time, or consumers: to what our consumers still need, the default of the relay."},
				{name: "positions", kind: "area", hint: "Instead of a target: the first position to publish or read again, one for a partition, separated by spaces."},
			},
			adds: func(_ *visit, f form, body map[string]any) error {
				if body["positions"] != nil {
					body["positions"] = strings.Fields(strings.ReplaceAll(f.get("positions"), ",", " "))
				}
				return nil
			},
			next: made(replaysPath, "id")}}}
}
