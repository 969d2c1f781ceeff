// Package overview shows the live state of an installation, as one instance sees it: the state of the database as the instance last read it
// (projections/state), its own counters, and 15 minutes of both. It reads no database: Live samples the state each second. Any number
// of viewers costs one sample and one encoding a second.
package overview

import (
	"time"

	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/state"
)

// Overview is the state of an installation and of the instance that answers.
type Overview struct {
	At           time.Time    `json:"at" doc:"Time of the sample."`
	Instance     Instance     `json:"instance" doc:"Counters of the instance that answers; each instance has its own."`
	Installation Installation `json:"installation" doc:"State of the database, which all instances share, as this instance last read it."`
	Attention    []Attention  `json:"attention" nullable:"false" doc:"Items of the installation that need an operator."`
	History      *History     `json:"history,omitempty" doc:"The last 15 minutes, or since the start: in the first event of a stream, and on request."`
}

// Instance holds figures of one instance since it started.
type Instance struct {
	ID        string      `json:"id" doc:"The instance that answers." example:"host-4711-a1b2c3"`
	StartedAt time.Time   `json:"startedAt" doc:"When the instance started."`
	PerSecond Rates       `json:"perSecond" doc:"Results of usage events that this instance answered in the last second."`
	Freshness []Freshness `json:"freshness" nullable:"false" doc:"Of the consumers that processed events on this instance in the last minute."`
}

// Rates are verdicts per second.
type Rates struct {
	Accepted   float64 `json:"accepted" doc:"Events accepted per second." example:"950.3"`
	Duplicates float64 `json:"duplicates" doc:"Events per second that were recorded before." example:"1.2"`
	Conflicts  float64 `json:"conflicts" doc:"Events per second whose eventId was first used with another payload." example:"0"`
	Rejected   float64 `json:"rejected" doc:"Events rejected per second." example:"0"`
}

// Freshness is the time from the recording of events to their fold, estimated from the buckets of end_to_end_seconds.
type Freshness struct {
	Consumer   string  `json:"consumer" example:"meterplex-usage-aggregator"`
	Events     int64   `json:"events" doc:"Events that it processed in the last minute." example:"57000"`
	P50Seconds float64 `json:"p50Seconds" doc:"Half of them were processed within this time." example:"0.006"`
	P99Seconds float64 `json:"p99Seconds" doc:"99 of 100 were processed within this time." example:"0.031"`
}

// Installation is the state of the database.
type Installation struct {
	ReadAt    *time.Time        `json:"readAt" doc:"When the instance last read the state; null before its first read."`
	Outbox    Backlog           `json:"outbox"`
	Consumers []state.Consumer  `json:"consumers" nullable:"false" doc:"Each consumer and its lag."`
	Identity  *state.Comparison `json:"identity"`
}

// Backlog is the state of the outbox.
type Backlog struct {
	Recorded      int64   `json:"recorded" doc:"Events in the log." example:"10000000"`
	Unpublished   int64   `json:"unpublished" doc:"Events that were never published." example:"1200"`
	OldestSeconds float64 `json:"oldestSeconds" doc:"Age of the oldest of them; 0 if all were published." example:"3.2"`
}

// installation returns the state as of a time.
func installation(s *state.State, list []projections.Projection, now time.Time) Installation {
	in := Installation{
		Outbox:    Backlog{s.Outbox.Recorded(), s.Outbox.Totals.Unpublished, s.Outbox.Totals.OldestUnpublishedSeconds},
		Consumers: s.Lags.Consumers(list),
	}
	if !s.ReadAt.IsZero() {
		in.ReadAt = &s.ReadAt
	}
	if s.Identity != nil {
		identity := *s.Identity
		identity.AgeSeconds = max(0, now.Sub(identity.ComparedAt).Seconds())
		in.Identity = &identity
	}
	return in
}
