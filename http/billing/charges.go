package billing

import (
	"context"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/projections/periods"
)

// chargesBody is a page of charges in its wire format.
type chargesBody struct {
	periods.Period
	Basis      string                `json:"basis" enum:"billable,net"`
	Data       []periods.Charge      `json:"data" nullable:"false" doc:"By feature and subscription."`
	Totals     []periods.ChargeTotal `json:"totals" nullable:"false" doc:"Of all pages, by currency."`
	Unpriced   int                   `json:"unpriced" doc:"Lines of all pages that have no price."`
	AsOf       events.Position       `json:"asOfPosition" doc:"Every event recorded up to here is in net."`
	NextCursor *string               `json:"nextCursor" doc:"null on the last page."`
}

func (s *handlers) chargePeriod(ctx context.Context, in *periodRequest) (*api.Answer[chargesBody], error) {
	l := api.List{"charges of a period", in.TenantID, in.PeriodKey}
	snapshot, after, err := l.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	q := periods.ChargesQuery{Query: periods.Query{TenantID: tenant, PeriodKey: in.PeriodKey, Snapshot: in.Snapshot,
		Limit: in.Limit, After: after}}
	if in.Cursor != "" { // pages stay with the snapshot, or with the live figures, that they began in
		if in.Snapshot != 0 && in.Snapshot != snapshot {
			return nil, api.CursorInvalid()
		}
		q.Snapshot, q.Live = snapshot, snapshot == 0
	}
	found, err := s.Reads.Periods.Charges(ctx, q)
	if err != nil {
		return nil, err
	}
	b := chargesBody{Period: found.Period, Basis: found.Basis, Data: found.Lines, Totals: found.Totals, Unpriced: found.Unpriced,
		AsOf: found.AsOf}
	if found.Next != "" {
		number := 0
		if found.Basis == periods.BasisBillable {
			number = *found.Snapshot
		}
		b.NextCursor = l.Next(number, found.Next)
	}
	return api.AnswerOf(b, nil)
}
