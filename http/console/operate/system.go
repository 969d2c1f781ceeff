package operate

import (
	"errors"
	"slices"

	"github.com/meterplex/meterplex/http/console"
)

const (
	systemPath   = console.Prefix + "/system"
	settingsPath = systemPath + "/settings"
	withheldPath = systemPath + "/withheld"
)

// instancesShown bounds the instances on the page: restarts of a day may be many.
const instancesShown = 50

func systemPage() *console.Page {
	return &console.Page{Path: systemPath, Title: "System", Group: "Operations", Menu: "System", Template: "system.html",
		Needs: "GET /api/v1/system", Params: []string{"cursor"},
		CLI: []string{"meterplex system ready", "meterplex system instances", "meterplex system show", "meterplex system identity",
			"meterplex outbox show"},
		Load: func(v *console.Visit) (console.Doc, error) {
			data, err := v.All(map[string]console.Section{
				"system":    {Path: console.API("system")},
				"outbox":    {Path: console.API("outbox")},
				"identity":  {Path: console.API("system", "identity")},
				"instances": {Path: console.API("system", "instances"), Query: console.Limited(instancesShown, v.Pick("cursor"))},
			})
			if err != nil {
				return nil, err
			}
			data["leases"] = leasesIn(data["outbox"].(console.Doc))
			if v.Has("GET /readyz") {
				data["ready"], err = ready(v)
			}
			return data, err
		}}
}

// leasesIn counts the leases in force of each instance.
func leasesIn(outbox console.Doc) (list []console.Doc) {
	for _, p := range console.Items(outbox["partitions"]) {
		owner := console.Text(console.Member(p, "owner"))
		if console.Member(p, "leased") != true {
			continue
		}
		at := slices.IndexFunc(list, func(d console.Doc) bool { return d["instance"] == owner })
		if at < 0 {
			at, list = len(list), append(list, console.Doc{"instance": owner, "leases": 0})
		}
		list[at]["leases"] = list[at]["leases"].(int) + 1
	}
	return list
}

// settingsPage shows the instance that answers. The API masks passwords and keys.
func settingsPage() *console.Page {
	return &console.Page{Path: settingsPath, Title: "Instance and settings", Template: "settings.html",
		Needs: "GET /api/v1/system/instance",
		CLI:   []string{"meterplex system instance", "meterplex config print"}}
}

// ready reads the dependencies. Those that do not answer make the answer a refusal, which the page shows.
func ready(v *console.Visit) (console.Doc, error) {
	d, err := v.Get("/readyz", nil)
	if refused := (*console.Refusal)(nil); errors.As(err, &refused) {
		return console.Doc{"problem": refused}, nil
	}
	return d, err
}

func withheldPage() *console.Page {
	return &console.Page{Path: withheldPath, Title: "Withheld records", Template: "withheld.html", Needs: "GET /api/v1/outbox/withheld",
		Params: []string{"tenantId", "topic", "cursor"}, CLI: []string{"meterplex outbox withheld[ --tenant {tenantId}][ --topic {topic}]"}}
}
