package metering

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
)

// duplicatesStore is a store that only appends.
type duplicatesStore struct{ *memory }

func (s *duplicatesStore) Change(_ context.Context, _ uuid.UUID, decide func(commands.Tx) error) error {
	return s.run(func() error { return decide(s.memory) })
}

// one counts a batch of one event.
func (s *UsageSeen) one(by commands.Caller, status, code, feature string) {
	item := intake.BatchItem{EventID: "e", Sent: &intake.SentItem{Feature: feature, Payload: "{}"}}
	s.Seen(&by, []intake.BatchItem{item}, []EventVerdict{{EventID: "e", Status: status, Code: code}}, true)
}

func TestUnrecordedUsageIsOneEventOfEachKindForATenant(t *testing.T) {
	s := &duplicatesStore{memory: newMemory()}
	d := &UsageSeen{Store: s, Now: clock, NewID: s.newID, Logger: slog.New(slog.DiscardHandler)}
	key := uuid.UUID{15: 7}
	d.flush(t.Context())
	if len(s.appended) > 0 {
		t.Errorf("appended %+v", s.appended)
	}
	for range 12 {
		d.one(commands.Caller{TenantID: activeTenant, KeyID: key}, StatusDuplicate, "", "")
	}
	d.one(commands.Caller{TenantID: suspendedTenant}, StatusDuplicate, "", "")
	for n := range events.MaxRefusalGroups + 3 { // as a hostile client sends them
		d.one(commands.Caller{TenantID: activeTenant, KeyID: key}, StatusRejected, "feature_not_found", fmt.Sprintf("f%02d", n))
	}
	d.one(commands.Caller{TenantID: activeTenant, KeyID: key}, StatusConflict, "payload_conflict", "f") // is a record of its own
	d.flush(t.Context())
	d.flush(t.Context()) // nothing is left
	if len(s.appended) != 3 {
		t.Fatalf("appended %+v", s.appended)
	}
	for i := range s.appended {
		p := &s.appended[i]
		if p.Subject == events.RefusalsSeen {
			continue
		}
		count := map[uuid.UUID]int64{activeTenant: 12, suspendedTenant: 1}[p.TenantID]
		caused{subject: events.DuplicatesSeen, tenant: p.TenantID, residency: s.tenants[p.TenantID].DataResidency,
			key:   events.KeyEvent(p.EventID),
			actor: events.Actor{Type: "system", ID: "ingest"}}.check(t, p)
		if got := payload[events.Duplicates](t, p); got.Count != count || !got.From.Equal(noon) ||
			len(got.Samples) != int(min(count, events.MaxSeenSamples)) ||
			got.Samples[0].EventID != "e" || (got.Samples[0].KeyID == nil) != (p.TenantID == suspendedTenant) {
			t.Errorf("recorded %+v", got)
		}
	}
	for i := range s.appended {
		p := &s.appended[i]
		if p.Subject != events.RefusalsSeen {
			continue
		}
		got := payload[events.Refusals](t, p)
		other := got.Groups[0]
		want := events.RefusalGroup{Code: "feature_not_found", Feature: events.OtherFeatures, Count: 3}
		if got.Count != events.MaxRefusalGroups+3 || len(got.Groups) != events.MaxRefusalGroups+1 || other != want ||
			len(got.Samples) != events.MaxSeenSamples ||
			got.Samples[0].Feature != "f00" || *got.Samples[0].KeyID != key || got.Samples[0].Payload != "{}" {
			t.Errorf("recorded %+v", got)
		}
	}
}
