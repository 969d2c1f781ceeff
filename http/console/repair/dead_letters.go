// Package repair has the pages for failures and repeated folds: dead letters, rebuilds and replays.
package repair

import (
	"net/url"
	"time"

	"github.com/meterplex/meterplex/http/console"
)

const (
	lettersPath = console.Prefix + "/dead-letters"
	bulkPath    = lettersPath + "/bulk"
	letterPath  = lettersPath + "/{deadLetterId}"
)

// letterFilters are the filters of dead letters that lists, groups and bulk changes share.
func letterFilters() []string {
	return []string{"status", "stage", "tenantId", "reason", "fingerprint", "feature", "consumer", "topic", "from", "to"}
}

const letterFlags = "[ --status {status}][ --stage {stage}][ --tenant {tenantId}][ --reason {reason}][ --fingerprint {fingerprint}][ " +
	"--feature {feature}]" +
	"[ --consumer {consumer}][ --topic {topic}][ --from {from}][ --to {to}]"

func lettersPage() *console.Page {
	return &console.Page{Path: lettersPath, Title: "Dead letters", Group: "Operations", Menu: "Dead letters", Template: "dead_letters.html",
		Needs:  "GET /api/v1/dead-letters/groups",
		Params: append(letterFilters(), "groups", "cursor"), CLI: []string{"meterplex dead-letters groups" + letterFlags,
			"meterplex dead-letters list" + letterFlags},
		Load: loadLetters}
}

// Pages of the lists.
const (
	groupsShown  = "25"
	lettersShown = "50"
	trendGroups  = "1000"
)

func loadLetters(v *console.Visit) (console.Doc, error) {
	of := v.Pick(letterFilters()...)
	groups, letters := console.Clone(of), console.Clone(of)
	groups.Set("limit", groupsShown)
	if cursor := v.Query.Get("groups"); cursor != "" {
		groups.Set("cursor", cursor)
	}
	letters.Set("limit", lettersShown)
	if cursor := v.Query.Get("cursor"); cursor != "" {
		letters.Set("cursor", cursor)
	}
	data, err := v.All(map[string]console.Section{"groups": {Path: console.API("dead-letters", "groups"), Query: groups},
		"letters": {Path: console.API("dead-letters"), Query: letters}})
	if err != nil || of.Has("from") || of.Has("to") || len(console.Items(data["groups"].(console.Doc)["data"])) == 0 {
		return data, err
	}
	return data, trends(v, data["groups"].(console.Doc), of)
}

// trends adds to each group how many of its dead letters failed first in the last hour and in the last day. A group that the first thousand
// of these times do not have shows no number.
func trends(v *console.Visit, groups console.Doc, of url.Values) error {
	now := v.Now().UTC().Truncate(time.Second)
	for _, span := range []struct {
		name string
		long time.Duration
	}{{"lastHour", time.Hour}, {"lastDay", 24 * time.Hour}} {
		query := console.Clone(of)
		query.Set("from", now.Add(-span.long).Format(time.RFC3339))
		query.Set("limit", trendGroups)
		recent, err := v.Get(console.API("dead-letters", "groups"), query)
		if err != nil {
			return err
		}
		counts := map[string]any{}
		for _, g := range console.Items(recent["data"]) {
			counts[console.Text(console.Member(g, "fingerprint"))] = console.Member(g, "count")
		}
		for _, g := range console.Items(groups["data"]) {
			if group, ok := g.(map[string]any); ok {
				if group[span.name] = counts[console.Text(group["fingerprint"])]; group[span.name] == nil && recent["nextCursor"] == nil {
					group[span.name] = "0"
				}
			}
		}
	}
	groups["trends"] = true
	return nil
}

func letterPage() *console.Page {
	decision := func(name, label, warn string) *console.Action {
		return &console.Action{Name: name, Path: letterPath + "/" + name, Label: label, Warn: warn,
			Does: "POST /api/v1/dead-letters/{deadLetterId}/" + name}
	}
	return &console.Page{Path: letterPath, Title: "Dead letter", Template: "dead_letter.html",
		Needs: "GET /api/v1/dead-letters/{deadLetterId}", Find: console.FindByID("Dead letter", "dead-letters"),
		CLI: []string{"meterplex dead-letters show {deadLetterId}"},
		Load: func(v *console.Visit) (console.Doc, error) {
			letter, err := v.Get(console.API("dead-letters", v.Param("deadLetterId")), nil)
			if err != nil {
				return nil, err
			}
			fault := faultOf(letter)
			return console.Doc{"letter": letter, "member": fault.name, "absent": fault.name != "" && fault.path == nil,
				"sample": fault.sample()}, nil
		},
		Actions: []*console.Action{
			decision("retry", "Retry the dead letter", ""),
			decision("discard", "Discard the dead letter", "Its event is never counted, in rebuilds too. This cannot be undone."),
		}}
}

// bulkPage previews a bulk: the API's dry run of the filter. Its form sends the filter and the number of dead letters that it matched.
func bulkPage() *console.Page {
	return &console.Page{Path: bulkPath, Title: "Retry or discard many dead letters", Template: "dead_letters_bulk.html",
		Needs:  "POST /api/v1/dead-letters/bulk",
		Params: append(letterFilters(), "action"),
		CLI: []string{"meterplex dead-letters bulk {action} --dry-run --reason preview" +
			"[ --status {status}][ --stage {stage}][ --tenant {tenantId}][ --code {reason}][ --fingerprint {fingerprint}][ --feature " +
			"{feature}][ --consumer {consumer}][ --topic {topic}][ --from {from}][ --to {to}]", "meterplex dead-letters bulk --help"},
		Load: loadBulk,
		Actions: []*console.Action{
			bulkAction("bulk-retry", "Retry these dead letters", "", "retry"),
			bulkAction("bulk-discard", "Discard these dead letters",
				"Their events are never counted, in rebuilds too. This cannot be undone.", "discard"),
		}}
}

func loadBulk(v *console.Visit) (console.Doc, error) {
	filter := map[string]any{}
	for name, values := range v.Pick(letterFilters()...) {
		filter[name] = values[0]
	}
	if v.Query.Get("action") == "" || len(filter) == 0 {
		return console.Doc{}, nil
	}
	preview, err := console.Tried(v.Preview(console.API("dead-letters", "bulk"), nil, map[string]any{"action": v.Query.Get("action"),
		"filter": filter, "dryRun": true}))
	if err != nil || preview["problem"] != nil {
		return preview, err
	}
	of := v.Pick(letterFilters()...)
	of.Set("limit", "100")
	groups, err := v.Get(console.API("dead-letters", "groups"), of)
	return console.Doc{"preview": preview, "filter": filter, "groups": groups}, err
}

func bulkAction(name, label, warn, does string) *console.Action {
	a := &console.Action{Name: name, Path: bulkPath + "/" + does, Label: label, Warn: warn, Does: "POST /api/v1/dead-letters/bulk",
		Sets:   map[string]any{"action": does},
		Fields: []console.Field{{Name: "expectedMatched", Label: "Matched", Kind: "displayed"}},
		Adds: func(_ *console.Visit, f console.Form, body map[string]any) error {
			filter := map[string]any{}
			for _, name := range letterFilters() {
				if value := f.Get(bulkField(name)); value != "" {
					filter[name] = value
				}
			}
			body["filter"] = filter
			return nil
		},
		Next: func(_ *console.Visit, f console.Form, _ console.Doc) string {
			of := []any{}
			for _, name := range letterFilters() {
				if name != "status" { // it has changed
					of = append(of, name, f.Get(bulkField(name)))
				}
			}
			return console.Query(lettersPath, of...)
		}}
	for _, name := range letterFilters() {
		a.Fields = append(a.Fields, console.Field{Name: bulkField(name), Label: name, Kind: "hidden", Optional: true})
	}
	return a
}

// bulkField is the field of a form for a filter: reason is the field of the reason for the action.
func bulkField(filter string) string {
	if filter == "reason" {
		return "code"
	}
	return filter
}
