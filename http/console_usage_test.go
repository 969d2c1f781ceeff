package http_test

import (
	"fmt"
	"html"
	"math/big"
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/internal/tier"
)

// huge is 2^53 + 1, which no float holds.
const huge = "9007199254740993"

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

// refuses fails unless an address shows a problem of its own.
func (b *browser) refuses(path string, status int, code string) {
	b.Helper()
	if page := b.open(path); page.status != status || !strings.Contains(string(page.body), "#problem-"+code) || !strings.Contains(string(page.body), "Trace <code>") {
		b.Errorf("%s gives %d instead of %d %s:\n%s", path, page.status, status, code, page.body)
	}
}

func storage(id string, amount int64) map[string]any {
	return event(id, map[string]any{"feature": "storage", "amount": amount})
}

// A customer disputes a figure: the page of its usage leads to the very events of the figure, and each event to its receipt. All amounts are exact.
func TestConsole_AFigureLeadsToItsEventsAndReceipts(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(storage("one", 1<<53-1), storage("two", 2), event("<b>of&</b>", map[string]any{"metadata": map[string]any{"region": `"><script>`}})))
	w.ingest(a, batch(storage("two", 3)))
	w.letter(a)
	w.fold()
	for name, b := range map[string]*browser{"tenantId=" + a.id + "&": w.signIn(bootstrap), "": w.signIn(a.reader)} {
		usage := b.open("/console/usage?" + name + "feature=storage")
		b.shows(usage, huge, `<div class="chart" data-table="series-table">`, "CSV of the whole series")
		explain := b.open(b.link(usage, "/console/usage/explain?"))
		b.shows(explain, `id="figure">`+huge+"<", "The running sum is the figure", ">one<", ">two<")
		if list := cells(explain); len(list) != 2 || list[0][6] != "9007199254740991" || list[1][7] != huge {
			t.Errorf("the events are %q", list)
		}
		b.shows(b.open(b.link(explain, "/console/usage/events/two")), "aggregated", "Other payloads with this id", "storage, lifetime")
		b.shows(b.open(b.link(usage, "/console/usage/conflicts")), ">two<")
		b.shows(b.open(b.link(usage, "/console/usage/events?")), ">one<", "Used from", "Used before", "9007199254740991")
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
	all := w.signIn(bootstrap).open("/console/usage?period=lifetime")
	w.signIn(bootstrap).shows(all, "Figures of all tenants", a.id, huge)
}

// A tenant is shown by its name, with the end of its id if another has the name, too: the beginning of an id is a time, which both may share.
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
}

// usageDrawn is an event of storage, as drawn: a correction of an earlier one, or usage.
type usageDrawn struct {
	amount   int64
	corrects bool
}

// For random figures, the listed events sum up to the figure at the displayed position, whatever is recorded meanwhile.
func TestConsole_TheEventsOfAPageSumUpToItsFigure(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(bootstrap)
	drawn := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) usageDrawn {
		return usageDrawn{rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(1<<53-9, 1<<53-1)).Draw(rt, "amount"), rapid.IntRange(0, 2).Draw(rt, "kind") == 0}
	}), 0, 12)
	n := 0
	record := func(list []usageDrawn) {
		var sent []any
		for _, d := range list {
			e := storage(fmt.Sprint("e", n), d.amount)
			if n++; d.corrects && n > 5 {
				e["type"], e["correctionRef"] = "correction", fmt.Sprint("e", n%5)
			}
			sent = append(sent, e)
		}
		if sent != nil {
			w.ingest(a, batch(sent...))
			w.fold()
		}
	}
	record([]usageDrawn{{amount: 1}, {amount: 2}, {amount: 3}, {amount: 4}, {amount: 5}})
	for range tier.Histories(t, 5, 20) {
		record(drawn.Example())
		usage := b.open("/console/usage?tenantId=" + a.id)
		var figure string
		for _, row := range cells(usage) {
			if row[0] == "storage" {
				figure = row[3]
			}
		}
		at := b.link(usage, "/console/usage/explain?")
		record(drawn.Example())
		b.sumsUp(at, figure)
	}
	b.shows(b.open(b.link(b.open("/console/usage?tenantId="+a.id), "/console/usage/explain?")), "<td>correction</td>")
}

// sumsUp follows the pages of the events behind a figure, which must show the figure and its position, and add up to it.
func (b *browser) sumsUp(at, figure string) {
	b.Helper()
	position, sum := regexp.MustCompile(`asOfPosition=([0-9]+-[0-9]+)`).FindStringSubmatch(at)[1], new(big.Int)
	for at != "" {
		page := b.open(at)
		if !strings.Contains(string(page.body), `id="figure">`+figure+"<") {
			b.Errorf("the figure at %s is %s, and not on the page of its events", position, figure)
		}
		b.shows(page, `id="position">`+position+"<")
		for _, row := range cells(page) {
			amount, ok := new(big.Int).SetString(row[6], 10)
			if !ok || sum.Add(sum, amount).String() != row[7] {
				b.Errorf("the amount %s gives the running sum %s instead of %s", row[6], row[7], sum)
			}
		}
		if at = b.next(page); at == "" && sum.String() != figure {
			b.Errorf("the events add up to %s, the figure at %s is %s", sum, position, figure)
		}
	}
}

// next is the address of the next page of a list; "" on the last.
func (b *browser) next(page answer) string {
	if next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindSubmatch(page.body); next != nil {
		return html.UnescapeString(string(next[1]))
	}
	return ""
}

// Two moments are compared with exact differences, and figures of the past stay as they were known.
func TestConsole_FiguresOfTwoMomentsAreCompared(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(a.reader)
	first := w.accept(a, storage("one", 5))[0]
	w.fold()
	w.ingest(a, batch(storage("two", 1<<53-1), storage("three", 2), event("four", nil)))
	w.fold()
	now := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: a.reader})["asOfPosition"].(string)
	page := b.open("/console/usage?asOfPosition=" + first + "&asOfPosition2=" + now)
	b.shows(page, "&#43;"+huge, "9007199254740998")
	var compared []string
	for _, row := range cells(page) {
		if len(row) == 6 && row[0] != "" {
			compared = append(compared, strings.Join(append(row[:1:1], row[3:]...), " "))
		}
	}
	if want := []string{"storage 5 9007199254740998 +" + huge, "api_calls 0 1 +1"}; fmt.Sprint(compared[:2]) != fmt.Sprint(want) {
		t.Errorf("%q instead of %q", compared, want)
	}
	back := b.open("/console/usage?asOfPosition=" + now + "&asOfPosition2=" + first)
	b.shows(back, "-"+huge)
	at := url.QueryEscape(time.Now().UTC().Format(time.RFC3339Nano))
	b.shows(b.open("/console/usage?asOf="+at), "9007199254740998")
}

// Bad input is refused on the page, which shows its form again.
func TestConsole_UsageRefusesBadInput(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(bootstrap)
	of := "tenantId=" + a.id
	for path, code := range map[string]string{
		"usage?" + of + "&asOfPosition=999-1": "position_invalid", "usage?" + of + "&asOf2=yesterday": "parameter_invalid",
		"usage?" + of + "&asOf=2026-05-01T00:00:00Z&asOfPosition=1-1": "parameter_invalid", "usage?" + of + "&" + of: "duplicate_parameter",
		"usage?" + of + "&feature=api_calls&seriesCursor=forged": "cursor_invalid", "usage?" + of + "&feature=api_calls&granularity=minute": "parameter_invalid",
		"usage?" + of + "&feature=" + strings.Repeat("x", 5000): "parameter_invalid", "usage/explain?" + of + "&feature=api_calls&period=May": "parameter_invalid",
		"usage/conflicts?" + of + "&cursor=no": "cursor_invalid", "usage/events/unknown": "parameter_missing", "usage/series.csv?" + of: "parameter_missing",
		"usage/figures.csv?" + of + "&asOfPosition=1": "position_invalid", "usage/figures.csv?" + of + "&limit=1": "unknown_parameter",
	} {
		b.refuses("/console/"+path, 400, code)
	}
	b.refuses("/console/usage?tenantId=no", 404, "tenant_not_found")
	b.refuses("/console/usage/events/unknown?"+of, 404, "not_found")
}

// Files are those of the API, and a cell that a spreadsheet would execute is quoted.
func TestConsole_FilesOfUsageQuoteFormulas(t *testing.T) {
	w, a := newServiceWithAccount(t)
	var list []any
	for i, text := range []string{"=1+1", "+1", "-1", "@x", `=HYPERLINK("x,y")`, "plain", "a=b", ""} {
		list = append(list, event(fmt.Sprint(i), map[string]any{"metadata": map[string]any{"region": text, "model": "=m"}}))
	}
	w.ingest(a, batch(append(list, storage("s1", 1<<53-1), storage("s2", 2))...))
	w.fold()
	for _, b := range []*browser{w.signIn(bootstrap), w.signIn(a.reader)} {
		usage := b.open("/console/usage?tenantId=" + a.id + "&feature=api_calls&groupBy=region&groupBy2=metadata.model")
		file := b.open(b.link(usage, "/console/usage/series.csv?"))
		if file.status != nethttp.StatusOK || file.header.Get("Content-Type") != "text/csv; charset=utf-8" || file.header.Get("Content-Disposition") != `attachment; filename="series.csv"` || file.header.Get("Content-Security-Policy") == "" {
			t.Fatalf("%d %v", file.status, file.header)
		}
		got := map[string]bool{}
		for _, row := range rowsOf(t, file.body)[1:] {
			got[row[4]] = true
			if row[5] != "'=m" {
				t.Errorf("the model %q", row[5])
			}
		}
		for _, want := range []string{"'=1+1", "'+1", "-1", "'@x", `'=HYPERLINK("x,y")`, "plain", "a=b", ""} {
			if !got[want] {
				t.Errorf("no cell %q in\n%s", want, file.body)
			}
		}
		figures := b.open(b.link(usage, "/console/usage/figures.csv?"))
		api := w.do(call{method: "GET", path: "/api/v1/usage/aggregates?feature=api_calls&format=csv&tenantId=" + a.id, key: bootstrap})
		if string(figures.body) != string(api.body) {
			t.Errorf("the file\n%s\ndiffers from the API's\n%s", figures.body, api.body)
		}
		if all := b.open("/console/usage/figures.csv?tenantId=" + a.id); !strings.Contains(string(all.body), ","+huge+",2,") {
			t.Errorf("the file lacks %s:\n%s", huge, all.body)
		}
	}
}

// A tenant's key opens the pages of usage and events of its own tenant. Another tenant, and its events, are absent.
func TestP9_ConsolePagesOfUsageAndEventsAreATenantsOwn(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("B")
	w.ingest(a, batch(event("secret-of-A", nil)))
	w.ingest(a, batch(event("secret-of-A", map[string]any{"amount": 2})))
	w.fold()
	logged := w.firstOf(a)
	position := w.want(200, call{method: "GET", path: "/api/v1/events/" + logged, key: bootstrap})["position"].(string)
	own, b := w.signIn(a.key), w.signIn(other.key)
	for _, path := range []string{"/usage?", "/usage?feature=api_calls&", "/usage/explain?feature=api_calls&period=2026&", "/usage/events?", "/usage/events/secret-of-A?", "/usage/conflicts?",
		"/usage/figures.csv?", "/usage/series.csv?feature=api_calls&", "/events?", "/events/stream?", "/events/export.ndjson?", "/events/" + logged + "?", "/events/" + logged + "/lineage?", "/search?q=secret-of-A&"} {
		b.refuses("/console"+path+"tenantId="+a.id, 404, "not_found")
	}
	for _, path := range []string{"/usage/events/secret-of-A", "/events/" + logged, "/events/" + position, "/events/" + logged + "/lineage"} {
		b.refuses("/console"+path, 404, "not_found")
	}
	for _, path := range []string{"/usage", "/usage/events", "/usage/conflicts", "/events", "/events/export.ndjson", "/usage/figures.csv", "/search?q=secret-of-A", "/search?q=" + logged, "/search?q=" + position, "/search?q=" + a.id} {
		own.open("/console" + path) // the same page of the tenant itself changes no answer
		page := b.open("/console" + path)
		if page.status != 200 || strings.Contains(strings.ReplaceAll(string(page.body), html.EscapeString(path[strings.Index(path, "=")+1:]), ""), "secret-of-A") ||
			strings.Contains(string(page.body), a.id) && !strings.Contains(path, a.id) {
			t.Errorf("%s gives %d:\n%s", path, page.status, page.body)
		}
	}
	own.shows(own.open("/console/events"), "secret-of-A")
	if page := w.signIn(a.reader).open("/console/events"); page.status != 404 {
		t.Errorf("a key without events:read gets %d", page.status)
	}
}
