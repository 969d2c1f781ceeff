package metering

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// memory is a transaction that only appends.
type memory struct {
	tenants  map[uuid.UUID]domain.Tenant
	appended []events.Pending
	ids      uint64
}

func newMemory() *memory {
	tenant := func(id uuid.UUID, residency string) domain.Tenant {
		return domain.Tenant{ID: id, Name: "T", Class: "small", Status: domain.TenantActive, Mode: domain.ModeLive,
			DataResidency: residency}
	}
	return &memory{tenants: map[uuid.UUID]domain.Tenant{
		activeTenant: tenant(activeTenant, "eu-central-1"), suspendedTenant: tenant(suspendedTenant, "us-east-1"),
	}}
}

func (m *memory) Answer(string) (*commands.Answer, error) { return nil, nil }

func (m *memory) SaveAnswer(string, commands.Answer) error { return nil }

func (m *memory) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	if t, ok := m.tenants[id]; ok {
		return &t, nil
	}
	return nil, nil
}

func (m *memory) Append(list ...events.Pending) ([]events.Position, error) {
	m.appended = append(m.appended, list...)
	return make([]events.Position, len(list)), nil
}

func (m *memory) Version(commands.Ref) (string, error) { return "", nil }

// run decides in a transaction. After an error it rolls back.
func (m *memory) run(decide func() error) error {
	n := len(m.appended)
	err := decide()
	if err != nil {
		m.appended = m.appended[:n]
	}
	return err
}

// newID returns the numbers 1, 2, 3 and so on.
func (m *memory) newID() (id uuid.UUID) {
	m.ids++
	binary.BigEndian.PutUint64(id[8:], m.ids)
	return id
}

// clock is a time that the log cannot store whole.
func clock() time.Time { return noon.Add(1234567 * time.Nanosecond) }

// stored is clock with the precision of the log.
var stored = noon.Add(1234 * time.Microsecond)

// refusedWith checks the code and the pointer of a refusal.
func refusedWith(t *testing.T, err error, code, pointer string) {
	t.Helper()
	var refusal *domain.Error
	if !errors.As(err, &refusal) || refusal.Code != code || refusal.Pointer != pointer || refusal.Message == "" {
		t.Errorf("%v instead of %s at %q", err, code, pointer)
	}
}

// caused holds the fields that an event of a change must have.
type caused struct {
	subject     events.Subject
	tenant      uuid.UUID
	residency   string
	key         string
	actor       events.Actor
	counts      events.Counts
	correlation uuid.UUID
}

func (c caused) check(t *testing.T, p *events.Pending) {
	t.Helper()
	if got := (caused{p.Subject, p.TenantID, p.Residency, p.DedupeKey, p.Actor, p.Counts, p.CorrelationID}); got != c {
		t.Errorf("the event is\n%+v instead of\n%+v", got, c)
	}
	if p.EventID == uuid.Nil || !p.OccurredAt.Equal(stored) {
		t.Errorf("the event has the id %s and the time %s", p.EventID, p.OccurredAt)
	}
}

// payload decodes the payload of an event.
func payload[T any](t *testing.T, p *events.Pending) (v T) {
	t.Helper()
	if err := json.Unmarshal(p.Payload, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
