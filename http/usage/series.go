package usage

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/series"
)

type seriesRequest struct {
	api.OfTenant
	api.Paging
	api.Freshness
	Feature     string   `query:"feature" doc:"The feature; required." example:"api_calls"`
	From        string   `query:"from" format:"date-time" doc:"Start of the first bucket, in UTC; required." example:"2026-05-01T00:00:00Z"`
	To          string   `query:"to" format:"date-time" doc:"End of the last bucket; at most 10,000 buckets after from." example:"2026-06-01T00:00:00Z"`
	Granularity string   `query:"granularity" enum:"hour,day,month" doc:"The length of a bucket: hour, day or month, in UTC; day if absent."`
	GroupBy     []string `query:"groupBy,explode" maxItems:"2" nullable:"false" example:"[\"metadata.region\"]"`
	Format      string   `query:"format" enum:"json,csv" doc:"csv: one answer, without limit and cursor. The default follows Accept."`
}

type seriesAnswer struct {
	Applied string `header:"Preference-Applied"`
	Body    func(huma.Context)
}

// Series is a page of a series in its wire format.
type Series struct {
	Data         []series.Bucket  `json:"data" nullable:"false" doc:"By time, within a bucket by group; null comes last."`
	NextCursor   *string          `json:"nextCursor" doc:"null on the last page."`
	CompleteUpTo *time.Time       `json:"completeUpTo" nullable:"true"`
	AsOf         *events.Position `json:"asOfPosition" nullable:"true" doc:"Every event recorded up to here is in the buckets."`
}

func describeSeries(op *huma.Operation, types api.Schemas) {
	op.Responses["200"] = &huma.Response{
		Description: "The buckets.",
		Content: map[string]*huma.MediaType{
			api.MediaJSON: {Schema: types.Of(Series{})}, "text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
}

func (s *handlers) series(ctx context.Context, in *seriesRequest) (*seriesAnswer, error) {
	viewer, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	asCSV, err := api.RequestsCSV(ctx, in.Format)
	if err != nil {
		return nil, err
	}
	l := append(api.List{"series", tenant.String(), in.Feature, in.From, in.To, string(q.Granularity)}, in.GroupBy...)
	if _, q.After, err = l.Open(in.Cursor); err != nil {
		return nil, err
	}
	if q.Wait, err = in.Wait(); err != nil {
		return nil, err
	}
	q.TenantID, q.Limit = tenant, in.Limit
	answer := &seriesAnswer{Applied: in.Applied()}
	if asCSV {
		answer.Body, err = api.AnswerCSV(ctx, s.Service, s.bucketsAsCSV(viewer, q))
		return answer, err
	}
	found, err := s.Reads.Series.Read(ctx, viewer, q)
	if err != nil {
		return nil, err
	}
	buckets := api.ListedFrom(l, found.Page)
	answer.Body, err = api.AnswerJSON(Series{buckets.Data, buckets.NextCursor, found.CompleteUpTo, found.AsOf})
	return answer, err
}

// bucketsAsCSV has a column for each key of the query, after the figures. An empty cell is null, or an empty text.
func (s *handlers) bucketsAsCSV(viewer query.Viewer, q series.Query) api.CSVList[series.Bucket] {
	columns := []string{"start", "end", "amount", "eventCount"}
	for _, key := range q.GroupBy {
		columns = append(columns, "metadata."+key)
	}
	return api.CSVList[series.Bucket]{
		Columns: columns,
		Read: func(ctx context.Context, limit int, after string) ([]series.Bucket, string, error) {
			q.Limit, q.After = limit, after
			page, err := s.Reads.Series.Read(ctx, viewer, q)
			return page.Data, page.Next, err
		},
		Cells: func(b *series.Bucket) []string {
			cells := []string{b.Start.Format(time.RFC3339), b.End.Format(time.RFC3339), b.Amount.String(),
				strconv.FormatInt(b.EventCount, 10)}
			for _, key := range q.GroupBy {
				cells = append(cells, *cmp.Or(b.Group[key], new("")))
			}
			return cells
		},
	}
}

// query reads the buckets and the groups of a request.
func (in *seriesRequest) query() (series.Query, error) {
	q := series.Query{Feature: in.Feature, Granularity: series.Granularity(cmp.Or(in.Granularity, string(series.Day)))}
	for _, p := range []struct{ name, text string }{{"feature", in.Feature}, {"from", in.From}, {"to", in.To}} {
		if p.text == "" {
			return q, problem.New("parameter_missing", "A series needs "+p.name)
		}
	}
	from, to, err := api.Between{From: in.From, To: in.To}.Read()
	if err != nil {
		return q, err
	}
	q.From, q.To = *from, *to
	for i, t := range []time.Time{q.From, q.To} {
		if start := q.Granularity.Floor(t); !start.Equal(t) {
			return q, problem.New("parameter_invalid", []string{"from", "to"}[i]+" must be the start of a "+string(q.Granularity)+
				" in UTC, e.g. "+start.Format(time.RFC3339))
		}
	}
	if q.Granularity.Buckets(q.From, q.To) > series.MaxBuckets {
		return q, problem.New("parameter_invalid",
			"The range has more than 10,000 buckets; ask for a shorter one, or for a coarser granularity")
	}
	for _, by := range in.GroupBy {
		key, ok := strings.CutPrefix(by, "metadata.")
		if !ok || key == "" {
			return q, problem.New("parameter_invalid", "groupBy must be metadata.<key>, e.g. metadata.region")
		}
		q.GroupBy = append(q.GroupBy, key)
	}
	return q, nil
}
