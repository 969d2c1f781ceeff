package overview

import (
	"slices"
	"time"

	"github.com/meterplex/meterplex/projections/state"
)

// HistorySeconds is the length of the history, with one sample a second.
const HistorySeconds = 900

// History holds a value for each second from From to To; null: there is no sample, or no event.
type History struct {
	From         time.Time           `json:"from" doc:"Second of the first value."`
	To           time.Time           `json:"to" doc:"Second of the last value."`
	Instance     InstanceHistory     `json:"instance" doc:"Of the instance that answers."`
	Installation InstallationHistory `json:"installation" doc:"Of the installation, as the instance read it for its metrics."`
}

// InstanceHistory holds the figures of one instance.
type InstanceHistory struct {
	Accepted   []*float64         `json:"accepted" nullable:"false" doc:"Events accepted per second."`
	Duplicates []*float64         `json:"duplicates" nullable:"false" doc:"Events per second that were recorded before."`
	Conflicts  []*float64         `json:"conflicts" nullable:"false"`
	Rejected   []*float64         `json:"rejected" nullable:"false" doc:"Events rejected per second."`
	Freshness  []FreshnessHistory `json:"freshness" nullable:"false" doc:"Of the consumers that processed events on this instance."`
}

// FreshnessHistory holds the freshness of a consumer in each second.
type FreshnessHistory struct {
	Consumer   string     `json:"consumer" example:"meterplex-usage-aggregator"`
	P50Seconds []*float64 `json:"p50Seconds" nullable:"false" doc:"Half of the events of the second were processed within this time."`
	P99Seconds []*float64 `json:"p99Seconds" nullable:"false" doc:"99 of 100 events of the second were processed within this time."`
}

// InstallationHistory holds the figures of the installation.
type InstallationHistory struct {
	Unpublished   []*int64     `json:"unpublished" nullable:"false" doc:"Events that were never published."`
	OldestSeconds []*float64   `json:"oldestSeconds" nullable:"false" doc:"Age of the oldest of them."`
	Lags          []LagHistory `json:"lags" nullable:"false" doc:"Of each consumer."`
}

// LagHistory holds the lag of a consumer.
type LagHistory struct {
	Consumer  string     `json:"consumer" example:"meterplex-usage-aggregator"`
	Positions []*int64   `json:"positions" nullable:"false" doc:"Positions between the consumer and the last event of its topic."`
	Seconds   []*float64 `json:"seconds" nullable:"false" doc:"Age of the oldest event that it has not processed."`
}

// sample holds the figures of one second.
type sample struct {
	second    int64 // of the epoch
	rates     Rates
	freshness []Freshness // of the consumers with events
	read      bool        // the state has been read
	outbox    Backlog
	lags      []state.Consumer
}

// ring holds the samples of the last seconds, each at its second modulo the length: a second without a sample is a
// gap, and never shows an older one.
type ring [HistorySeconds]sample

func (r *ring) add(s sample) { r[s.second%HistorySeconds] = s }

// first returns the second of the oldest sample up to a second.
func (r *ring) first(last int64) int64 {
	for second := last - HistorySeconds + 1; second < last; second++ {
		if r[second%HistorySeconds].second == second {
			return second
		}
	}
	return last
}

// history returns the values of the seconds up to one.
func (r *ring) history(last int64) *History {
	first := r.first(last)
	n := int(last-first) + 1
	h := &History{From: time.Unix(first, 0).UTC(), To: time.Unix(last, 0).UTC()}
	in, of := &h.Instance, &h.Installation
	for _, column := range []*[]*float64{&in.Accepted, &in.Duplicates, &in.Conflicts, &in.Rejected, &of.OldestSeconds} {
		*column = make([]*float64, n)
	}
	of.Unpublished, of.Lags, in.Freshness = make([]*int64, n), []LagHistory{}, []FreshnessHistory{}
	for i := range n {
		s := r[(first+int64(i))%HistorySeconds] // a copy: the ring changes while the history is read
		if s.second != first+int64(i) {
			continue
		}
		in.Accepted[i], in.Duplicates[i], in.Conflicts[i], in.Rejected[i] = &s.rates.Accepted, &s.rates.Duplicates, &s.rates.Conflicts,
			&s.rates.Rejected
		for n := range s.freshness {
			in.addFreshness(i, &s.freshness[n])
		}
		if !s.read {
			continue
		}
		of.Unpublished[i], of.OldestSeconds[i] = &s.outbox.Unpublished, &s.outbox.OldestSeconds
		for n := range s.lags {
			of.addLag(i, &s.lags[n])
		}
	}
	return h
}

func (h *InstanceHistory) addFreshness(i int, f *Freshness) {
	at := slices.IndexFunc(h.Freshness, func(c FreshnessHistory) bool { return c.Consumer == f.Consumer })
	if at < 0 {
		at = len(h.Freshness)
		h.Freshness = append(h.Freshness, FreshnessHistory{f.Consumer, make([]*float64, len(h.Accepted)),
			make([]*float64, len(h.Accepted))})
	}
	h.Freshness[at].P50Seconds[i], h.Freshness[at].P99Seconds[i] = &f.P50Seconds, &f.P99Seconds
}

func (h *InstallationHistory) addLag(i int, c *state.Consumer) {
	at := slices.IndexFunc(h.Lags, func(l LagHistory) bool { return l.Consumer == c.Name })
	if at < 0 {
		at = len(h.Lags)
		h.Lags = append(h.Lags, LagHistory{c.Name, make([]*int64, len(h.Unpublished)), make([]*float64, len(h.Unpublished))})
	}
	h.Lags[at].Positions[i], h.Lags[at].Seconds[i] = &c.Positions, &c.Seconds
}
