package commands

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// memory is the part of a transaction that every change needs. The fakes of the nouns
// embed it.
type memory struct {
	answers  map[string]Answer
	tenants  map[uuid.UUID]domain.Tenant
	appended []events.Pending

	offboardings map[uuid.UUID]*domain.Offboarding
	held         []uuid.UUID // the tenants whose heads the changes held
	again        bool        // each change is rolled back and decided a second time
	ids          uint64

	versions map[Ref]string

	snapshots []func() (restore func())
}

func (m *memory) Version(of Ref) (string, error) { return m.versions[of], nil }

func newMemory() *memory {
	m := &memory{answers: map[string]Answer{}, tenants: map[uuid.UUID]domain.Tenant{
		activeTenant:    {ID: activeTenant, Name: "Alice", Class: "small", Status: domain.TenantActive, DataResidency: "eu-central-1", LateUsage: events.LateUsageReject},
		suspendedTenant: {ID: suspendedTenant, Name: "Barry", Class: "small", Status: domain.TenantSuspended, DataResidency: "us-east-1", LateUsage: events.LateUsageReject},
	}}
	transacted(m, &m.answers)
	transacted(m, &m.tenants)
	return m
}

func (m *memory) Answer(key string) (*Answer, error) {
	return found(m.answers, key)
}

func (m *memory) SaveAnswer(key string, a Answer) error {
	if _, ok := m.answers[key]; ok {
		return errors.New("the key has an answer")
	}
	m.answers[key] = a
	return nil
}

func (m *memory) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	return found(m.tenants, id)
}

func (m *memory) Offboarding(tenant uuid.UUID) (*domain.Offboarding, error) {
	return m.offboardings[tenant], nil
}

func (m *memory) Append(list ...events.Pending) ([]events.Position, error) {
	positions := make([]events.Position, len(list))
	for i := range list {
		m.appended = append(m.appended, list[i])
		positions[i] = m.at(len(m.appended) - 1)
	}
	return positions, nil
}

// at returns the position of an appended event.
func (m *memory) at(i int) events.Position {
	return events.Position{Partition: events.PartitionOf(m.appended[i].TenantID), Number: int64(i + 1)}
}

// transacted restores a map when a transaction is rolled back.
func transacted[K comparable, V any](m *memory, values *map[K]V) {
	m.snapshots = append(m.snapshots, func() func() {
		before := maps.Clone(*values)
		return func() { *values = before }
	})
}

// run decides in a transaction. After an error it rolls back.
func (m *memory) run(tenant uuid.UUID, decide func() error) error {
	m.held = append(m.held, tenant)
	if m.again {
		m.again = false
		defer func() { m.again = true }()
		_ = m.run(tenant, func() error { return errors.Join(decide(), errors.New("rolled back")) })
	}
	n := len(m.appended)
	var restore []func()
	for _, take := range m.snapshots {
		restore = append(restore, take())
	}
	err := decide()
	if err != nil {
		m.appended = m.appended[:n]
		for _, f := range restore {
			f()
		}
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

var operator = Caller{TenantID: events.Platform, KeyID: uuid.MustParse("01900000-0000-7000-8000-0000000000aa"),
	CorrelationID: uuid.MustParse("01900000-0000-7000-8000-0000000000bb")}

// keyed is the operator's request with an Idempotency-Key.
func keyed(hash byte) Request {
	return Request{By: operator, Idempotency: Idempotency{Key: "k", RequestHash: [32]byte{hash}}}
}

// refusedWith checks the code and the pointer of a refusal.
func refusedWith(t *testing.T, err error, code, pointer string) {
	t.Helper()
	var refusal *domain.Error
	if !errors.As(err, &refusal) || refusal.Code != code || refusal.Pointer != pointer || refusal.Message == "" {
		t.Errorf("%v instead of %s at %q", err, code, pointer)
	}
}

// refused checks a refusal, and that no event was appended.
func (m *memory) refused(t *testing.T, err error, code, pointer string) {
	t.Helper()
	refusedWith(t, err, code, pointer)
	m.succeeded(t, nil, 0)
}

// succeeded checks the number of events and returns the last.
func (m *memory) succeeded(t *testing.T, err error, n int) events.Pending {
	t.Helper()
	if err != nil || len(m.appended) != n {
		t.Fatalf("%d events instead of %d, error %v", len(m.appended), n, err)
	}
	if n == 0 {
		return events.Pending{}
	}
	return m.appended[n-1]
}

// caused holds the fields that an event of a change must have.
type caused struct {
	subject     events.Subject
	tenant      uuid.UUID
	residency   string
	key         string // "": that of the operator's Idempotency-Key
	cause       uuid.UUID
	actor       events.Actor // zero: the operator's key
	counts      events.Counts
	correlation uuid.UUID // Nil: the operator's
}

// check checks an event that a request of the operator caused.
func (c caused) check(t *testing.T, p *events.Pending) {
	t.Helper()
	if c.key == "" {
		c.key = events.KeyCommand(operator.KeyID.String() + "/k")
	}
	if c.actor == (events.Actor{}) {
		c.actor = events.Actor{Type: "api_key", ID: operator.KeyID.String()}
	}
	if c.correlation == uuid.Nil {
		c.correlation = operator.CorrelationID
	}
	c.checkOf(t, p)
}

// checkOf checks an event that no request of the operator caused.
func (c caused) checkOf(t *testing.T, p *events.Pending) {
	t.Helper()
	got := caused{p.Subject, p.TenantID, p.Residency, p.DedupeKey, p.CausationID, p.Actor, p.Counts, p.CorrelationID}
	if got != c {
		t.Errorf("the event is\n%+v instead of\n%+v", got, c)
	}
	if p.EventID == uuid.Nil || !p.OccurredAt.Equal(stored) {
		t.Errorf("the event has the id %s and the time %s", p.EventID, p.OccurredAt)
	}
}

// once checks that a change appends one event, that a repetition returns the same
// answer, and that another request with the same Idempotency-Key is refused.
func (m *memory) once(t *testing.T, want caused, call func(Request) (any, error)) (answer any, event events.Pending) {
	t.Helper()
	m.again = true
	n := len(m.appended)
	answer, err := call(keyed(1))
	event = m.succeeded(t, err, n+1)
	want.check(t, &event)
	repeated, err := call(keyed(1))
	if m.succeeded(t, err, n+1); !reflect.DeepEqual(repeated, answer) {
		t.Errorf("the repetition is answered %+v, the first request %+v", repeated, answer)
	}
	_, err = call(keyed(2))
	refusedWith(t, err, "idempotency_key_reused", "")
	if len(m.appended) != n+1 {
		t.Errorf("a refused request appended %+v", m.appended[n+1:])
	}
	return answer, event
}

// payload decodes the payload of an event.
func payload[T any](t *testing.T, p *events.Pending) (v T) {
	t.Helper()
	if err := json.Unmarshal(p.Payload, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// found returns a value of a table, nil if there is none.
func found[K comparable, V any](table map[K]V, key K) (*V, error) {
	if v, ok := table[key]; ok {
		return &v, nil
	}
	return nil, nil
}

func ptr[T any](v T) *T { return &v }

// names returns n characters.
func names(n int) string { return strings.Repeat("ä", n) }

// unfaked is a transaction of the catalogue without methods: a change that uses a method
// of another noun panics.
type unfaked struct{ CatalogueTx }

// fakeCatalogue is a store whose transactions are tx.
type fakeCatalogue struct {
	*memory
	tx CatalogueTx
}

func (s *fakeCatalogue) ChangeCatalogue(_ context.Context, tenant uuid.UUID, decide func(CatalogueTx) error) error {
	return s.run(tenant, func() error { return decide(s.tx) })
}

func catalogueOf(m *memory, tx CatalogueTx) *Catalogue {
	return &Catalogue{Store: &fakeCatalogue{m, tx}, Now: clock, NewID: m.newID, NewSecret: func() [32]byte { return [32]byte{1, 2, 3} }, Region: "eu-west-1"}
}
