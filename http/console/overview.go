package console

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

const overviewPath = Prefix + "/overview"

func overviewPage() *page {
	return &page{path: overviewPath, title: "Overview", menu: "Overview", template: "overview.html", needs: "GET /api/v1/system/overview",
		params: []string{"figure", "consumer"}, cli: []string{"meterplex system overview", "meterplex system overview --watch"},
		load: loadOverview, live: &live{template: "overview-now"}}
}

func loadOverview(v *visit) (doc, error) {
	now, err := v.get(api("system", "overview"), url.Values{"history": {"true"}})
	if err != nil {
		return nil, err
	}
	return doc{"now": now, "chart": chartOf(now, v.query.Get("figure"), v.query.Get("consumer")), "consumers": consumersIn(now)}, nil
}

// chart is a figure of the last 15 minutes, one row a second.
type chart struct {
	ID, Title, Of string // Of: the installation, or this instance
	Heads         []string
	Rows          []chartRow
}

type chartRow struct {
	At     string
	Values []string
}

// Last are the rows of the last minute, which the script adds to the chart of a page.
func (c chart) Last() []chartRow { return c.Rows[max(0, len(c.Rows)-60):] }

// chartOf returns the chart of a figure: rates, outbox, or the lag or the freshness of a consumer.
func chartOf(now doc, figure, consumer string) chart {
	history := now["history"]
	instance, installation := member(history, "instance"), member(history, "installation")
	c, columns := chart{ID: "chart-rates", Title: "Verdicts per second", Of: "this instance"}, []any{}
	switch figure {
	case "outbox":
		c = chart{ID: "chart-outbox", Title: "Outbox", Of: "installation", Heads: []string{"Never published", "Age of the oldest, s"}}
		columns = []any{member(installation, "unpublished"), member(installation, "oldestSeconds")}
	case "lag":
		c = chart{ID: "chart-lag-" + consumer, Title: "Lag of " + consumer, Of: "installation", Heads: []string{"Positions", "Seconds"}}
		of := ofConsumer(member(installation, "lags"), consumer)
		columns = []any{member(of, "positions"), member(of, "seconds")}
	case "freshness":
		c = chart{ID: "chart-freshness-" + consumer, Title: "Freshness of " + consumer, Of: "this instance", Heads: []string{"p50, s", "p99, s"}}
		of := ofConsumer(member(instance, "freshness"), consumer)
		columns = []any{member(of, "p50Seconds"), member(of, "p99Seconds")}
	default:
		c.Heads = []string{"Accepted", "Duplicates", "Conflicts", "Rejected"}
		for _, head := range c.Heads {
			columns = append(columns, member(instance, strings.ToLower(head)))
		}
	}
	c.fill(text(member(history, "from")), columns)
	return c
}

// fill adds a row for each second that a column has.
func (c *chart) fill(from string, columns []any) {
	first, err := time.Parse(time.RFC3339Nano, from)
	if err != nil {
		return
	}
	for i := range len(items(columns[0])) {
		row := chartRow{At: first.Add(time.Duration(i) * time.Second).UTC().Format(time.RFC3339)}
		for _, column := range columns {
			value := ""
			if values := items(column); i < len(values) {
				value = text(values[i])
			}
			if value == "" { // no sample
				value = "–"
			}
			row.Values = append(row.Values, value)
		}
		c.Rows = append(c.Rows, row)
	}
}

func ofConsumer(list any, name string) any {
	for _, c := range items(list) {
		if text(member(c, "consumer")) == name {
			return c
		}
	}
	return nil
}

// consumersIn lists the consumers of an overview.
func consumersIn(now doc) (names []string) {
	for _, c := range items(member(now["installation"], "consumers")) {
		names = append(names, text(member(c, "name")))
	}
	for _, c := range items(member(member(now["history"], "instance"), "freshness")) {
		if name := text(member(c, "consumer")); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// pageFor returns the function that leads from a path of the API to the page that shows it; "" if no page does.
func pageFor(pages []*page) func(path any) string {
	shownBy := map[string]string{"/outbox": "/system", "/system/identity": "/system", "/projections": "/rebuilds"}
	return func(path any) string {
		u, err := url.Parse(text(path))
		if err != nil {
			return ""
		}
		at, isAPI := strings.CutPrefix(u.EscapedPath(), "/api/v1")
		if !isAPI {
			return ""
		}
		if page, ok := shownBy[at]; ok {
			at = page
		}
		for _, p := range pages {
			if !matches(p.path, Prefix+at) {
				continue
			}
			values := u.Query()
			for name := range values {
				if !slices.Contains(p.params, name) {
					values.Del(name)
				}
			}
			if len(values) == 0 {
				return Prefix + at
			}
			return Prefix + at + "?" + values.Encode()
		}
		return ""
	}
}

// matches reports whether a path is one of a pattern's.
func matches(pattern, path string) bool {
	wanted, has := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(wanted) != len(has) {
		return false
	}
	for i := range wanted {
		if wanted[i] != has[i] && (!strings.HasPrefix(wanted[i], "{") || has[i] == "") {
			return false
		}
	}
	return true
}
