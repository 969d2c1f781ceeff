package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/meterplex/meterplex/projections/overview"
)

// Freshness returns the histograms of end_to_end_seconds, one for each consumer.
func (m *Metrics) Freshness() []overview.Distribution {
	list := make([]overview.Distribution, 0, len(m.consumers))
	for _, consumer := range m.consumers {
		list = append(list, distribution(consumer, m.endToEnd.WithLabelValues(consumer)))
	}
	return list
}

func distribution(consumer string, of prom.Observer) overview.Distribution {
	var read dto.Metric
	histogram, _ := of.(prom.Histogram)
	if histogram == nil || histogram.Write(&read) != nil { // neither happens: a histogram of this package has constant labels
		return overview.Distribution{Consumer: consumer, Counts: []uint64{0}}
	}
	d := overview.Distribution{Consumer: consumer}
	for _, b := range read.GetHistogram().GetBucket() {
		d.Bounds, d.Counts = append(d.Bounds, b.GetUpperBound()), append(d.Counts, b.GetCumulativeCount())
	}
	d.Counts = append(d.Counts, read.GetHistogram().GetSampleCount())
	return d
}
