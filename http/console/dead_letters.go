package console

import (
	"errors"
	"net/http"
	"net/url"
	"time"
)

const (
	lettersPath = Prefix + "/dead-letters"
	bulkPath    = lettersPath + "/bulk"
	letterPath  = lettersPath + "/{deadLetterId}"
)

// letterFilters are the filters of dead letters that lists, groups and bulk changes share.
func letterFilters() []string {
	return []string{"status", "stage", "tenantId", "reason", "fingerprint", "feature", "consumer", "topic", "from", "to"}
}

const letterFlags = "[ --status {status}][ --stage {stage}][ --tenant-id {tenantId}][ --reason {reason}][ --fingerprint {fingerprint}][ --feature {feature}]" +
	"[ --consumer {consumer}][ --topic {topic}][ --from {from}][ --to {to}]"

func lettersPage() *page {
	return &page{path: lettersPath, title: "Dead letters", menu: "Dead letters", template: "dead_letters.html", needs: "GET /api/v1/dead-letters/groups",
		params: append(letterFilters(), "groups", "cursor"), cli: []string{"meterplex dead-letters groups" + letterFlags, "meterplex dead-letters list" + letterFlags},
		load: loadLetters}
}

// Pages of the lists.
const (
	groupsShown  = "25"
	lettersShown = "50"
	trendGroups  = "1000"
)

func loadLetters(v *visit) (doc, error) {
	of := v.pick(letterFilters()...)
	groups, letters := clone(of), clone(of)
	groups.Set("limit", groupsShown)
	if cursor := v.query.Get("groups"); cursor != "" {
		groups.Set("cursor", cursor)
	}
	letters.Set("limit", lettersShown)
	if cursor := v.query.Get("cursor"); cursor != "" {
		letters.Set("cursor", cursor)
	}
	data, err := v.all(map[string]section{"groups": {api("dead-letters", "groups"), groups}, "letters": {api("dead-letters"), letters}})
	if err != nil || of.Has("from") || of.Has("to") || len(items(data["groups"].(doc)["data"])) == 0 {
		return data, err
	}
	return data, v.trends(data["groups"].(doc), of)
}

// trends adds to each group how many of its dead letters failed first in the last hour and in the last day. A group that the first thousand of
// these times do not have shows no number.
func (v *visit) trends(groups doc, of url.Values) error {
	now := v.c.Now().UTC().Truncate(time.Second)
	for _, span := range []struct {
		name string
		long time.Duration
	}{{"lastHour", time.Hour}, {"lastDay", 24 * time.Hour}} {
		query := clone(of)
		query.Set("from", now.Add(-span.long).Format(time.RFC3339))
		query.Set("limit", trendGroups)
		recent, err := v.get(api("dead-letters", "groups"), query)
		if err != nil {
			return err
		}
		counts := map[string]any{}
		for _, g := range items(recent["data"]) {
			counts[text(member(g, "fingerprint"))] = member(g, "count")
		}
		for _, g := range items(groups["data"]) {
			if group, ok := g.(map[string]any); ok {
				if group[span.name] = counts[text(group["fingerprint"])]; group[span.name] == nil && recent["nextCursor"] == nil {
					group[span.name] = "0"
				}
			}
		}
	}
	groups["trends"] = true
	return nil
}

// clone returns a copy of the parameters.
func clone(of url.Values) url.Values {
	values := url.Values{}
	for name, all := range of {
		values[name] = all
	}
	return values
}

// member returns a member of an object of the API; nil if it has none.
func member(of any, name string) any {
	switch of := of.(type) {
	case doc:
		return of[name]
	case map[string]any:
		return of[name]
	}
	return nil
}

func letterPage() *page {
	decision := func(name, label, warn string) *action {
		return &action{name: name, path: letterPath + "/" + name, label: label, warn: warn, does: "POST /api/v1/dead-letters/{deadLetterId}/" + name}
	}
	return &page{path: letterPath, title: "Dead letter", template: "dead_letter.html", needs: "GET /api/v1/dead-letters/{deadLetterId}",
		cli: []string{"meterplex dead-letters show {deadLetterId}"},
		load: func(v *visit) (doc, error) {
			letter, err := v.get(api("dead-letters", v.param("deadLetterId")), nil)
			if err != nil {
				return nil, err
			}
			fault := faultOf(letter)
			return doc{"letter": letter, "member": fault.name, "absent": fault.name != "" && fault.path == nil, "sample": fault.sample()}, nil
		},
		actions: []*action{
			decision("retry", "Retry the dead letter", ""),
			decision("discard", "Discard the dead letter", "Its event is never counted, in rebuilds too. This cannot be undone."),
		}}
}

// bulkPage previews a bulk: the API's dry run of the filter. Its form sends the filter and the number of dead letters that it matched.
func bulkPage() *page {
	return &page{path: bulkPath, title: "Retry or discard many dead letters", template: "dead_letters_bulk.html", needs: "POST /api/v1/dead-letters/bulk",
		params: append(letterFilters(), "action"),
		cli:    []string{"meterplex dead-letters bulk {action} --dry-run --reason preview" + "[ --status {status}][ --stage {stage}][ --tenant-id {tenantId}][ --code {reason}][ --fingerprint {fingerprint}][ --feature {feature}][ --consumer {consumer}][ --topic {topic}][ --from {from}][ --to {to}]", "meterplex dead-letters bulk --help"},
		load:   loadBulk,
		actions: []*action{
			bulkAction("bulk-retry", "Retry these dead letters", "", "retry"),
			bulkAction("bulk-discard", "Discard these dead letters", "Their events are never counted, in rebuilds too. This cannot be undone.", "discard"),
		}}
}

func loadBulk(v *visit) (doc, error) {
	if v.query.Get("action") == "" {
		return doc{}, nil
	}
	filter := map[string]any{}
	for name, values := range v.pick(letterFilters()...) {
		filter[name] = values[0]
	}
	req := request{Method: http.MethodPost, Path: api("dead-letters", "bulk"), Body: map[string]any{"action": v.query.Get("action"), "filter": filter, "dryRun": true}}
	v.asked = append(v.asked, req)
	preview, err := v.do(req)
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		return doc{"problem": refused}, nil
	}
	if err != nil {
		return nil, err
	}
	of := v.pick(letterFilters()...)
	of.Set("limit", "100")
	groups, err := v.get(api("dead-letters", "groups"), of)
	return doc{"preview": preview, "filter": filter, "groups": groups}, err
}

func bulkAction(name, label, warn, does string) *action {
	a := &action{name: name, path: bulkPath + "/" + does, label: label, warn: warn, does: "POST /api/v1/dead-letters/bulk", sets: map[string]any{"action": does},
		fields: []field{{name: "expectedMatched", label: "Matched", kind: "displayed"}},
		adds: func(_ *visit, f form, body map[string]any) error {
			filter := map[string]any{}
			for _, name := range letterFilters() {
				if value := f.get(bulkField(name)); value != "" {
					filter[name] = value
				}
			}
			body["filter"] = filter
			return nil
		},
		next: func(_ *visit, f form, _ doc) string {
			of := []any{}
			for _, name := range letterFilters() {
				if name != "status" { // it has changed
					of = append(of, name, f.get(bulkField(name)))
				}
			}
			return query(lettersPath, of...)
		}}
	for _, name := range letterFilters() {
		a.fields = append(a.fields, field{name: bulkField(name), label: name, kind: "hidden", optional: true})
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
