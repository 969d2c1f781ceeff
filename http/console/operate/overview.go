// Package operate has the pages of the service as a whole: overview, instances, settings, withheld records and sagas.
package operate

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/http/console"
)

const overviewPath = console.Prefix + "/overview"

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		overviewPage(),
		systemPage(),
		settingsPage(),
		withheldPage(),
		sagasPage(),
		sagaPage(),
	}
}

func overviewPage() *console.Page {
	return &console.Page{Path: overviewPath, Title: "Overview", Group: "Operations", Menu: "Overview", Template: "overview.html",
		Needs:  "GET /api/v1/system/overview",
		Params: []string{"figure", "consumer"}, CLI: []string{"meterplex system overview", "meterplex system overview --watch"},
		Load: func(v *console.Visit) (console.Doc, error) {
			d, err := loadOverview(v)
			if err == nil && v.Has("GET /api/v1/usage/aggregates") {
				d["usage"], err = usageOf(v)
			}
			return d, err
		},
		Live: &console.Live{Template: "overview-now", Params: []string{"figure", "consumer"}, Load: loadOverview}}
}

func loadOverview(v *console.Visit) (console.Doc, error) {
	now, err := v.Get(console.API("system", "overview"), url.Values{"history": {"true"}})
	if err != nil {
		return nil, err
	}
	consumers := consumersIn(now)
	return console.Doc{"now": now, "chart": chartOf(now, v.Query.Get("figure"), v.Query.Get("consumer")), "consumers": consumers,
		"slowest": slowestOf(consumers)}, nil
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
func chartOf(now console.Doc, figure, consumer string) chart {
	history := now["history"]
	instance, installation := console.Member(history, "instance"), console.Member(history, "installation")
	c, columns := chart{ID: "chart-rates", Title: "Results per second", Of: "this instance"}, []any{}
	switch figure {
	case "outbox":
		c = chart{ID: "chart-outbox", Title: "Outbox", Of: "installation", Heads: []string{"Never published", "Age of the oldest, s"}}
		columns = []any{console.Member(installation, "unpublished"), console.Member(installation, "oldestSeconds")}
	case "lag":
		c = chart{ID: "chart-lag-" + consumer, Title: "Lag of " + consumer, Of: "installation", Heads: []string{"Positions", "Seconds"}}
		of := ofConsumer(console.Member(installation, "lags"), consumer)
		columns = []any{console.Member(of, "positions"), console.Member(of, "seconds")}
	case "freshness":
		c = chart{ID: "chart-freshness-" + consumer, Title: "Freshness of " + consumer, Of: "this instance",
			Heads: []string{"p50, s", "p99, s"}}
		of := ofConsumer(console.Member(instance, "freshness"), consumer)
		columns = []any{console.Member(of, "p50Seconds"), console.Member(of, "p99Seconds")}
	default:
		c.Heads = []string{"Accepted", "Duplicates", "Conflicts", "Rejected"}
		for _, head := range c.Heads {
			columns = append(columns, console.Member(instance, strings.ToLower(head)))
		}
	}
	c.fill(console.Text(console.Member(history, "from")), columns)
	return c
}

// fill adds a row for each second that a column has.
func (c *chart) fill(from string, columns []any) {
	first, err := time.Parse(time.RFC3339Nano, from)
	if err != nil {
		return
	}
	for i := range len(console.Items(columns[0])) {
		row := chartRow{At: first.Add(time.Duration(i) * time.Second).UTC().Format(time.RFC3339)}
		for _, column := range columns {
			value := ""
			if values := console.Items(column); i < len(values) {
				value = console.Text(values[i])
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
	for _, c := range console.Items(list) {
		if console.Text(console.Member(c, "consumer")) == name {
			return c
		}
	}
	return nil
}

// consumer is a consumer with its lag and its freshness, of which one may be unknown.
type consumer struct {
	Name           string
	Lag, Freshness any
}

// consumersIn lists the consumers of an overview.
func consumersIn(now console.Doc) (all []*consumer) {
	freshness := console.Member(now["instance"], "freshness")
	for _, lag := range console.Items(console.Member(now["installation"], "consumers")) {
		name := console.Text(console.Member(lag, "name"))
		all = append(all, &consumer{name, lag, ofConsumer(freshness, name)})
	}
	for _, of := range console.Items(freshness) {
		name := console.Text(console.Member(of, "consumer"))
		if !slices.ContainsFunc(all, func(c *consumer) bool { return c.Name == name }) {
			all = append(all, &consumer{Name: name, Freshness: of})
		}
	}
	return all
}

// slowestOf returns the consumer whose oldest event waits longest; nil if no lag is known.
func slowestOf(all []*consumer) (slowest *consumer) {
	longest := -1.0
	for _, c := range all {
		if waits, err := strconv.ParseFloat(console.Text(console.Member(c.Lag, "seconds")), 64); err == nil && waits > longest {
			slowest, longest = c, waits
		}
	}
	return slowest
}
