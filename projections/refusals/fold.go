// Package refusals is the projection usage_refusals: usage that ingest refused, counted by tenant, code and feature. The
// refused events themselves are not recorded; the groups hold samples of them.
package refusals

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// V1 is the version of the fold in this file.
const V1 = projections.ProjectionRefusals + "/v1"

// MaxGroups bounds the groups of a tenant, without those of events.OtherFeatures: a client may send any name as a feature.
const MaxGroups = 1000

// Fold folds one event into a batch's state. It is pure.
type Fold func(s *State, e *events.Envelope) error

// Key names a group.
type Key struct {
	Tenant        uuid.UUID
	Code, Feature string
}

// Group counts events of a tenant that were refused for the same code and feature.
type Group struct {
	Partition   int16
	Count       int64
	First, Last time.Time // starts of seconds
	Samples     []events.SeenSample
	changed     bool
}

// State holds the groups that a batch names, and the number of each tenant's groups.
type State struct {
	groups map[Key]*Group
	counts map[uuid.UUID]int
}

var errNoRefusals = errors.New("the event is none of usage.duplicates")

// FoldV1 is the fold usage_refusals/v1: it adds the counts of an event to their groups, and keeps the last samples.
func FoldV1(s *State, e *events.Envelope) error {
	switch e.Subject {
	case events.DuplicatesSeen:
		return nil
	case events.RefusalsSeen:
	default:
		return errNoRefusals
	}
	var seen events.Refusals
	if err := json.Unmarshal(e.Payload, &seen); err != nil {
		return fmt.Errorf("read refusals: %w", err)
	}
	for _, of := range seen.Groups {
		g := s.group(Key{e.TenantID, of.Code, of.Feature}, e.Position.Partition, seen.From)
		g.Count += of.Count
		g.First, g.Last, g.changed = earlier(g.First, seen.From), later(g.Last, seen.From), true
		for _, sample := range seen.Samples {
			if sample.Code == of.Code && sample.Feature == of.Feature {
				g.Samples = append(g.Samples, sample)
			}
		}
		g.Samples = g.Samples[max(len(g.Samples)-events.MaxSeenSamples, 0):]
	}
	return nil
}

// group returns the group of a key, or that of other features once the tenant has MaxGroups.
func (s *State) group(key Key, partition int16, at time.Time) *Group {
	if s.groups[key] == nil && key.Feature != events.OtherFeatures {
		if s.counts[key.Tenant] >= MaxGroups {
			key.Feature = events.OtherFeatures
		} else {
			s.counts[key.Tenant]++
		}
	}
	if s.groups[key] == nil {
		s.groups[key] = &Group{Partition: partition, First: at, Last: at}
	}
	return s.groups[key]
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Handler maintains the groups.
type Handler struct {
	Folds projections.Versions[Fold]
}

// Apply folds the batch over the groups that it names, and writes them back.
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
