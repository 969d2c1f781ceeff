package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// collecting is a log whose submissions wait until one group commits them.
type collecting struct {
	*Log
	subs chan *submission
}

func (c *collecting) Submit(_ context.Context, tenant uuid.UUID, batch []metering.Submitted) ([]metering.Outcome, error) {
	s := &submission{tenant: tenant, batch: batch, outcomes: make([]metering.Outcome, len(batch)), done: make(chan error, 1),
		load: newQueueLoad(time.Hour)}
	c.subs <- s
	err := <-s.done
	return s.outcomes, err
}

// inOneGroup makes requests whose submissions one transaction decides, in this order. Each request submits once.
func inOneGroup(l *Log, now func() time.Time, requests ...func(*metering.Quotas) error) []error {
	c := &collecting{l, make(chan *submission)}
	q := quotasOn(l, now)
	q.Log = c
	errs := make([]error, len(requests))
	var all sync.WaitGroup
	var subs []*submission
	for i, request := range requests {
		all.Go(func() { errs[i] = request(q) })
		subs = append(subs, <-c.subs)
	}
	newWriter(l, false).commit(subs)
	all.Wait()
	return errs
}

func holdOf(tenant uuid.UUID, id string, amount int64, lasts time.Duration) func(*metering.Quotas) error {
	return func(q *metering.Quotas) error {
		_, _, err := q.Hold(context.Background(), callerOf(tenant),
			[]intake.Holding{{ReservationID: id, Feature: "f", Amount: amount, Lasts: lasts}}, func(int) string { return "" })
		return err
	}
}

// stateOf describes a reservation and the held amount of its tenant.
func stateOf(t *testing.T, l *Log, tenant uuid.UUID, id string) (state string) {
	t.Helper()
	rows, err := l.db.Query(t.Context(), `SELECT r.state || ' ' || r.amount || ', held ' || a.held FROM reservations r JOIN quota_accounts a
 USING (tenant_id, feature, period_key) WHERE r.tenant_id = $1 AND r.reservation_id = $2`, tenant, id)
	must.OK(t, err)
	defer rows.Close()
	for rows.Next() {
		must.OK(t, rows.Scan(&state))
	}
	return state
}

// Reservations of two tenants with the same id are decided by one group, each as its own one. So are two of one tenant.
func TestP9_AGroupDecidesTheReservationsOfEachTenant(t *testing.T) {
	a, b := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	l, _ := openLogAt(t, migrated(t), func(c *Config) { c.Histories = &grants{limits: map[uuid.UUID]int64{a: 1000, b: 1000}} })
	for _, hold := range []func(*metering.Quotas) error{holdOf(a, "r", 1, time.Hour), holdOf(b, "r", 20, time.Hour),
		holdOf(a, "s", 300, time.Hour), holdOf(b, "stays", 7, time.Hour)} {
		must.OK(t, hold(quotasOn(l, time.Now)))
	}
	release := func(tenant uuid.UUID, id string, want int64) func(*metering.Quotas) error {
		return func(q *metering.Quotas) error {
			got, err := q.Release(context.Background(), callerOf(tenant), "f", id)
			if err == nil && got.Amount != want {
				err = fmt.Errorf("an amount of %d is released, not %d", got.Amount, want)
			}
			return err
		}
	}
	for i, err := range inOneGroup(l, time.Now, release(a, "r", 1), release(b, "r", 20), release(a, "s", 300)) {
		if err != nil {
			t.Errorf("release %d of the group: %v", i, err)
		}
	}
	for _, c := range []struct {
		tenant   uuid.UUID
		id, want string
	}{{a, "r", "RELEASED 1, held 0"}, {a, "s", "RELEASED 300, held 0"}, {b, "r", "RELEASED 20, held 7"}, {b, "stays", "HELD 7, held 7"}} {
		if got := stateOf(t, l, c.tenant, c.id); got != c.want {
			t.Errorf("reservation %s: %q, want %q", c.id, got, c.want)
		}
	}
}

// A request for which the expired reservations of an account make room gets it, however many they are, and although
// they expire at one moment.
func TestP7_AllDueReservationsMakeRoom(t *testing.T) {
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	for _, n := range []int{dueAtOnce, dueAtOnce + 1, 2*dueAtOnce + 3} {
		tenant := uuid.Must(uuid.NewV7())
		l, _ := openLogAt(t, migrated(t), func(c *Config) {
			c.Histories, c.Now = &grants{limits: map[uuid.UUID]int64{tenant: int64(n)}}, now
		})
		var list []intake.Holding
		for i := range n {
			list = append(list, intake.Holding{ReservationID: fmt.Sprintf("r%04d", i), Feature: "f", Amount: 1, Lasts: time.Minute})
		}
		if _, _, err := quotasOn(l, now).Hold(t.Context(), callerOf(tenant), list, func(int) string { return "" }); err != nil {
			t.Fatal(err)
		}
		ahead.Add(int64(time.Hour))
		if err := holdOf(tenant, "all", int64(n), time.Minute)(quotasOn(l, now)); err != nil {
			t.Errorf("%d reservations are due, and hold an amount: %v", n, err)
		}
		if got, want := stateOf(t, l, tenant, "all"), fmt.Sprintf("HELD %d, held %d", n, n); got != want {
			t.Errorf("after %d due reservations: %q, want %q", n, got, want)
		}
	}
}

// The heads of a group are locked while it ends reservations: it ends a bounded number, and a request that needs more has to be repeated.
// One that cannot fit because of the used amount is refused.
func TestP7_AGroupEndsABoundedNumberOfReservations(t *testing.T) {
	const n = maxGroupRows + 2*dueAtOnce
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	tenant := uuid.Must(uuid.NewV7())
	l, pool := openLogAt(t, migrated(t), func(c *Config) {
		c.Histories, c.Now = &grants{limits: map[uuid.UUID]int64{tenant: n}}, now
	})
	held := 0
	hold := func() {
		for part := range slices.Chunk(make([]struct{}, n), 600) {
			var list []intake.Holding
			for range part {
				held++
				list = append(list, intake.Holding{ReservationID: fmt.Sprintf("r%05d", held), Feature: "f", Amount: 1, Lasts: time.Minute})
			}
			if _, _, err := quotasOn(l, now).Hold(t.Context(), callerOf(tenant), list, func(int) string { return "" }); err != nil {
				t.Fatal(err)
			}
		}
		ahead.Add(int64(time.Hour))
	}
	expired := func() int {
		return count(t, pool, `SELECT count(*) FROM event_log_rows WHERE subject = $1`, int16(events.ReservationExpired))
	}
	hold()
	if err := holdOf(tenant, "all", n, time.Minute)(quotasOn(l, now)); !errors.Is(err, commands.ErrUnavailable) ||
		expired() != maxGroupRows {
		t.Errorf("%v, and %d reservations are ended", err, expired())
	}
	if err := holdOf(tenant, "all", n, time.Minute)(quotasOn(l, now)); err != nil || expired() != n {
		t.Errorf("repeated: %v, and %d reservations are ended", err, expired())
	}
	ahead.Add(int64(time.Hour)) // that of "all" is due, too
	hold()
	var refusal *domain.Error
	if err := holdOf(tenant, "more", n+1, time.Minute)(quotasOn(l, now)); !errors.As(err, &refusal) || refusal.Code != "quota_exceeded" {
		t.Errorf("more than the limit: %v", err)
	}
	if more := expired() - n; more > maxGroupRows+1 {
		t.Errorf("a request in vain has ended %d reservations", more)
	}
}

// A due reservation that an earlier request of the group has changed is not ended to make room: it is as that request left it.
func TestP7_AReservationChangedInTheGroupMakesNoRoom(t *testing.T) {
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	tenant := uuid.Must(uuid.NewV7())
	l, pool := openLogAt(t, migrated(t), func(c *Config) {
		c.Histories, c.Now = &grants{limits: map[uuid.UUID]int64{tenant: 100}}, now
	})
	for id, amount := range map[string]int64{"extended": 20, "committed": 30, "due": 50} {
		must.OK(t, holdOf(tenant, id, amount, time.Minute)(quotasOn(l, now)))
	}
	ahead.Store(int64(time.Hour))
	errs := inOneGroup(l, now, func(q *metering.Quotas) error {
		_, err := q.Extend(context.Background(), callerOf(tenant), "f", "extended", time.Hour)
		return err
	}, func(q *metering.Quotas) error {
		_, _, err := q.Commit(context.Background(), callerOf(tenant), &intake.Commitment{ReservationID: "committed", EventID: "e",
			Feature: "f", Amount: 30})
		return err
	}, holdOf(tenant, "next", 50, time.Hour))
	for i, err := range errs {
		if err != nil {
			t.Errorf("request %d of the group: %v", i, err)
		}
	}
	for id, want := range map[string]string{"extended": "HELD 20, held 70", "committed": "COMMITTED 30, held 70",
		"due": "EXPIRED 50, held 70", "next": "HELD 50, held 70"} {
		if got := stateOf(t, l, tenant, id); got != want {
			t.Errorf("reservation %s: %q, want %q", id, got, want)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log_rows WHERE subject = $1`, int16(events.ReservationExpired)); n != 1 {
		t.Errorf("%d reservations expired, want that one that no request changed", n)
	}
}
