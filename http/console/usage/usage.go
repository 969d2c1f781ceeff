// Package usage has the pages of usage, its figures and its refusals.
package usage

import (
	"cmp"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/http/console"
)

const (
	usagePath     = console.Prefix + "/usage"
	explainPath   = usagePath + "/explain"
	recordsPath   = usagePath + "/events"
	receiptPath   = recordsPath + "/{eventId}"
	conflictsPath = usagePath + "/conflicts"
	refusalsPath  = usagePath + "/refusals"
)

// Bounds of the lists on a page, so that it has at most 200 KB with ids and metadata of any length.
const (
	rows       = "50"  // of an answer that comes in pages
	maxEntries = 50    // of one that does not
	buckets    = "370" // of a series: a year of days
	groups     = "80"  // of a series by groups
)

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		usagePage(),
		explainPage(),
		recordsPage(),
		conflictsPage(),
		refusalsPage(),
		receiptPage(),
	}
}

func usagePage() *console.Page {
	return &console.Page{Path: usagePath, Title: "Usage", Group: "Usage", Menu: "Usage", Template: "usage.html", Needs: "GET /api/v1/usage",
		Who: console.Either,
		Params: []string{"tenantId", "feature", "period", "from", "to", "granularity", "groupBy", "groupBy2", "asOf", "asOfPosition",
			"asOf2", "asOfPosition2", "cursor", "seriesCursor"},
		CLI: []string{
			"meterplex usage aggregates[ --tenant {tenantId}][ --feature {feature}][ --period {period}][ --as-of {asOf}][ " +
				"--as-of-position {asOfPosition}]",
			"meterplex usage aggregates[ --tenant {tenantId}][ --feature {feature}][ --period {period}] --as-of-position {asOfPosition2}",
			"meterplex usage aggregates[ --tenant {tenantId}][ --feature {feature}][ --period {period}] --as-of {asOf2}",
			"meterplex usage series --feature {feature} --from {from} --to {to} --granularity {granularity}[ --group-by {groupBy}][ " +
				"--group-by {groupBy2}][ --tenant {tenantId}]",
		},
		Load: loadUsage,
		Files: []*console.File{
			{Path: usagePath + "/figures.csv", Name: "figures.csv", Params: []string{"tenantId", "feature", "period", "asOf",
				"asOfPosition"},
				Request: func(v *console.Visit) (string, url.Values) {
					return console.API("usage", "aggregates"), console.With(v.Pick("tenantId", "feature", "period", "asOf", "asOfPosition"),
						"format", "csv")
				}},
			{Path: usagePath + "/series.csv", Name: "series.csv", Params: []string{"tenantId", "feature", "from", "to", "granularity",
				"groupBy", "groupBy2"},
				Request: func(v *console.Visit) (string, url.Values) {
					return console.API("usage"), console.With(seriesQuery(v), "format", "csv")
				}},
		}}
}

func loadUsage(v *console.Visit) (console.Doc, error) {
	defaultRange(v)
	now, err := figures(v)
	if err != nil {
		return nil, err
	}
	data := console.Doc{"figures": now}
	if data["features"], err = features(v); err != nil {
		return nil, err
	}
	if v.Query.Get("asOf2") != "" || v.Query.Get("asOfPosition2") != "" {
		q := v.Pick("tenantId", "feature", "period")
		console.With(console.With(q, "asOf", v.Query.Get("asOf2")), "asOfPosition", v.Query.Get("asOfPosition2")).Set("limit", rows)
		second, err := v.Main(console.API("usage", "aggregates"), q)
		if err != nil {
			return nil, err
		}
		data["second"], data["compared"] = second, compared(now, second)
	}
	feature := cmp.Or(v.Query.Get("feature"), mostUsed(now))
	if feature == "" || v.TenantID() == "" {
		return data, nil
	}
	data["feature"] = feature
	file := console.With(v.Pick("tenantId", "from", "to", "granularity", "groupBy", "groupBy2"), "feature", feature)
	data["seriesFile"] = usagePath + "/series.csv?" + file.Encode()
	q := console.With(console.With(seriesQuery(v), "feature", feature), "cursor", v.Query.Get("seriesCursor"))
	if q.Set("limit", buckets); q.Has("groupBy") {
		q.Set("limit", groups)
	}
	data["series"], err = v.Main(console.API("usage"), q)
	data["groups"] = groupKeys(v)
	return data, err
}

// mostUsed returns the feature with most events in the newest period of a tenant's figures; "" if there are no events.
func mostUsed(figures console.Doc) (feature string) {
	list, most := console.Items(figures["data"]), new(big.Int)
	for _, entry := range list {
		events := console.Integer(console.Member(entry, "eventCount"))
		if console.Member(entry, "periodKey") == console.Member(list[0], "periodKey") && events.Cmp(most) > 0 {
			feature, most = console.Text(console.Member(entry, "feature")), events
		}
	}
	return feature
}

// features lists the features for a picker; no feature if the visitor may not read them, if they are many, or if that of the page is not
// among them.
func features(v *console.Visit) (all []any, err error) {
	list, err := console.Tried(v.Do(console.Request{Method: http.MethodGet, Path: console.API("features"),
		Query: console.Limited(100, nil)}))
	if err != nil || list["nextCursor"] != nil {
		return nil, err
	}
	chosen := v.Query.Get("feature")
	all = console.Items(list["data"])
	if chosen != "" && !slices.ContainsFunc(all, func(f any) bool { return console.Member(f, "lookupKey") == chosen }) {
		return nil, nil
	}
	return all, nil
}

// figures reads those of the page's tenant, or those of all tenants in a period, by default this month.
func figures(v *console.Visit) (console.Doc, error) {
	if v.TenantID() == "" && v.Query.Get("period") == "" {
		v.Query.Set("period", v.Now().UTC().Format("2006-01"))
	}
	q := v.Pick("tenantId", "feature", "period", "asOf", "asOfPosition", "cursor")
	q.Set("limit", rows)
	return v.Main(console.API("usage", "aggregates"), q)
}

// defaultRange names the range of a series that the page does not name: the last 24 hours, 30 days or 12 months.
func defaultRange(v *console.Visit) {
	if v.TenantID() == "" {
		return
	}
	granularity := cmp.Or(v.Query.Get("granularity"), "day")
	v.Query.Set("granularity", granularity)
	now := v.Now().UTC()
	if end, err := time.Parse(time.RFC3339, v.Query.Get("to")); err == nil {
		now = end.Add(-time.Nanosecond)
	}
	var from, to time.Time
	switch granularity {
	case "hour":
		to = now.Truncate(time.Hour).Add(time.Hour)
		from = to.Add(-24 * time.Hour)
	case "month":
		to = time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		from = to.AddDate(-1, 0, 0)
	default:
		to = now.Truncate(24 * time.Hour).Add(24 * time.Hour)
		from = to.AddDate(0, 0, -30)
	}
	for name, at := range map[string]time.Time{"from": from, "to": to} {
		if v.Query.Get(name) == "" {
			v.Query.Set(name, at.Format(time.RFC3339))
		}
	}
}

// seriesQuery is the query of the API for the series of the page. A key of metadata is named with or without its prefix.
func seriesQuery(v *console.Visit) url.Values {
	q := v.Pick("tenantId", "feature", "from", "to", "granularity")
	for _, key := range groupKeys(v) {
		q.Add("groupBy", "metadata."+key)
	}
	return q
}

func groupKeys(v *console.Visit) (keys []string) {
	for _, name := range []string{"groupBy", "groupBy2"} {
		if key := strings.TrimPrefix(v.Query.Get(name), "metadata."); key != "" {
			v.Query.Set(name, key) // as the command line names it
			keys = append(keys, key)
		}
	}
	return keys
}

func explainPage() *console.Page {
	names := []string{"tenantId", "feature", "period", "subscriptionId", "asOf", "asOfPosition", "include", "cursor"}
	return &console.Page{Path: explainPath, Title: "Events of a figure", Template: "explain.html",
		Needs: "GET /api/v1/usage/aggregates/explain", Who: console.Either,
		Params: names,
		CLI: []string{"meterplex usage explain --feature {feature} --period {period}[ --subscription-id {subscriptionId}][ --as-of " +
			"{asOf}][ --as-of-position {asOfPosition}][ --tenant {tenantId}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			if v.TenantID() == "" || v.Query.Get("feature") == "" || v.Query.Get("period") == "" {
				return console.Doc{}, nil
			}
			q := v.Pick(names...)
			q.Set("limit", rows)
			d, err := v.Main(console.API("usage", "aggregates", "explain"), q)
			if entries := console.Items(d["data"]); err == nil && len(entries) > 0 {
				last, _ := entries[len(entries)-1].(map[string]any)
				d["sum"] = last["runningTotal"]
			}
			return d, err
		}}
}

func recordsPage() *console.Page {
	names := []string{"tenantId", "feature", "status", "from", "to", "cursor"}
	return &console.Page{Path: recordsPath, Title: "Usage events", Template: "usage_events.html", Needs: "GET /api/v1/usage/events",
		Who:    console.Either,
		Params: names, CLI: []string{"meterplex usage list[ --feature {feature}][ --status {status}][ --from {from}][ --to {to}][ " +
			"--tenant {tenantId}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			return ofTenant(v, console.API("usage", "events"), names)
		}}
}

func conflictsPage() *console.Page {
	names := []string{"tenantId", "cursor"}
	return &console.Page{Path: conflictsPath, Title: "Conflicts", Template: "conflicts.html", Needs: "GET /api/v1/usage/conflicts",
		Who:    console.Either,
		Params: names, CLI: []string{"meterplex usage conflicts[ --tenant {tenantId}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			return ofTenant(v, console.API("usage", "conflicts"), names)
		}}
}

func refusalsPage() *console.Page {
	names := []string{"tenantId", "code", "feature", "cursor"}
	return &console.Page{Path: refusalsPath, Title: "Unbilled usage", Group: "Usage", Menu: "Unbilled usage", Template: "refusals.html",
		Needs: "GET /api/v1/usage/refusals", Who: console.Either,
		Params: names, CLI: []string{"meterplex usage refusals[ --code {code}][ --feature {feature}][ --tenant {tenantId}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			q := v.Pick(names...)
			q.Set("limit", rows)
			return v.Main(console.API("usage", "refusals"), q)
		}}
}

// ofTenant reads a list of one tenant; the answer is empty if the page names no tenant.
func ofTenant(v *console.Visit, path string, names []string) (console.Doc, error) {
	if v.TenantID() == "" {
		return console.Doc{}, nil
	}
	q := v.Pick(names...)
	q.Set("limit", rows)
	return v.Main(path, q)
}

func receiptPage() *console.Page {
	return &console.Page{Path: receiptPath, Title: "Receipt", Template: "receipt.html", Needs: "GET /api/v1/usage/events/{eventId}",
		Who: console.Either, Find: findUsage,
		Params: []string{"tenantId"}, CLI: []string{"meterplex usage receipt[ --tenant {tenantId}] {eventId}"},
		Load: func(v *console.Visit) (console.Doc, error) {
			d, err := v.Get(console.API("usage", "events", v.Param("eventId")), v.Pick("tenantId"))
			for _, name := range []string{"conflicts", "retries", "deadLetters", "corrections", "adjustments"} {
				if list := console.Items(d[name]); len(list) > maxEntries {
					d[name], d["more"] = list[:maxEntries], true
				}
			}
			return d, err
		}}
}
