// Package billing has the pages of periods, their adjustments and pushes.
package billing

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/console/tenants"
	"github.com/meterplex/meterplex/http/problem"
)

const (
	periodsPath = tenants.TenantPath + "/periods"
	periodPath  = periodsPath + "/{periodKey}"
)

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		periodsPage(),
		periodPage(),
		adjustmentsPage(),
		decisionPage(),
		pushesPage(),
		pushPage(),
	}
}

func periodsPage() *console.Page {
	return &console.Page{Path: periodsPath, Title: "Periods", Template: "periods.html", Needs: "GET /api/v1/tenants/{tenantId}/periods",
		Params: []string{"cursor"},
		CLI:    []string{"meterplex periods list --tenant {tenantId}"},
		Load: func(v *console.Visit) (console.Doc, error) {
			return v.Get(console.API("tenants", v.Param("tenantId"), "periods"), console.Limited(100, v.Pick("cursor")))
		}}
}

func periodPage() *console.Page {
	return &console.Page{Path: periodPath, Title: "Period", Template: "period.html",
		Needs:  "GET /api/v1/tenants/{tenantId}/periods/{periodKey}",
		Params: []string{"snapshot", "cursor"},
		CLI: []string{"meterplex periods show {periodKey} --tenant {tenantId}[ --snapshot {snapshot}]",
			"meterplex periods charges {periodKey} --tenant {tenantId}[ --snapshot {snapshot}]",
			"meterplex periods adjustments {periodKey} --tenant {tenantId}"},
		Load: loadPeriod, Actions: periodActions(),
		Files: []*console.File{
			{Path: periodPath + "/lines.csv", Name: "period.csv", Params: []string{"snapshot"},
				Request: func(v *console.Visit) (string, url.Values) { return exportOf(v, "csv") }},
			{Path: periodPath + "/period.json", Name: "period.json", Params: []string{"snapshot"},
				Request: func(v *console.Visit) (string, url.Values) { return exportOf(v, "json") }},
		}}
}

func loadPeriod(v *console.Visit) (console.Doc, error) {
	of := console.API("tenants", v.Param("tenantId"), "periods", v.Param("periodKey"))
	period, err := v.Get(of, console.Limited(50, v.Pick("snapshot", "cursor")))
	if err != nil {
		return nil, err
	}
	data, err := v.All(map[string]console.Section{
		"adjustments": {Path: of + "/adjustments", Query: console.Limited(10, nil)},
		"charges":     {Path: of + "/charges", Query: console.Limited(chargesShown, v.Pick("snapshot"))},
	})
	if err != nil {
		return nil, err
	}
	data["pageTitle"] = "Period " + console.Text(period["periodKey"])
	data["period"], data["present"], data["figures"] = period, period, figuresOf(data["charges"].(console.Doc))
	if v.Query.Get("snapshot") != "" || v.Query.Get("cursor") != "" {
		if data["present"], err = v.Do(console.Request{Method: http.MethodGet, Path: of, Query: console.Limited(1, nil)}); err != nil {
			return nil, err
		}
	}
	if saga := console.Text(period["sagaId"]); saga != "" {
		if data["saga"], err = v.Try(console.API("sagas", saga), nil); err != nil {
			return nil, err
		}
	}
	data["snapshots"] = numbersUpTo(console.Text(data["present"].(console.Doc)["snapshot"]))
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

func periodActions() []*console.Action {
	return []*console.Action{
		{Name: "close", Path: periodPath + "/close", Label: "Close the period",
			Does: "POST /api/v1/tenants/{tenantId}/periods/{periodKey}/close", Matches: true,
			Warn: "The figures are frozen at the position of this request: usage of the period that is recorded later is late.",
			Fields: []console.Field{
				{Name: "figures", Label: "Displayed figures", Kind: "displayed"},
				{Name: "early", Label: "Early: the period has not ended"},
				{Name: "despite"},
			},
			Adds: func(v *console.Visit, f console.Form, _ map[string]any) error {
				if f.Get("early") != "" {
					return nil
				}
				return displayedFigures(v, f)
			}},
		{Name: "reopen", Path: periodPath + "/reopen", Label: "Reopen the period",
			Does: "POST /api/v1/tenants/{tenantId}/periods/{periodKey}/reopen", Matches: true,
			Warn: "Its pending adjustments become void: the next snapshot includes their amounts. The present snapshot is kept."},
	}
}

// figuresOf returns a digest of the figures that the page displays of an open period.
func figuresOf(charges console.Doc) string {
	written, _ := console.Indented([]any{charges["data"], charges["totals"]}) // answers never fail
	return console.Digest(written)
}

// displayedFigures refuses to close a period whose figures differ from those that the page displayed. Those of a period that has not ended
// go on changing: an early close freezes them as they are. The entity tag of the period holds the rest of its state.
func displayedFigures(v *console.Visit, f console.Form) error {
	of := console.API("tenants", v.Param("tenantId"), "periods", v.Param("periodKey"))
	period, err := v.Do(console.Request{Method: http.MethodGet, Path: of, Query: console.Limited(1, nil)})
	if err != nil || console.Text(period["state"]) != "OPEN" {
		return err // the API answers a repeat, or refuses
	}
	charges, err := v.Do(console.Request{Method: http.MethodGet, Path: of + "/charges", Query: console.Limited(chargesShown, nil)})
	if err == nil && figuresOf(charges) != f.Get("figures") {
		err = problem.New("state_changed",
			"The figures have changed since the page was displayed, and the period was not closed. The page shows the present ones")
	}
	return err
}

// exportOf is the export of the period that a page shows.
func exportOf(v *console.Visit, format string) (path string, query url.Values) {
	query = v.Pick("snapshot")
	query.Set("format", format)
	return console.API("tenants", v.Param("tenantId"), "periods", v.Param("periodKey"), "export"), query
}
