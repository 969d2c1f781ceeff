package repair

import "github.com/meterplex/meterplex/http/console"

// diffShown is the number of keys on a page of a difference.
const diffShown = 100

func diffPageOf() *console.Page {
	return &console.Page{Path: diffPath, Title: "Difference of a rebuild", Template: "diff.html",
		Needs:  "GET /api/v1/rebuilds/{rebuildId}/diff",
		Params: []string{"tenantId", "feature", "periodKey", "all", "cursor"},
		CLI:    []string{"meterplex projections diff {rebuildId}[ --tenant {tenantId}][ --feature {feature}][ --period {periodKey}]"},
		Load:   loadDiff, Actions: []*console.Action{promotion()}}
}

// promotion promotes the difference that the page displays: its entity tag names positions, keys and the sums of their deltas.
func promotion() *console.Action {
	a := decisionOn("promote", diffPath, "Promote the rebuild",
		"Readers see the rebuilt figures from then on. It can be rolled back for a limited time.")
	a.Matches = true
	a.Next = func(v *console.Visit, _ console.Form, _ console.Doc) string { return v.Expand(rebuildPath) }
	return a
}

func loadDiff(v *console.Visit) (console.Doc, error) {
	id := v.Param("rebuildId")
	rebuild, err := v.Get(console.API("rebuilds", id), nil)
	if err != nil {
		return nil, err
	}
	of := v.Pick("tenantId", "feature", "periodKey", "all", "cursor")
	of.Set("limit", console.Text(diffShown))
	if !of.Has("cursor") {
		of.Set("largest", "true")
	}
	data := console.Doc{"rebuild": rebuild, "whole": len(v.Pick("tenantId", "feature", "periodKey", "cursor")) == 0}
	if data["diff"], err = v.Try(console.API("rebuilds", id, "diff"), of); err != nil {
		return nil, err
	}
	diff, _ := data["diff"].(console.Doc)
	projections, err := v.Try(console.API("projections"), nil)
	if err != nil {
		return nil, err
	}
	data["cautions"] = cautions(rebuild, diff, projections)
	return data, nil
}

// cautions are the warnings to an operator before a promotion.
func cautions(rebuild, diff, projections console.Doc) (lines []string) {
	kept := diff["conservation"]
	if console.Member(kept, "holds") == false {
		lines = append(lines, console.Text(console.Member(kept, "verdicts"))+" results are in the log, but "+
			console.Text(console.Member(kept, "counted"))+" are counted, "+
			console.Text(console.Member(kept, "parked"))+" parked and "+console.Text(console.Member(kept, "withheld"))+
			" withheld: do not promote.")
	}
	for _, p := range console.Items(projections["data"]) {
		if console.Text(console.Member(p, "name")) != console.Text(rebuild["projection"]) {
			continue
		}
		for _, g := range console.Items(console.Member(p, "generations")) {
			if console.Text(console.Member(g, "generation")) == console.Text(rebuild["generation"]) &&
				console.Text(console.Member(g, "state")) == "broken" {
				lines = append(lines, "The rebuilt rows are no longer updated: "+console.Text(console.Member(g, "why")))
			}
		}
	}
	if closed := closedKeys(diff); closed != "" {
		lines = append(lines, closed+": a promotion changes no frozen figure, and proposes adjustments instead.")
	}
	return lines
}

// closedKeys says how many keys of a difference are of closed periods, "" if no key is. Only the first page has the totals; a further one
// says it of its rows.
func closedKeys(diff console.Doc) string {
	switch n := console.Text(console.Member(diff["totals"], "differingClosed")); n {
	case "0":
		return ""
	case "":
	case "1":
		return "1 of the keys that differ is of a closed period"
	default:
		return n + " of the keys that differ are of closed periods"
	}
	for _, row := range console.Items(diff["data"]) {
		if console.Member(row, "closedSnapshot") != nil {
			return "The page has figures of closed periods"
		}
	}
	return ""
}

func diffEventsPage() *console.Page {
	return &console.Page{Path: diffEventsPath, Title: "Events of a difference", Template: "diff_events.html",
		Needs:  "GET /api/v1/rebuilds/{rebuildId}/diff/events",
		Params: []string{"tenantId", "feature", "periodKey", "subscriptionId", "cursor"},
		CLI: []string{"meterplex projections diff {rebuildId} --tenant {tenantId} --feature {feature} --period {periodKey}",
			"meterplex projections events --help"},
		Limit: diffShown}
}
