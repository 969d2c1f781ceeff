package metering

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// dueTable holds due reservations by tenant; those of a stuck tenant cannot be ended.
type dueTable struct {
	next  *time.Time // when the first reservation that is held is due
	looks int        // calls of Due
	due   []DueReservation
	stuck uuid.UUID
	turns []uuid.UUID // the tenants in the order of their transactions
}

func (d *dueTable) Reservation(context.Context, uuid.UUID, string, string) (*events.ReservationState, error) {
	return nil, nil
}

func (d *dueTable) NextDue(context.Context) (at time.Time, held bool, err error) {
	if d.next == nil {
		return time.Time{}, false, nil
	}
	return *d.next, true, nil
}

func (d *dueTable) Due(_ context.Context, _ time.Time, without []uuid.UUID, limit int) (list []DueReservation, err error) {
	d.looks++
	for _, r := range d.due {
		if len(list) < limit && !slices.Contains(without, r.TenantID) {
			list = append(list, r)
		}
	}
	return list, nil
}

func (d *dueTable) Submit(_ context.Context, tenant uuid.UUID, batch []Submitted) ([]Outcome, error) {
	if tenant == d.stuck {
		return nil, errors.New("the head is locked")
	}
	d.turns = append(d.turns, tenant)
	outcomes := make([]Outcome, len(batch))
	for i := range batch {
		outcomes[i].Status = Appended
		d.due = slices.DeleteFunc(d.due, func(r DueReservation) bool {
			return r.TenantID == tenant && r.ReservationID == batch[i].Quota.ReservationID
		})
	}
	return outcomes, nil
}

func (d *dueTable) Admit(uuid.UUID) error { return nil }

func (d *dueTable) Read(context.Context, int16, int64, int64, int) ([]events.Envelope, error) {
	return nil, nil
}

// The reservations of a tenant that cannot be ended keep no other tenant's waiting, however many are due first.
func TestP9_AStuckTenantDelaysNoOtherExpiry(t *testing.T) {
	stuck, other := uuid.UUID{1}, uuid.UUID{2}
	table := &dueTable{stuck: stuck}
	for i := range 2*expiryBatch + 1 {
		table.due = append(table.due, DueReservation{TenantID: stuck, ReservationID: fmt.Sprint(i)})
	}
	for i := range expiryBatch + 1 {
		table.due = append(table.due, DueReservation{TenantID: other, ReservationID: fmt.Sprint(i)})
	}
	x := &Expiry{Quotas: &Quotas{Log: table, Reservations: table, Now: clock, NewID: newID}, Logger: slog.New(slog.DiscardHandler)}
	if err := x.endDue(t.Context()); err == nil {
		t.Error("no error about the stuck tenant")
	}
	if n := len(table.due); n != 2*expiryBatch+1 || table.due[n-1].TenantID != stuck {
		t.Errorf("%d reservations are still due", n)
	}
}

// A tenant with very many due reservations has one batch, then the other tenants have their turns.
func TestP9_ManyDueReservationsDelayNoOtherExpiry(t *testing.T) {
	many, other := uuid.UUID{1}, uuid.UUID{2}
	table := &dueTable{}
	for i := range 3 * expiryBatch {
		table.due = append(table.due, DueReservation{TenantID: many, ReservationID: fmt.Sprint(i)})
	}
	table.due = append(table.due, DueReservation{TenantID: other, ReservationID: "its only one"})
	x := &Expiry{Quotas: &Quotas{Log: table, Reservations: table, Now: clock, NewID: newID}, Logger: slog.New(slog.DiscardHandler)}
	if err := x.endDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []uuid.UUID{many, other, many, many}; !slices.Equal(table.turns, want) || len(table.due) > 0 {
		t.Errorf("the turns are %v, and %d reservations are still due", table.turns, len(table.due))
	}
}

// A look waits for the first reservation that is due, and otherwise so long that one held meanwhile is not late.
func TestP7_ALookWaitsUntilTheNextReservationIsDue(t *testing.T) {
	at := func(d time.Duration) *time.Time { next := clock().Add(d); return &next }
	for name, c := range map[string]struct {
		next  *time.Time
		wait  time.Duration
		looks int
	}{
		"none is held":      {nil, 750 * time.Millisecond, 0},
		"the next is soon":  {at(3 * time.Millisecond), 3 * time.Millisecond, 0},
		"the next is far":   {at(time.Hour), 750 * time.Millisecond, 0},
		"one is due now":    {at(0), 250 * time.Millisecond, 1},
		"one is long since": {at(-time.Hour), 250 * time.Millisecond, 1},
	} {
		table := &dueTable{next: c.next}
		x := &Expiry{Quotas: &Quotas{Log: table, Reservations: table, Now: clock, NewID: newID}, Logger: slog.New(slog.DiscardHandler)}
		if wait, err := x.look(t.Context(), expiryEvery); err != nil || wait != c.wait || table.looks != c.looks {
			t.Errorf("%s: waits %s after %d looks (%v), want %s after %d", name, wait, table.looks, err, c.wait, c.looks)
		}
	}
}
