package series

import (
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// every is the interval of batches. Charts need no fresher data, and the events of a second change few rows.
const every = time.Second

// maxRecords bounds the memory of a batch: the consumer is behind by a second of events each time.
const maxRecords = projections.MaxWithoutFollowUps

func Projection(folds projections.Versions[Fold]) projections.Projection {
	return projections.Projection{
		Name: projections.ProjectionSeries, Consumer: Consumer(folds), Tables: []string{"usage_series", "usage_series_values"},
		Diff: projections.Difference{
			Rows: readSeriesDiff, Totals: readSeriesTotals, Periods: true,
			Columns: []string{"tenantId", "feature", "periodKey", "live", "rebuilt", "delta", "eventCount", "liveEventCount"},
		},
	}
}

// Consumer adds verdicts up by the hour. It reads the log.
func Consumer(folds projections.Versions[Fold]) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupSeries, Role: "projector", Handler: &Handler{Folds: folds}, Subjects: seriesSubjects(), Every: every, Paced: true,
		Hot:        true,
		Projection: projections.ProjectionSeries, Versions: folds.Names(),
		MaxPerPartition: projections.MaxWithoutFollowUps, MaxRecords: maxRecords,
	}
}
