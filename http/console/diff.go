package console

// diffShown is the number of keys on a page of a difference.
const diffShown = 100

func diffPageOf() *page {
	return &page{path: diffPath, title: "Difference of a rebuild", template: "diff.html", needs: "GET /api/v1/rebuilds/{rebuildId}/diff",
		params: []string{"tenantId", "feature", "periodKey", "all", "cursor"},
		cli:    []string{"meterplex projections diff {rebuildId}[ --tenant-id {tenantId}][ --feature {feature}][ --period {periodKey}]"},
		load:   loadDiff, actions: []*action{promotion()}}
}

// promotion promotes the difference that the page displays: its entity tag names positions, keys and the sums of their deltas.
func promotion() *action {
	a := decisionOn("promote", diffPath, "Promote the rebuild", "Readers see the rebuilt figures from then on. It can be rolled back for a limited time.")
	a.matches = true
	a.next = func(v *visit, _ form, _ doc) string { return v.expand(rebuildPath) }
	return a
}

func loadDiff(v *visit) (doc, error) {
	id := v.param("rebuildId")
	rebuild, err := v.get(api("rebuilds", id), nil)
	if err != nil {
		return nil, err
	}
	of := v.pick("tenantId", "feature", "periodKey", "all", "cursor")
	of.Set("limit", text(diffShown))
	if !of.Has("cursor") {
		of.Set("largest", "true")
	}
	data := doc{"rebuild": rebuild, "whole": len(v.pick("tenantId", "feature", "periodKey", "cursor")) == 0}
	if data["diff"], err = v.try(api("rebuilds", id, "diff"), of); err != nil {
		return nil, err
	}
	diff, _ := data["diff"].(doc)
	projections, err := v.try(api("projections"), nil)
	if err != nil {
		return nil, err
	}
	data["cautions"] = cautions(rebuild, diff, projections)
	return data, nil
}

// cautions are what an operator must know before a promotion.
func cautions(rebuild, diff, projections doc) (lines []string) {
	kept := diff["conservation"]
	if member(kept, "holds") == false {
		lines = append(lines, text(member(kept, "verdicts"))+" verdicts are in the log, but "+text(member(kept, "counted"))+" are counted, "+
			text(member(kept, "parked"))+" parked and "+text(member(kept, "withheld"))+" withheld: do not promote.")
	}
	for _, p := range items(projections["data"]) {
		if text(member(p, "name")) != text(rebuild["projection"]) {
			continue
		}
		for _, g := range items(member(p, "generations")) {
			if text(member(g, "generation")) == text(rebuild["generation"]) && text(member(g, "state")) == "broken" {
				lines = append(lines, "The generation is broken: "+text(member(g, "why")))
			}
		}
	}
	if closed := closedKeys(diff); closed != "" {
		lines = append(lines, closed+": a promotion changes no frozen figure, and proposes adjustments instead.")
	}
	return lines
}

// closedKeys says how many keys of a difference are of closed periods, "" if none. Only the first page has the totals; a further one says it of its rows.
func closedKeys(diff doc) string {
	switch n := text(member(diff["totals"], "differingClosed")); n {
	case "0":
		return ""
	case "":
	case "1":
		return "1 of the keys that differ is of a closed period"
	default:
		return n + " of the keys that differ are of closed periods"
	}
	for _, row := range items(diff["data"]) {
		if member(row, "closedSnapshot") != nil {
			return "The page has figures of closed periods"
		}
	}
	return ""
}

func diffEventsPage() *page {
	return &page{path: diffEventsPath, title: "Events behind a difference", template: "diff_events.html", needs: "GET /api/v1/rebuilds/{rebuildId}/diff/events",
		params: []string{"tenantId", "feature", "periodKey", "subscriptionId", "cursor"},
		cli:    []string{"meterplex projections diff {rebuildId} --tenant-id {tenantId} --feature {feature} --period {periodKey}", "meterplex projections events --help"},
		limit:  diffShown}
}
