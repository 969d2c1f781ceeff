package metering

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
)

// UsageSeen counts the usage events that are answered and not recorded: retries of known events, and refused events. It
// writes at most one event of each kind for each tenant and second, so that a storm causes few writes. The
// counts are for monitoring; if the process dies, those of the current second are lost.
type UsageSeen struct {
	Store  commands.Store
	Now    commands.Clock
	NewID  func() uuid.UUID
	Logger *slog.Logger

	mu      sync.Mutex
	tenants map[uuid.UUID]*seenOfTenant
}

// seenOfTenant counts the events of a tenant since the last write.
type seenOfTenant struct {
	duplicates events.Duplicates
	refusals   events.Refusals
	groups     map[events.RefusalGroup]int64 // the counts by keys with Count 0
}

// Seen counts a batch. Refusals are counted only if they are returned: those of messages are events of their own. It never blocks on the
// store.
func (s *UsageSeen) Seen(by *commands.Caller, items []intake.BatchItem, verdicts []EventVerdict, returned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.tenants[by.TenantID]
	if of == nil {
		of = &seenOfTenant{groups: map[events.RefusalGroup]int64{}}
		if s.tenants == nil {
			s.tenants = map[uuid.UUID]*seenOfTenant{}
		}
		s.tenants[by.TenantID] = of
	}
	for i := range verdicts {
		switch v := &verdicts[i]; {
		case v.Status == StatusDuplicate:
			of.duplicates.Count++
			addSample(&of.duplicates.Samples, by, v, func(*events.SeenSample) {})
		case v.Status == StatusRejected && returned && v.Code != CodeBatchRefused:
			of.refuse(by, &items[i], v)
		}
	}
}

// addSample keeps an event, if there is room. The members that only some samples have are read only then.
func addSample(to *[]events.SeenSample, by *commands.Caller, v *EventVerdict, describe func(*events.SeenSample)) {
	if len(*to) >= events.MaxSeenSamples {
		return
	}
	one := events.SeenSample{EventID: v.EventID}
	if by.KeyID != uuid.Nil {
		one.KeyID = &by.KeyID
	}
	describe(&one)
	*to = append(*to, one)
}

func (of *seenOfTenant) refuse(by *commands.Caller, item *intake.BatchItem, v *EventVerdict) {
	group := events.RefusalGroup{Code: v.Code, Feature: featureOf(item)}
	if _, known := of.groups[group]; !known && len(of.groups) >= events.MaxRefusalGroups {
		group.Feature = events.OtherFeatures
	}
	of.groups[group]++
	of.refusals.Count++
	addSample(&of.refusals.Samples, by, v, func(one *events.SeenSample) {
		one.Code, one.Feature = group.Code, group.Feature
		if item.Event != nil {
			at := item.Event.Timestamp
			one.Timestamp, one.Payload = &at, intake.FirstBytes(item.Event.Payload())
		} else if item.Sent != nil {
			one.Payload = item.Sent.Payload
		}
	})
}

func featureOf(item *intake.BatchItem) string {
	switch {
	case item.Event != nil:
		return item.Event.Feature
	case item.Sent != nil:
		return item.Sent.Feature
	}
	return ""
}

// Run writes the counts each second until ctx ends, and the remaining counts then.
func (s *UsageSeen) Run(ctx context.Context) error {
	_ = loop.Loop{Every: time.Second}.Run(ctx, func(ctx context.Context) error {
		s.flush(ctx)
		return nil
	}) // never fails
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	s.flush(last)
	return nil
}

func (s *UsageSeen) flush(ctx context.Context) {
	s.mu.Lock()
	tenants := s.tenants
	s.tenants = nil
	s.mu.Unlock()
	now := s.Now().UTC().Truncate(time.Microsecond)
	for tenant, of := range tenants {
		err := s.Store.Change(ctx, tenant, func(tx commands.Tx) error { return s.write(tx, tenant, of, now) })
		if err != nil {
			s.Logger.Warn("duplicates and refusals were not recorded", "duplicates", of.duplicates.Count, "refusals", of.refusals.Count,
				"error", err)
		}
	}
}

// write appends the events of a tenant.
func (s *UsageSeen) write(tx commands.Tx, tenant uuid.UUID, of *seenOfTenant, now time.Time) error {
	req := commands.Request{By: commands.Caller{Actor: events.Actor{Type: "system", ID: "ingest"}}}
	second := now.Truncate(time.Second)
	if d := of.duplicates; d.Count > 0 {
		d.From = second
		if _, err := commands.AppendEvent(tx, &req, s.NewID(), now, tenant, events.DuplicatesSeen, d); err != nil {
			return err
		}
	}
	r := of.refusals
	if r.Count == 0 {
		return nil
	}
	r.From = second
	for group, n := range of.groups {
		group.Count = n
		r.Groups = append(r.Groups, group)
	}
	slices.SortFunc(r.Groups, func(a, b events.RefusalGroup) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Feature, b.Feature))
	})
	_, err := commands.AppendEvent(tx, &req, s.NewID(), now, tenant, events.RefusalsSeen, r)
	return err
}
