package http_test

import (
	"fmt"
	"html"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// huge is 2^53 + 1, which no float holds.
const huge = "9007199254740993"

// hugeShown is huge as tables of usage show it.
const hugeShown = "9,007,199,254,740,993"

var (
	htmlRow  = regexp.MustCompile(`(?s)<tr>(.*?)</tr>`)
	htmlCell = regexp.MustCompile(`(?s)<td[^>]*>(.*?)</td>`)
	htmlTag  = regexp.MustCompile(`<[^>]*>`)
	htmlLink = regexp.MustCompile(`href="([^"]*)"`)
)

// cells returns the rows of the tables of a page, as the texts of their cells.
func cells(page answer) (rows [][]string) {
	for _, r := range htmlRow.FindAllStringSubmatch(string(page.body), -1) {
		var row []string
		for _, c := range htmlCell.FindAllStringSubmatch(r[1], -1) {
			row = append(row, html.UnescapeString(strings.TrimSpace(htmlTag.ReplaceAllString(c[1], ""))))
		}
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}

// link returns the first link of a page that begins as given.
func (b *browser) link(page answer, begins string) string {
	b.Helper()
	for _, l := range htmlLink.FindAllStringSubmatch(string(page.body), -1) {
		if to := html.UnescapeString(l[1]); strings.HasPrefix(to, begins) {
			return to
		}
	}
	b.Fatalf("the page has no link to %s:\n%s", begins, page.body)
	return ""
}

func storage(id string, amount int64) map[string]any {
	return event(id, map[string]any{"feature": "storage", "amount": amount})
}

// A customer disputes a figure: the page of its usage leads to the very events of the figure, and each event to its receipt. All amounts
// are exact.
func TestConsole_AFigureLeadsToItsEventsAndReceipts(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(storage("one", 1<<53-1), storage("two", 2), event("<b>of&</b>",
		map[string]any{"metadata": map[string]any{"region": `"><script>`}})))
	w.ingest(a, batch(storage("two", 3)))
	w.letter(a)
	w.fold()
	for name, b := range map[string]*browser{"tenantId=" + a.id + "&": w.signIn(bootstrap), "": w.signIn(a.reader)} {
		usage := b.open("/console/usage?" + name + "feature=storage")
		b.shows(usage, hugeShown, `<div class="chart" data-table="series-table">`, "CSV of the whole series")
		explain := b.open(b.link(usage, "/console/usage/explain?"))
		b.shows(explain, `id="figure">`+hugeShown+"<", "The running sum is the figure", ">one<", ">two<")
		if list := cells(explain); len(list) != 2 || list[0][6] != "9,007,199,254,740,991" || list[1][7] != hugeShown {
			t.Errorf("the events are %q", list)
		}
		b.shows(b.open(b.link(explain, "/console/usage/events/two")), "aggregated", "Other payloads with this id", "storage, lifetime")
		b.shows(b.open(b.link(usage, "/console/usage/conflicts")), ">two<")
		b.shows(b.open(b.link(usage, "/console/usage/events?")), ">one<", "Used from", "Used before", "9,007,199,254,740,991")
		b.shows(b.open("/console/usage/events?"+name+"status=REJECTED"), "rejected-of-A", "feature_not_found")
		b.shows(b.open("/console/usage/explain?"+name+"feature=gone&period=lifetime&include=rejected"), "No event is counted")
		hostile := b.open("/console/usage/events/" + url.PathEscape("<b>of&</b>") + "?" + name)
		b.shows(hostile, "&lt;b&gt;of&amp;&lt;/b&gt;")
		if strings.Contains(string(hostile.body), "><script>") || strings.Contains(string(hostile.body), "<b>of") {
			t.Errorf("hostile text is not escaped:\n%s", hostile.body)
		}
		grouped := b.open("/console/usage?" + name + "feature=api_calls&groupBy=region&granularity=hour")
		b.shows(grouped, `class="group">region<`, "&#34;&gt;&lt;script&gt;")
		if strings.Contains(string(grouped.body), "><script>") {
			t.Errorf("hostile text is not escaped:\n%s", grouped.body)
		}
	}
	b := w.signIn(bootstrap)
	all := b.open("/console/usage?period=lifetime")
	b.shows(b.open("/console/usage?feature=storage"), `<option value="storage" selected>`)
	b.shows(b.open("/console/tenants/"+a.id), `<td>storage</td><td class="number">9,007,199,254,740,991</td>`)
	b.shows(all, "Figures of all tenants", `<option value="`+a.id+`">A</option>`, hugeShown)
	for path, hint := range map[string]string{"/console/usage/events": "Choose a tenant to see its usage events",
		"/console/usage/conflicts":                "Choose a tenant to see its conflicts",
		"/console/dead-letters/bulk?action=retry": "Set at least one filter"} {
		b.shows(b.open(path), hint)
	}
}

// Two moments are compared with exact differences, and files are those of the API, in which a cell that a spreadsheet would execute is
// quoted.
func TestConsole_FiguresAreComparedAndSaved(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(a.reader)
	first := w.accept(a, storage("one", 5))[0]
	w.fold()
	w.ingest(a, batch(storage("two", 1<<53-1), storage("three", 2), event("four",
		map[string]any{"metadata": map[string]any{"region": "=1+1"}})))
	w.fold()
	now := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: a.reader})["asOfPosition"].(string)
	page := b.open("/console/usage?asOfPosition=" + first + "&asOfPosition2=" + now)
	b.shows(page, "&#43;"+hugeShown, "9,007,199,254,740,998")
	b.shows(b.open("/console/usage?asOfPosition="+now+"&asOfPosition2="+first), "-"+hugeShown)
	usage := b.open("/console/usage?feature=api_calls&groupBy=region")
	series, figures := b.open(b.link(usage, "/console/usage/series.csv?")), b.open(b.link(usage, "/console/usage/figures.csv?"))
	if !strings.Contains(string(series.body), ",'=1+1\n") ||
		series.header.Get("Content-Disposition") != `attachment; filename="series.csv"` {
		t.Errorf("%v\n%s", series.header, series.body)
	}
	api := w.do(call{method: "GET", path: "/api/v1/usage/aggregates?feature=api_calls&format=csv", key: a.reader})
	w.same("the file", string(figures.body), string(api.body))
}

// A tenant is shown by its name, with the end of its id if another has the name, too: the beginning of an id is a time, which both may
// share.
func TestConsole_TenantsAreShownByTheirNames(t *testing.T) {
	w, a := newServiceWithAccount(t)
	twins := []*account{w.newAccount("Twin"), w.newAccount("Twin")}
	want := map[string]bool{"A": true}
	for _, x := range append(twins, a) {
		w.ingest(x, batch(storage("s1", 2)))
		if x != a {
			want["Twin …"+x.id[strings.LastIndex(x.id, "-")+1:]] = true
		}
	}
	w.fold()
	shown := 0
	for _, row := range cells(w.signIn(bootstrap).open("/console/usage?period=lifetime")) {
		if want[row[0]] {
			shown++
		}
	}
	if shown != len(want) {
		t.Errorf("%d of the tenants %v are shown", shown, want)
	}
	b := w.signIn(bootstrap)
	b.shows(b.open("/console/events?subject=meterplex.usage.event.recorded"), slices.Collect(maps.Keys(want))...)
	w.ingest(a, batch(storage("s2", 2)))
	b.shows(b.open("/console/events/live?subject=meterplex.usage.event.recorded"), "&#34;s2&#34;", ">A</a>")
	for n := range 100 { // more than a picker lists: names are remembered for a moment
		w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, map[string]any{"name": fmt.Sprint("Many ", n), "class": "small"}})
	}
	for range 2 {
		b.shows(b.open("/console/events?subject=meterplex.usage.event.recorded"), slices.Collect(maps.Keys(want))...)
	}
	change := "/console/tenants/" + a.id + "/change"
	renamed := url.Values{"name": {"Renamed"}, "class": {"small"}, "lateUsage": {"REJECT"}}
	w.same("the answer of the change", b.act(b.open(change), change, "a new name", renamed).status, 303)
	b.shows(b.open("/console/events?subject=meterplex.usage.event.recorded"), ">Renamed</a>")
}
