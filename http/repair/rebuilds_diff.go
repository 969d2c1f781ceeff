package repair

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// diffBody is a page of a difference in its wire format.
type diffBody struct {
	RebuildID    uuid.UUID             `json:"rebuildId" format:"uuid"`
	ETag         *string               `json:"etag"`
	Projection   string                `json:"projection"`
	Generation   int                   `json:"generation"`
	FoldVersion  string                `json:"foldVersion"`
	Data         []rebuild.DiffRow     `json:"data" nullable:"false"`
	NextCursor   *string               `json:"nextCursor" doc:"null on the last page."`
	AsOf         []events.Position     `json:"asOfPositions" nullable:"false"`
	Largest      []rebuild.DiffRow     `json:"largest,omitempty" nullable:"false"`
	Totals       *rebuild.DiffTotals   `json:"totals" doc:"Of all pages; null if it was not asked for."`
	Conservation *rebuild.Conservation `json:"conservation" doc:"The place of each validated event; null: one feature, or no counts."`
}

func describeDiff(op *huma.Operation, types api.Schemas) {
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	op.Responses["200"] = &huma.Response{
		Description: "The changes of the rebuild.",
		Headers: map[string]*huma.Param{"ETag": {Schema: text(),
			Description: "Tag of the whole difference, as the member etag; absent if that is null."}},
		Content: map[string]*huma.MediaType{api.MediaJSON: {Schema: types.Of(diffBody{})}, "text/csv": {Schema: text()}},
	}
}

type diffRequest struct {
	RebuildPath
	All       string `query:"all" enum:"true,false" doc:"Include equal keys."`
	Totals    string `query:"totals" enum:"true,false" doc:"With totals and conservation; without it the first page has them."`
	Largest   string `query:"largest" enum:"true,false" doc:"With the keys of the greatest differences, of usage_aggregates only; not as CSV."`
	Priced    string `query:"priced" enum:"true,false"`
	TenantID  string `query:"tenantId" format:"uuid"`
	Feature   string `query:"feature"`
	PeriodKey string `query:"periodKey"`
	Format    string `query:"format" enum:"json,csv"`
	api.Paging
}

// query returns the query of a difference, and the list that its cursors belong to.
func (in *diffRequest) query() (q rebuild.DiffQuery, l api.List, err error) {
	q = rebuild.DiffQuery{Feature: in.Feature, PeriodKey: in.PeriodKey, All: in.All == "true", Priced: in.Priced == "true",
		Largest: in.Largest == "true", Limit: in.Limit}
	if q.RebuildID, err = in.id(); err != nil {
		return q, nil, err
	}
	if in.TenantID != "" {
		if q.TenantID, err = api.IDOf(in.TenantID, "tenant_not_found"); err != nil {
			return q, nil, err
		}
	}
	l = api.List{"diff", q.RebuildID.String(), in.TenantID, q.Feature, q.PeriodKey, strconv.FormatBool(q.All)}
	_, q.After, err = l.Open(in.Cursor)
	q.Totals = in.Totals == "true" || in.Totals == "" && q.After == ""
	return q, l, err
}

func (s *handlers) diffRebuild(w http.ResponseWriter, r *http.Request, in *diffRequest) error {
	q, l, err := in.query()
	if err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept")
	if api.WantsCSV(in.Format, r.Header["Accept"]) {
		asked := r.URL.Query()
		if asked.Has("limit") || asked.Has("cursor") || asked.Has("totals") || asked.Has("largest") {
			return problem.New("parameter_invalid",
				"As CSV the whole difference is one answer: leave out limit, cursor, totals and largest")
		}
		return s.diffCSV(w, r, q)
	}
	d, err := s.Reads.Rebuilds.Diff(r.Context(), q)
	if err != nil {
		return err
	}
	page := api.ListedFrom(l, d.Page)
	body, err := json.Marshal(diffBody{d.Rebuild.ID, api.TextOrNull(d.Tag), d.Rebuild.Projection, d.Rebuild.Generation,
		d.Rebuild.FoldVersion,
		page.Data, page.NextCursor, d.AsOf, d.Largest, d.Totals, d.Conservation})
	if err != nil {
		return err
	}
	if d.Tag != "" {
		w.Header().Set("ETag", d.Tag)
	}
	w.Header().Set("Content-Type", api.MediaJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
	return nil
}

// diffCSV streams all rows of a difference.
func (s *handlers) diffCSV(w http.ResponseWriter, r *http.Request, q rebuild.DiffQuery) error {
	x := edge.ExchangeOf(r.Context())
	found, err := s.Reads.Rebuilds.Rebuild(r.Context(), q.RebuildID)
	if err != nil {
		return err
	}
	definition, err := models.Definition(found.Projection)
	if err != nil {
		return err
	}
	if p := x.Stream(edge.PageCost); p != nil {
		return p
	}
	return s.WriteWhole(w, x, func(a *api.WholeAnswer) error {
		if a.Columns = definition.Diff.Columns; q.Priced {
			a.Columns = slices.Concat(a.Columns, pricedColumns())
		}
		return s.Reads.Rebuilds.EachDiff(a.Ctx, q, func(row rebuild.DiffRow) error {
			cells := make([]string, len(a.Columns))
			for i, name := range a.Columns {
				cells[i] = diffCell(&row, name)
			}
			return a.Record(cells)
		})
	})
}

// diffCell formats a member of a row; "" is null.
func diffCell(row *rebuild.DiffRow, name string) string {
	count := func(n *int64) string {
		if n == nil {
			return ""
		}
		return strconv.FormatInt(*n, 10)
	}
	raw := func(v json.RawMessage) string {
		if string(v) == "null" {
			return ""
		}
		return string(v)
	}
	id := func(v *uuid.UUID) string {
		if v == nil {
			return ""
		}
		return v.String()
	}
	switch name {
	case "id":
		return id(row.ID)
	case "tenantId":
		return row.TenantID.String()
	case "feature":
		return row.Feature
	case "periodKey":
		if row.PeriodKey == nil {
			return ""
		}
		return *row.PeriodKey
	case "subscriptionId":
		return id(row.SubscriptionID)
	case "live":
		return raw(row.Live)
	case "rebuilt":
		return raw(row.Rebuilt)
	case "eventCount":
		return count(row.EventCount)
	case "liveEventCount":
		return count(row.LiveEventCount)
	case "closedSnapshot":
		if row.ClosedSnapshot == nil {
			return ""
		}
		return strconv.Itoa(*row.ClosedSnapshot)
	case "adjustment":
		if row.Adjustment == nil {
			return ""
		}
		return row.Adjustment.String()
	case "delta":
		if row.Delta == nil {
			return ""
		}
		return row.Delta.String()
	}
	return chargeCell(row.Charge, name)
}

// pricedColumns are the columns of a priced difference behind those of the projection.
func pricedColumns() []string {
	return []string{"price", "currency", "liveMicroUnits", "rebuiltMicroUnits", "deltaMicroUnits"}
}

// chargeCell formats a member of a charge; "" without a charge.
func chargeCell(c *rebuild.DiffCharge, name string) string {
	switch {
	case c == nil:
		return ""
	case name == "price":
		return c.Price
	case name == "currency":
		return c.Currency
	case name == "liveMicroUnits":
		return c.Live.MicroUnits.String()
	case name == "rebuiltMicroUnits":
		return c.Rebuilt.MicroUnits.String()
	}
	return c.Delta.MicroUnits.String()
}

type diffEventsRequest struct {
	RebuildPath
	api.Paging
	TenantID       string `query:"tenantId" required:"true" format:"uuid"`
	Feature        string `query:"feature" required:"true"`
	PeriodKey      string `query:"periodKey" required:"true" example:"2026-05"`
	SubscriptionID string `query:"subscriptionId" format:"uuid" doc:"All of the key's without it."`
}

type diffEventsAnswer struct {
	Body struct {
		Data         []usage.DiffEvent `json:"data" nullable:"false"`
		NextCursor   *string           `json:"nextCursor" doc:"null on the last page."`
		AsOf         events.Position   `json:"asOfPosition"`
		LiveFold     string            `json:"liveFold" doc:"The version of the logic of the live rows."`
		RebuiltFold  string            `json:"rebuiltFold"`
		EventsFolded int64             `json:"eventsFolded" doc:"Validated events of the tenant that were added up for this."`
		Delta        *json.Number      `json:"delta" nullable:"true" doc:"Of the rows; this and the following members on the first page."`
		Explained    *json.Number      `json:"explained" nullable:"true" doc:"The sum of the events' differences."`
		Unexplained  *json.Number      `json:"unexplained" nullable:"true"`
		LiveDrift    *json.Number      `json:"liveDrift" nullable:"true" doc:"The live row less its value computed from the log again."`
		RebuiltDrift *json.Number      `json:"rebuiltDrift" nullable:"true"`
		Note         string            `json:"note,omitempty"`
	} `nameHint:"DiffEvents"`
}

// driftNote is the note of a difference that no event explains.
const driftNote = "The rows differ from their values computed from the log again: see liveDrift and rebuiltDrift. " +
	"meterplex projections verify shows the extent."

func (s *handlers) diffEvents(ctx context.Context, in *diffEventsRequest) (*diffEventsAnswer, error) {
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	l := api.List{"diff events", in.RebuildID, in.TenantID, in.Feature, in.PeriodKey, in.SubscriptionID}
	if _, q.After, err = l.Open(in.Cursor); err != nil {
		return nil, err
	}
	d, err := s.Reads.Usage.DiffEvents(ctx, q)
	if err != nil {
		return nil, err
	}
	page := api.ListedFrom(l, d.Page)
	answer := &diffEventsAnswer{}
	b := &answer.Body
	b.Data, b.NextCursor, b.AsOf = page.Data, page.NextCursor, d.AsOf
	b.LiveFold, b.RebuiltFold, b.EventsFolded = d.LiveFold, d.RebuiltFold, d.EventsCompare
	b.Delta, b.Explained, b.Unexplained, b.LiveDrift, b.RebuiltDrift = d.Delta, d.Explained, d.Unexplained, d.LiveDrift, d.RebuiltDrift
	if d.Unexplained != nil && *d.Unexplained != "0" {
		b.Note = driftNote
	}
	return answer, nil
}

func (in *diffEventsRequest) query() (q usage.DiffEventsQuery, err error) {
	q = usage.DiffEventsQuery{Feature: in.Feature, PeriodKey: in.PeriodKey, Limit: in.Limit}
	if in.TenantID == "" || in.Feature == "" || in.PeriodKey == "" {
		return q, problem.New("parameter_missing", "Name the key by tenantId, feature and periodKey")
	}
	if q.RebuildID, err = in.id(); err != nil {
		return q, err
	}
	var wrong *domain.Error
	if q.TenantID, err = api.IDOf(in.TenantID, "tenant_not_found"); err != nil {
		return q, err
	}
	if in.SubscriptionID != "" {
		q.SubscriptionID, err = api.IDOf(in.SubscriptionID, "parameter_invalid")
	}
	if errors.As(err, &wrong) && wrong.Code == "parameter_invalid" {
		return q, problem.New("parameter_invalid", "subscriptionId is no id")
	}
	return q, err
}
