package console

import (
	"errors"
	"net/http"
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

func operators() []string { return []string{"billing", "audit", "admin"} }

// instancesShown bounds the instances on the page: restarts of a day may be many.
const instancesShown = 50

func systemPage() *page {
	return &page{path: systemPath, title: "System", menu: "System", template: "system.html", needs: "GET /api/v1/system", who: operator, scopes: operators(), params: []string{"cursor"},
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
			if v.c.Serves("GET /readyz") {
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
	return &page{path: settingsPath, title: "Instance and settings", template: "settings.html", needs: "GET /api/v1/system/instance", who: operator, scopes: admins(),
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
	return &page{path: withheldPath, title: "Withheld records", template: "withheld.html", needs: "GET /api/v1/outbox/withheld", who: operator, scopes: operators(),
		params: []string{"tenantId", "topic", "cursor"}, cli: []string{"meterplex outbox withheld[ --tenant-id {tenantId}][ --topic {topic}]"}}
}

func replaysPage() *page {
	return &page{path: replaysPath, title: "Replays", menu: "Replays", template: "replays.html", needs: "GET /api/v1/replays", who: operator, scopes: admins(),
		params: []string{"cursor"}, cli: []string{"meterplex replay list"}}
}

func replayPageOf() *page {
	return &page{path: replayPath, title: "Replay", template: "replay.html", needs: "GET /api/v1/replays/{replayId}", who: operator, scopes: admins(),
		cli: []string{"meterplex replay show {replayId}"}}
}

// chosen returns the fields of a form that are set, as members of a request.
func (f form) chosen(names ...string) map[string]any {
	body := map[string]any{}
	for _, name := range names {
		if value := f.get(name); value != "" {
			body[name] = value
		}
	}
	return body
}

func newReplayPage() *page {
	return &page{path: newReplayPath, title: "New replay", text: "A range of the log is published again, for readers outside. Our own consumers skip it: no figure changes.", needs: "POST /api/v1/replays", who: operator, scopes: admins(), params: []string{"key"},
		cli: []string{"meterplex replay range --help"},
		actions: []*action{{name: "replay", path: newReplayPath, label: "Publish again", who: operator, scopes: admins(),
			fields: []field{
				{name: "topic", label: "Topic", hint: "E.g. usage.raw."},
				{name: "from", label: "First position", optional: true, hint: "Partition-position, e.g. 17-4711; its partition is the range's."},
				{name: "to", label: "Last position", optional: true},
				{name: "fromTime", label: "Recorded from", optional: true, hint: "An RFC 3339 time, instead of positions: in all partitions."},
				{name: "toTime", label: "Recorded before", optional: true},
				{name: "tenantId", label: "Tenant id", optional: true, hint: "Only the events of one tenant."},
			},
			request: func(_ *visit, f form) (request, error) {
				return request{Method: http.MethodPost, Path: api("replays"), Body: f.chosen("topic", "from", "to", "fromTime", "toTime", "tenantId")}, nil
			},
			next: made(replaysPath, "id")}}}
}

func newRewindPage() *page {
	return &page{path: newRewindPath, title: "New rewind", text: "The relay publishes again, or a consumer reads again, from an earlier position. Checkpoints drop duplicates: no event is counted twice.", needs: "POST /api/v1/replays/rewind", who: operator, scopes: admins(), params: []string{"key"},
		cli: []string{"meterplex replay rewind --help"},
		actions: []*action{{name: "rewind", path: newRewindPath, label: "Rewind", who: operator, scopes: admins(),
			warn: "Records are published or read again. It never goes forward, and cannot be taken back; no event is counted twice.",
			fields: []field{
				{name: "consumer", label: "Consumer", optional: true, hint: "E.g. meterplex-usage-aggregator; empty: the relay."},
				{name: "to", label: "To", optional: true, hint: "start, an RFC 3339 time, or consumers: to what our consumers still need, the default of the relay."},
				{name: "positions", label: "Positions", kind: "area", optional: true, hint: "Instead of a target: the first position to publish or read again, one for a partition, separated by spaces."},
			},
			request: func(_ *visit, f form) (request, error) {
				body := f.chosen("consumer", "to")
				if positions := strings.Fields(strings.ReplaceAll(f.get("positions"), ",", " ")); len(positions) > 0 {
					body["positions"] = positions
				}
				return request{Method: http.MethodPost, Path: api("replays", "rewind"), Body: body}, nil
			},
			next: made(replaysPath, "id")}}}
}
