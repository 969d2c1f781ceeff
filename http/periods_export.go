package http

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain/csvtext"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/periods"
)

// exportBody is an export in its wire format. exportJSON writes the same members, without holding the lists in memory.
type exportBody struct {
	periods.Period
	AsOf        *events.Position     `json:"asOfPosition" nullable:"true" doc:"Every event recorded up to here is in net; null if the export holds no live figures: it is the same each time."`
	Lines       []periods.PeriodLine `json:"lines" nullable:"false" doc:"By feature and subscription; none before the figures are frozen."`
	Adjustments []periods.Adjustment `json:"adjustments" nullable:"false" doc:"Those of the snapshot with their states, by position."`
	NextCursor  *string              `json:"nextCursor" doc:"null: an export has one page."`
}

func describePeriodExport(op *huma.Operation, types schemas) {
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	op.Parameters = []*huma.Param{
		{Name: "tenantId", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString, Format: "uuid"}},
		{Name: "periodKey", In: "path", Required: true, Schema: text(), Description: "A month such as 2026-05, a year such as 2026, or lifetime."},
		{Name: "snapshot", In: "query", Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: ptr(0.0), Maximum: ptr(2147483647.0)},
			Description: "An earlier snapshot; 0, the default: that of the last close."},
		{Name: "format", In: "query", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"json", "csv"}}, Description: "The default follows Accept."},
	}
	op.Parameters = append(op.Parameters, freshnessParams()...)
	op.Responses["200"] = &huma.Response{
		Description: "The period with all its lines.",
		Content:     map[string]*huma.MediaType{mediaJSON: {Schema: types.of(exportBody{})}, "text/csv": {Schema: text()}},
	}
}

// exportPeriod streams an export. An error after its begin, also that its key is refused by then, aborts the connection, so that a partial answer never looks complete.
func (s *service) exportPeriod(w http.ResponseWriter, r *http.Request) error {
	x := edge.ExchangeOf(r.Context())
	ctx, cancel := context.WithTimeout(x.From.Context(), csvTime) // without the time limit of a page
	defer cancel()
	asked := r.URL.Query() // the guard has validated it
	path := PeriodRead{PeriodPath{TenantPath{pathValue(r, "tenantId")}, pathValue(r, "periodKey")}, Freshness{asked.Get("minPosition"), r.Header.Get("Prefer")}}
	tenant, err := path.find(r.Context(), s)
	if err != nil {
		return err
	}
	q := periods.PeriodQuery{TenantID: tenant, PeriodKey: path.PeriodKey}
	q.Snapshot, _ = strconv.Atoi(asked.Get("snapshot"))
	if p := x.Stream(edge.PageCost); p != nil {
		return p
	}
	w.Header().Set("Vary", "Accept")
	key := confirmedOf(s.edge, x)
	out := exportWriter{w: w, control: http.NewResponseController(w), form: &exportJSON{}, confirm: func() error { return key.check(ctx) }}
	if wantsCSV(asked.Get("format"), r.Header["Accept"]) {
		out.form = &exportCSV{csv: csvtext.NewWriter(w)}
	}
	err = s.Reads.Periods.Export(ctx, q, &out)
	if err == nil {
		err = out.form.end(w)
	}
	if err != nil && out.begun {
		s.log.WarnContext(ctx, "an export was cut off", "tenant", tenant, "period", path.PeriodKey, "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// exportWriter writes an export in a format, and notices a client that reads no more, and a key that is refused meanwhile.
type exportWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	form    exportForm
	confirm func() error // of the key
	begun   bool
	rows    int
}

// exportForm is a format of an export.
type exportForm interface {
	begin(http.ResponseWriter, *periods.Exported) error
	line(http.ResponseWriter, *periods.PeriodLine) error
	adjustment(http.ResponseWriter, *periods.Adjustment) error
	end(http.ResponseWriter) error
}

// Begin implements periods.ExportWriter.
func (e *exportWriter) Begin(of periods.Exported) error {
	e.begun = true
	e.extend()
	return e.form.begin(e.w, &of)
}

// Line implements periods.ExportWriter.
func (e *exportWriter) Line(l *periods.PeriodLine) error {
	if err := e.row(); err != nil {
		return err
	}
	return e.form.line(e.w, l)
}

// Adjustment implements periods.ExportWriter.
func (e *exportWriter) Adjustment(a *periods.Adjustment) error {
	if err := e.row(); err != nil {
		return err
	}
	return e.form.adjustment(e.w, a)
}

// row runs before each row.
func (e *exportWriter) row() error {
	if e.rows++; e.rows%csvFlush == 0 {
		e.extend()
	}
	return e.confirm()
}

func (e *exportWriter) extend() {
	_ = e.control.SetWriteDeadline(time.Now().Add(streamWrite)) // without write deadlines, the context ends it
}

// exportJSON writes an exportBody.
type exportJSON struct {
	list string // of the element before
}

func (f *exportJSON) begin(w http.ResponseWriter, of *periods.Exported) error {
	members, err := json.Marshal(of.Period)
	if err != nil {
		return err
	}
	asOf, err := json.Marshal(of.AsOf)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaJSON)
	members = append(members[:len(members)-1], `,"asOfPosition":`...)
	_, err = w.Write(append(members, asOf...))
	return err
}

// element writes an element of a list, and the lists that begin before it.
func (f *exportJSON) element(w http.ResponseWriter, list string, element any) error {
	text, err := json.Marshal(element)
	if err != nil {
		return err
	}
	before := ","
	if f.list != list {
		before = f.until(list)
	}
	_, err = w.Write(append([]byte(before), text...))
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

func (f *exportJSON) line(w http.ResponseWriter, l *periods.PeriodLine) error {
	return f.element(w, "lines", l)
}

func (f *exportJSON) adjustment(w http.ResponseWriter, a *periods.Adjustment) error {
	return f.element(w, "adjustments", a)
}

func (f *exportJSON) end(w http.ResponseWriter) error {
	text := ""
	if f.list != "adjustments" {
		text = f.until("adjustments")
	}
	_, err := w.Write([]byte(text + `],"nextCursor":null}`))
	return err
}

// exportCSV writes the lines of a period, each with the members that figuresHash is computed from. Numbers are exact integers, empty if unknown. The
// states of adjustments are sums.
type exportCSV struct {
	csv  csvtext.Writer
	head []string // of each line
}

func (f *exportCSV) begin(w http.ResponseWriter, of *periods.Exported) error {
	w.Header().Set("Content-Type", mediaCSV)
	f.head = []string{of.TenantID.String(), of.PeriodKey, "", "", "", ""}
	if of.FrozenPosition != nil {
		f.head = append(f.head[:2], strconv.Itoa(*of.Snapshot), of.CutPosition.String(), *of.Logic, *of.FiguresHash)
	}
	return f.csv.Write([]string{"tenantId", "periodKey", "snapshot", "cutPosition", "logic", "figuresHash", "feature", "subscriptionId", "frozen", "frozenEventCount",
		"pending", "approved", "waived", "billable", "net", "netEventCount", "unreconciled"})
}

func (f *exportCSV) line(_ http.ResponseWriter, l *periods.PeriodLine) error {
	var net, netCount, unreconciled string
	if l.Net != nil {
		net, netCount, unreconciled = l.Net.String(), strconv.FormatInt(*l.NetEventCount, 10), l.Unreconciled.String()
	}
	return f.csv.Write(append(f.head[:6:6], l.Feature, l.SubscriptionID.String(), l.Frozen.String(), strconv.FormatInt(l.FrozenEventCount, 10),
		l.Pending.String(), l.Approved.String(), l.Waived.String(), l.Billable.String(), net, netCount, unreconciled))
}

func (f *exportCSV) adjustment(http.ResponseWriter, *periods.Adjustment) error { return nil }

func (f *exportCSV) end(http.ResponseWriter) error {
	f.csv.Flush()
	return f.csv.Error()
}
