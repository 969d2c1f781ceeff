package commands

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// duplicatesStore is a store that only appends.
type duplicatesStore struct {
	*memory
	away bool
}

func (s *duplicatesStore) Change(_ context.Context, tenant uuid.UUID, decide func(Tx) error) error {
	if s.away {
		return errors.New("away")
	}
	return s.run(tenant, func() error { return decide(s.memory) })
}

func TestDuplicatesAreRecordedOnceForEachTenant(t *testing.T) {
	var log bytes.Buffer
	s := &duplicatesStore{memory: newMemory()}
	d := &DuplicatesSeen{Store: s, Now: clock, NewID: s.newID, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	d.flush(t.Context())
	s.succeeded(t, nil, 0)
	d.Seen(activeTenant, 2)
	d.Seen(suspendedTenant, 1)
	d.Seen(activeTenant, 3)
	d.flush(t.Context())
	d.flush(t.Context()) // nothing is left
	s.succeeded(t, nil, 2)
	for i := range s.appended {
		p := &s.appended[i]
		count := map[uuid.UUID]int64{activeTenant: 5, suspendedTenant: 1}[p.TenantID]
		caused{subject: events.DuplicatesSeen, tenant: p.TenantID, residency: s.tenants[p.TenantID].DataResidency, key: events.KeyEvent(p.EventID),
			actor: events.Actor{Type: "system", ID: "ingest"}}.checkOf(t, p)
		if got := payload[events.Duplicates](t, p); got.Count != count || !got.From.Equal(noon) {
			t.Errorf("recorded %+v", got)
		}
	}
	s.away = true
	d.Seen(activeTenant, 7)
	d.flush(t.Context())
	if s.succeeded(t, nil, 2); !strings.Contains(log.String(), "duplicates were not recorded") || !strings.Contains(log.String(), "count=7") {
		t.Errorf("logged %s", log.String())
	}
}
