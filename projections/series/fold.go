// Package series is the projection usage_series: usage by tenant, feature and hour, grouped by the metadata
// keys that the feature declares. It counts the same verdicts as usage_aggregates.
package series

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// V1 is the version of the fold in this file.
const V1 = projections.ProjectionSeries + "/v1"

// Fold folds one event into a batch's state. It is pure. Amounts are sums; which values of a metadata key have
// groups of their own depends on the order of the log.
type Fold func(s *State, e *events.Envelope) error

// seriesSubjects are the subjects that the folds use.
func seriesSubjects() []events.Subject {
	return []events.Subject{events.UsageValidated, events.Reaggregated, events.PublishFailed, events.AggregationFailed}
}

// FoldV1 is the fold usage_series/v1: a verdict adds to the hour of its usage. A verdict that usage_aggregates
// could not count, for which a later event is the dead letter, is subtracted again; its retry
// is a verdict of its own.
func FoldV1(s *State, e *events.Envelope) error {
	verdict, sign := verdictIn(e)
	if verdict == nil {
		return nil
	}
	v, err := codec.VerdictOf(verdict)
	if err == nil {
		s.Count(e.TenantID, e.Position.Partition, &v, sign)
	}
	if sign < 0 {
		return nil // a verdict that cannot be read was not added either
	}
	return err
}

// verdictIn returns the verdict that an event adds, with 1, or subtracts, with -1; nil if it does neither.
func verdictIn(e *events.Envelope) (verdict *events.Envelope, sign int64) {
	switch e.Subject {
	case events.UsageValidated, events.Reaggregated:
		return e, 1
	case events.PublishFailed, events.AggregationFailed:
		return uncounted(e), -1
	}
	return nil, 0
}

// uncounted returns the verdict that a dead letter is about; nil if it is about another event, or of another
// projection. The relay writes no dead letter of a verdict that the aggregates had counted before.
func uncounted(e *events.Envelope) *events.Envelope {
	if e.Subject == events.AggregationFailed && e.Actor != (events.Actor{Type: "service", ID: events.GroupAggregator}) {
		return nil
	}
	var letter events.Failed
	if json.Unmarshal(e.Payload, &letter) != nil {
		return nil
	}
	for _, subject := range []events.Subject{events.UsageValidated, events.Reaggregated} {
		if info, _ := subject.Info(); info.Name() == letter.SourceSubject {
			return &events.Envelope{Subject: subject, TenantID: e.TenantID, Payload: letter.Payload}
		}
	}
	return nil
}

// Handler maintains the hours. It reads the log itself: a verdict and the dead letter about it must
// arrive in the order in which they were recorded.
type Handler struct {
	Folds projections.Versions[Fold]
}

// Apply folds the batch, and writes each row that it changes once.
func (h *Handler) Apply(ctx context.Context, tx pgx.Tx, in projections.Generation, batch []events.Envelope) (projections.Result, error) {
	fold, err := h.Folds.Of(in.FoldVersion)
	if err != nil {
		return projections.Result{}, err
	}
	s, err := load(ctx, tx, in.Number, batch)
	if err != nil {
		return projections.Result{}, err
	}
	var result projections.Result
	for i := range batch {
		if failure := projections.Try(batch[i], func() error { return fold(s, &batch[i]) }); failure != nil {
			result.Failed = append(result.Failed, *failure)
		}
	}
	return result, s.write(ctx, tx, in.Number)
}
