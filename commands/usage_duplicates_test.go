package commands

import (
	"context"
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// duplicatesStore is a store that only appends.
type duplicatesStore struct{ *memory }

func (s *duplicatesStore) Change(_ context.Context, _ uuid.UUID, decide func(Tx) error) error {
	return s.run(func() error { return decide(s.memory) })
}

func TestDuplicatesAreRecordedOnceForEachTenant(t *testing.T) {
	s := &duplicatesStore{memory: newMemory()}
	d := &DuplicatesSeen{Store: s, Now: clock, NewID: s.newID, Logger: slog.New(slog.DiscardHandler)}
	d.flush(t.Context())
	if len(s.appended) > 0 {
		t.Errorf("appended %+v", s.appended)
	}
	d.Seen(activeTenant, 2)
	d.Seen(suspendedTenant, 1)
	d.Seen(activeTenant, 3)
	d.flush(t.Context())
	d.flush(t.Context()) // nothing is left
	if len(s.appended) != 2 {
		t.Fatalf("appended %+v", s.appended)
	}
	for i := range s.appended {
		p := &s.appended[i]
		count := map[uuid.UUID]int64{activeTenant: 5, suspendedTenant: 1}[p.TenantID]
		caused{
			subject:   events.DuplicatesSeen,
			tenant:    p.TenantID,
			residency: s.tenants[p.TenantID].DataResidency,
			key:       events.KeyEvent(p.EventID),
			actor:     events.Actor{Type: "system", ID: "ingest"},
		}.check(
			t,
			p,
		)
		if got := payload[events.Duplicates](t, p); got.Count != count || !got.From.Equal(noon) {
			t.Errorf("recorded %+v", got)
		}
	}
}
