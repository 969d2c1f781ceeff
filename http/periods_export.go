package http

import (
	"context"
	"math"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/projections/periods"
)

type periodExportRequest struct {
	PeriodPath
	Snapshot int    `query:"snapshot" minimum:"0" maximum:"2147483647" doc:"An earlier snapshot; 0, the default: that of the last close." example:"1"`
	Format   string `query:"format" enum:"json,csv" doc:"The default follows Accept."`
}

type periodExportAnswer struct {
	Body func(huma.Context)
}

func describePeriodExport(op *huma.Operation, types schemas) {
	op.Responses["200"] = &huma.Response{
		Description: "The period with all its lines.",
		Content: map[string]*huma.MediaType{
			mediaJSON: {Schema: types.of(PeriodBody{})}, "text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
}

func (s *service) exportPeriod(ctx context.Context, in *periodExportRequest) (*periodExportAnswer, error) {
	asCSV, err := requestsCSV(ctx, in.Format)
	if err != nil {
		return nil, err
	}
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	// All lines are of one snapshot of the database: those of pages could be of different moments.
	found, err := s.Reads.Periods.Period(ctx, periods.PeriodQuery{TenantID: tenant, PeriodKey: in.PeriodKey, Snapshot: in.Snapshot, Limit: math.MaxInt32})
	if err != nil {
		return nil, err
	}
	answer := &periodExportAnswer{}
	if asCSV {
		answer.Body, err = answerCSV(ctx, s, periodCSV(&found))
	} else {
		answer.Body, err = answerJSON(periodBody(found))
	}
	return answer, err
}

// periodCSV returns the lines of a period, each with the members that figuresHash is computed from. Numbers are exact integers, empty if unknown.
func periodCSV(d *periods.Detail) csvList[periods.PeriodLine] {
	of := []string{d.TenantID.String(), d.PeriodKey}
	var snapshot, cut, logic, hash string
	if d.FrozenPosition != nil {
		snapshot, cut, logic, hash = strconv.Itoa(*d.Snapshot), d.CutPosition.String(), *d.Logic, *d.FiguresHash
	}
	return csvList[periods.PeriodLine]{
		columns: []string{"tenantId", "periodKey", "snapshot", "cutPosition", "logic", "figuresHash", "feature", "subscriptionId", "frozen", "frozenEventCount",
			"pending", "approved", "waived", "billable", "net", "netEventCount", "unreconciled"},
		read: func(context.Context, int, string) ([]periods.PeriodLine, string, error) { return d.Lines, "", nil },
		cells: func(l *periods.PeriodLine) []string {
			var net, netCount, unreconciled string
			if l.Net != nil {
				net, netCount, unreconciled = l.Net.String(), strconv.FormatInt(*l.NetEventCount, 10), l.Unreconciled.String()
			}
			return append(of[:2:2], snapshot, cut, logic, hash, l.Feature, l.SubscriptionID.String(), l.Frozen.String(), strconv.FormatInt(l.FrozenEventCount, 10),
				l.Pending.String(), l.Approved.String(), l.Waived.String(), l.Billable.String(), net, netCount, unreconciled)
		},
	}
}
