package console

import (
	"cmp"
	"net/url"
	"strings"
	"time"
)

const (
	usagePath     = Prefix + "/usage"
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

func usagePage() *page {
	return &page{path: usagePath, title: "Usage", menu: "Usage", template: "usage.html", needs: "GET /api/v1/usage", who: either,
		params: []string{"tenantId", "feature", "period", "from", "to", "granularity", "groupBy", "groupBy2", "asOf", "asOfPosition", "asOf2", "asOfPosition2", "cursor", "seriesCursor"},
		cli: []string{
			"meterplex usage aggregates[ --tenant-id {tenantId}][ --feature {feature}][ --period {period}][ --as-of {asOf}][ --as-of-position {asOfPosition}]",
			"meterplex usage aggregates[ --tenant-id {tenantId}][ --feature {feature}][ --period {period}] --as-of-position {asOfPosition2}",
			"meterplex usage aggregates[ --tenant-id {tenantId}][ --feature {feature}][ --period {period}] --as-of {asOf2}",
			"meterplex usage series --feature {feature} --from {from} --to {to} --granularity {granularity}[ --group-by {groupBy}][ --group-by {groupBy2}][ --tenant-id {tenantId}]",
		},
		load: loadUsage,
		files: []*file{
			{path: usagePath + "/figures.csv", name: "figures.csv", params: []string{"tenantId", "feature", "period", "asOf", "asOfPosition"},
				request: func(v *visit) (string, url.Values) {
					return api("usage", "aggregates"), with(v.pick("tenantId", "feature", "period", "asOf", "asOfPosition"), "format", "csv")
				}},
			{path: usagePath + "/series.csv", name: "series.csv", params: []string{"tenantId", "feature", "from", "to", "granularity", "groupBy", "groupBy2"},
				request: func(v *visit) (string, url.Values) {
					return api("usage"), with(v.seriesQuery(), "format", "csv")
				}},
		}}
}

// with adds a parameter to a query.
func with(q url.Values, name, value string) url.Values {
	if value != "" {
		q.Set(name, value)
	}
	return q
}

func loadUsage(v *visit) (doc, error) {
	v.defaultRange()
	figures, err := v.figures()
	if err != nil {
		return nil, err
	}
	data := doc{"figures": figures}
	if v.query.Get("asOf2") != "" || v.query.Get("asOfPosition2") != "" {
		q := v.pick("tenantId", "feature", "period")
		with(with(q, "asOf", v.query.Get("asOf2")), "asOfPosition", v.query.Get("asOfPosition2")).Set("limit", rows)
		second, err := v.main(api("usage", "aggregates"), q)
		if err != nil {
			return nil, err
		}
		data["second"], data["compared"] = second, compared(figures, second)
	}
	if v.query.Get("feature") == "" || v.tenantID() == "" {
		return data, nil
	}
	q := with(v.seriesQuery(), "cursor", v.query.Get("seriesCursor"))
	if q.Set("limit", buckets); q.Has("groupBy") {
		q.Set("limit", groups)
	}
	data["series"], err = v.main(api("usage"), q)
	data["groups"] = groupKeys(v)
	return data, err
}

// figures reads those of the page's tenant, or those of all tenants in a period: this month, if the page names none.
func (v *visit) figures() (doc, error) {
	if v.tenantID() == "" && v.query.Get("period") == "" {
		v.query.Set("period", v.c.Now().UTC().Format("2006-01"))
	}
	q := v.pick("tenantId", "feature", "period", "asOf", "asOfPosition", "cursor")
	q.Set("limit", rows)
	return v.main(api("usage", "aggregates"), q)
}

// defaultRange names the range of a series that the page does not name: the last 24 hours, 30 days or 12 months.
func (v *visit) defaultRange() {
	if v.query.Get("feature") == "" || v.tenantID() == "" {
		return
	}
	granularity := cmp.Or(v.query.Get("granularity"), "day")
	v.query.Set("granularity", granularity)
	now := v.c.Now().UTC()
	if end, err := time.Parse(time.RFC3339, v.query.Get("to")); err == nil {
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
		if v.query.Get(name) == "" {
			v.query.Set(name, at.Format(time.RFC3339))
		}
	}
}

// seriesQuery is the query of the API for the series of the page. A key of metadata is named with or without its prefix.
func (v *visit) seriesQuery() url.Values {
	q := v.pick("tenantId", "feature", "from", "to", "granularity")
	for _, key := range groupKeys(v) {
		q.Add("groupBy", "metadata."+key)
	}
	return q
}

func groupKeys(v *visit) (keys []string) {
	for _, name := range []string{"groupBy", "groupBy2"} {
		if key := strings.TrimPrefix(v.query.Get(name), "metadata."); key != "" {
			v.query.Set(name, key) // as the command line names it
			keys = append(keys, key)
		}
	}
	return keys
}

func explainPage() *page {
	names := []string{"tenantId", "feature", "period", "subscriptionId", "asOf", "asOfPosition", "include", "cursor"}
	return &page{path: explainPath, title: "Events behind a figure", template: "explain.html", needs: "GET /api/v1/usage/aggregates/explain", who: either,
		params: names,
		cli:    []string{"meterplex usage explain --feature {feature} --period {period}[ --subscription-id {subscriptionId}][ --as-of {asOf}][ --as-of-position {asOfPosition}][ --tenant-id {tenantId}]"},
		load: func(v *visit) (doc, error) {
			if v.tenantID() == "" || v.query.Get("feature") == "" || v.query.Get("period") == "" {
				return doc{}, nil
			}
			q := v.pick(names...)
			q.Set("limit", rows)
			d, err := v.main(api("usage", "aggregates", "explain"), q)
			if entries := items(d["data"]); err == nil && len(entries) > 0 {
				last, _ := entries[len(entries)-1].(map[string]any)
				d["sum"] = last["runningTotal"]
			}
			return d, err
		}}
}

func recordsPage() *page {
	names := []string{"tenantId", "feature", "status", "from", "to", "cursor"}
	return &page{path: recordsPath, title: "Usage events", template: "usage_events.html", needs: "GET /api/v1/usage/events", who: either,
		params: names, cli: []string{"meterplex usage list[ --feature {feature}][ --status {status}][ --from {from}][ --to {to}][ --tenant-id {tenantId}]"},
		load: func(v *visit) (doc, error) {
			return v.ofTenant(api("usage", "events"), names)
		}}
}

func conflictsPage() *page {
	names := []string{"tenantId", "cursor"}
	return &page{path: conflictsPath, title: "Conflicts", template: "conflicts.html", needs: "GET /api/v1/usage/conflicts", who: either,
		params: names, cli: []string{"meterplex usage conflicts[ --tenant-id {tenantId}]"},
		load: func(v *visit) (doc, error) {
			return v.ofTenant(api("usage", "conflicts"), names)
		}}
}

func refusalsPage() *page {
	names := []string{"tenantId", "code", "feature", "cursor"}
	return &page{path: refusalsPath, title: "Unbilled usage", menu: "Unbilled usage", template: "refusals.html", needs: "GET /api/v1/usage/refusals", who: either,
		params: names, cli: []string{"meterplex usage refusals[ --code {code}][ --feature {feature}][ --tenant-id {tenantId}]"},
		load: func(v *visit) (doc, error) {
			q := v.pick(names...)
			q.Set("limit", rows)
			return v.main(api("usage", "refusals"), q)
		}}
}

// ofTenant reads a list of one tenant; nothing if the page names no tenant.
func (v *visit) ofTenant(path string, names []string) (doc, error) {
	if v.tenantID() == "" {
		return doc{}, nil
	}
	q := v.pick(names...)
	q.Set("limit", rows)
	return v.main(path, q)
}

func receiptPage() *page {
	return &page{path: receiptPath, title: "Receipt", template: "receipt.html", needs: "GET /api/v1/usage/events/{eventId}", who: either,
		params: []string{"tenantId"}, cli: []string{"meterplex usage receipt[ --tenant-id {tenantId}] {eventId}"},
		load: func(v *visit) (doc, error) {
			d, err := v.get(api("usage", "events", v.param("eventId")), v.pick("tenantId"))
			for _, name := range []string{"conflicts", "retries", "deadLetters", "corrections", "adjustments"} {
				if list := items(d[name]); len(list) > maxEntries {
					d[name], d["more"] = list[:maxEntries], true
				}
			}
			return d, err
		}}
}
