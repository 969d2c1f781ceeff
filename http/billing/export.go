package billing

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/periods"
)

// exportBody is an export in its wire format. exportJSON writes the same members, without holding the lists in memory.
type exportBody struct {
	periods.Period
	AsOf        *events.Position     `json:"asOfPosition" nullable:"true"`
	Lines       []periods.PeriodLine `json:"lines" nullable:"false" doc:"By feature and subscription; empty before the figures are frozen."`
	Adjustments []periods.Adjustment `json:"adjustments" nullable:"false" doc:"Those of the snapshot with their states, by position."`
	NextCursor  *string              `json:"nextCursor" doc:"null: an export has one page."`
}

func describePeriodExport(op *huma.Operation, types api.Schemas) {
	op.Responses["200"] = &huma.Response{
		Description: "The period with all its lines.",
		Content: map[string]*huma.MediaType{api.MediaJSON: {Schema: types.Of(exportBody{})},
			"text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
}

type exportRequest struct {
	PeriodRead
	Snapshot int    `query:"snapshot" minimum:"0" maximum:"2147483647" doc:"An earlier snapshot; 0, the default: that of the last close."`
	Format   string `query:"format" enum:"json,csv" doc:"The default follows Accept."`
}

// exportPeriod streams an export.
func (s *handlers) exportPeriod(w http.ResponseWriter, r *http.Request, in *exportRequest) error {
	tenant, err := in.find(r.Context(), s)
	if err != nil {
		return err
	}
	q := periods.Query{TenantID: tenant, PeriodKey: in.PeriodKey, Snapshot: in.Snapshot}
	x := edge.ExchangeOf(r.Context())
	if p := x.Stream(edge.PageCost); p != nil {
		return p
	}
	w.Header().Set("Vary", "Accept")
	return s.WriteWhole(w, x, func(a *api.WholeAnswer) error {
		if api.WantsCSV(in.Format, r.Header["Accept"]) {
			a.Columns = exportColumns()
			return s.Reads.Periods.Export(a.Ctx, q, &exportCSV{WholeAnswer: a})
		}
		form := &exportJSON{WholeAnswer: a}
		if err := s.Reads.Periods.Export(a.Ctx, q, form); err != nil {
			return err
		}
		return form.end()
	})
}

// exportJSON writes an exportBody.
type exportJSON struct {
	*api.WholeAnswer
	list string // of the element before
}

// Begin implements periods.ExportWriter.
func (f *exportJSON) Begin(of periods.Exported) error {
	members, err := json.Marshal(of.Period)
	if err != nil {
		return err
	}
	asOf, err := json.Marshal(of.AsOf)
	if err != nil {
		return err
	}
	f.BeginAs(api.MediaJSON)
	members = append(members[:len(members)-1], `,"asOfPosition":`...)
	_, err = f.Write(append(members, asOf...))
	return err
}

// element writes an element of a list, and the lists that begin before it.
func (f *exportJSON) element(list string, element any) error {
	if err := f.Row(); err != nil {
		return err
	}
	text, err := json.Marshal(element)
	if err != nil {
		return err
	}
	before := ","
	if f.list != list {
		before = f.until(list)
	}
	_, err = f.Write(append([]byte(before), text...))
	return err
}

// until ends the list before, and begins those up to a list.
func (f *exportJSON) until(list string) (text string) {
	if f.list == "" {
		text, f.list = `,"lines":[`, "lines"
	}
	if f.list == "lines" && list != "lines" {
		text += `],"adjustments":[`
	}
	f.list = list
	return text
}

// Line implements periods.ExportWriter.
func (f *exportJSON) Line(l *periods.PeriodLine) error { return f.element("lines", l) }

// Adjustment implements periods.ExportWriter.
func (f *exportJSON) Adjustment(a *periods.Adjustment) error { return f.element("adjustments", a) }

func (f *exportJSON) end() error {
	text := ""
	if f.list != "adjustments" {
		text = f.until("adjustments")
	}
	_, err := f.Write([]byte(text + `],"nextCursor":null}`))
	return err
}

// exportCSV writes the lines of a period, each with the members that figuresHash is computed from. Numbers are exact integers, empty if
// unknown. The states of adjustments are sums.
type exportCSV struct {
	*api.WholeAnswer
	first []string // cells of each line
}

func exportColumns() []string {
	return []string{"tenantId", "periodKey", "snapshot", "cutPosition", "logic", "figuresHash", "feature", "subscriptionId", "frozen",
		"frozenEventCount",
		"pending", "approved", "waived", "billable", "net", "netEventCount", "unreconciled"}
}

// Begin implements periods.ExportWriter.
func (f *exportCSV) Begin(of periods.Exported) error {
	f.first = []string{of.TenantID.String(), of.PeriodKey, "", "", "", ""}
	if of.FrozenPosition != nil {
		f.first = append(f.first[:2], strconv.Itoa(*of.Snapshot), of.CutPosition.String(), *of.Logic, *of.FiguresHash)
	}
	return nil
}

// Line implements periods.ExportWriter.
func (f *exportCSV) Line(l *periods.PeriodLine) error {
	var net, netCount, unreconciled string
	if l.Net != nil {
		net, netCount, unreconciled = l.Net.String(), strconv.FormatInt(*l.NetEventCount, 10), l.Unreconciled.String()
	}
	return f.Record(append(f.first[:6:6], l.Feature, l.SubscriptionID.String(), l.Frozen.String(),
		strconv.FormatInt(l.FrozenEventCount, 10),
		l.Pending.String(), l.Approved.String(), l.Waived.String(), l.Billable.String(), net, netCount, unreconciled))
}

// Adjustment implements periods.ExportWriter.
func (f *exportCSV) Adjustment(*periods.Adjustment) error { return f.Row() }
