package console

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/meterplex/meterplex/http/problem"
)

const (
	periodsPath = tenantPath + "/periods"
	periodPath  = periodsPath + "/{periodKey}"
)

func periodsPage() *page {
	return &page{path: periodsPath, title: "Periods", template: "periods.html", needs: "GET /api/v1/tenants/{tenantId}/periods", params: []string{"cursor"},
		cli: []string{"meterplex periods list --tenant {tenantId}"},
		load: func(v *visit) (doc, error) {
			return v.get(api("tenants", v.param("tenantId"), "periods"), limited(100, v.pick("cursor")))
		}}
}

func periodPage() *page {
	return &page{path: periodPath, title: "Period", template: "period.html", needs: "GET /api/v1/tenants/{tenantId}/periods/{periodKey}",
		params: []string{"snapshot", "cursor"},
		cli: []string{"meterplex periods show {periodKey} --tenant {tenantId}[ --snapshot {snapshot}]", "meterplex periods charges {periodKey} --tenant {tenantId}[ --snapshot {snapshot}]",
			"meterplex periods adjustments {periodKey} --tenant {tenantId}"},
		load: loadPeriod, actions: periodActions(),
		files: []*file{
			{path: periodPath + "/lines.csv", name: "period.csv", params: []string{"snapshot"}, request: func(v *visit) (string, url.Values) { return exportOf(v, "csv") }},
			{path: periodPath + "/period.json", name: "period.json", params: []string{"snapshot"}, request: func(v *visit) (string, url.Values) { return exportOf(v, "json") }},
		}}
}

func loadPeriod(v *visit) (doc, error) {
	of := api("tenants", v.param("tenantId"), "periods", v.param("periodKey"))
	period, err := v.get(of, limited(50, v.pick("snapshot", "cursor")))
	if err != nil {
		return nil, err
	}
	data, err := v.all(map[string]section{
		"adjustments": {of + "/adjustments", limited(10, nil)},
		"charges":     {of + "/charges", limited(chargesShown, v.pick("snapshot"))},
	})
	if err != nil {
		return nil, err
	}
	data["period"], data["present"], data["figures"] = period, period, figuresOf(data["charges"].(doc))
	if v.query.Get("snapshot") != "" || v.query.Get("cursor") != "" {
		if data["present"], err = v.do(request{Method: http.MethodGet, Path: of, Query: limited(1, nil)}); err != nil {
			return nil, err
		}
	}
	if saga := text(period["sagaId"]); saga != "" {
		if data["saga"], err = v.try(api("sagas", saga), nil); err != nil {
			return nil, err
		}
	}
	data["snapshots"] = numbersUpTo(text(data["present"].(doc)["snapshot"]))
	return data, nil
}

// chargesShown bounds the charges of a page.
const chargesShown = 50

// maxSnapshots bounds the links to earlier snapshots.
const maxSnapshots = 20

// numbersUpTo lists the last numbers from 1 to n.
func numbersUpTo(n string) (all []string) {
	last, _ := strconv.Atoi(n)
	for i := max(1, last-maxSnapshots+1); i <= last; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func periodActions() []*action {
	return []*action{
		{name: "close", path: periodPath + "/close", label: "Close the period", does: "POST /api/v1/tenants/{tenantId}/periods/{periodKey}/close", matches: true,
			warn: "The figures are frozen at the position of this request: usage of the period that is recorded later is late.",
			fields: []field{
				{name: "figures", label: "Displayed figures", kind: "displayed"},
				{name: "early", label: "Early: the period has not ended"},
				{name: "despite"},
			},
			adds: func(v *visit, f form, _ map[string]any) error {
				if f.get("early") != "" {
					return nil
				}
				return v.displayedFigures(f)
			}},
		{name: "reopen", path: periodPath + "/reopen", label: "Reopen the period", does: "POST /api/v1/tenants/{tenantId}/periods/{periodKey}/reopen", matches: true,
			warn: "Its pending adjustments become void: the next snapshot counts what they adjust. The present snapshot is kept."},
	}
}

// figuresOf returns a digest of the figures that the page displays of an open period.
func figuresOf(charges doc) string {
	written, _ := indented([]any{charges["data"], charges["totals"]}) // answers never fail
	return digest(written)
}

// displayedFigures refuses to close a period whose figures differ from those that the page displayed. Those of a period that has not ended go on changing: an
// early close freezes them as they are. The entity tag of the period holds the rest of its state.
func (v *visit) displayedFigures(f form) error {
	of := api("tenants", v.param("tenantId"), "periods", v.param("periodKey"))
	period, err := v.do(request{Method: http.MethodGet, Path: of, Query: limited(1, nil)})
	if err != nil || text(period["state"]) != "OPEN" {
		return err // the API answers a repeat, or refuses
	}
	charges, err := v.do(request{Method: http.MethodGet, Path: of + "/charges", Query: limited(chargesShown, nil)})
	if err == nil && figuresOf(charges) != f.get("figures") {
		err = problem.New("state_changed", "The figures have changed since the page was displayed, and nothing was done. The page shows the present ones")
	}
	return err
}

// exportOf is the export of the period that a page shows.
func exportOf(v *visit, format string) (path string, query url.Values) {
	query = v.pick("snapshot")
	query.Set("format", format)
	return api("tenants", v.param("tenantId"), "periods", v.param("periodKey"), "export"), query
}
