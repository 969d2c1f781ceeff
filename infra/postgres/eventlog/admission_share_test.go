package eventlog

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
)

// fill enters submissions of a tenant, a thousand rows at a time, until it is refused.
func fill(q *queueLoad, tenant uuid.UUID) (in []*submission) {
	for {
		s := &submission{tenant: tenant, batch: make([]metering.Submitted, 1000), bytes: 1}
		if q.enter(s) != nil {
			return in
		}
		in = append(in, s)
	}
}

// A tenant that is alone may use the whole queue; only half of what others leave while another tenant
// is queued or submitted lately.
func TestATenantAloneHasAllOfAQueue(t *testing.T) {
	q := newQueueLoad(time.Hour)
	whale, small := uuid.New(), uuid.New()
	one := func() *submission { return &submission{tenant: small, batch: make([]metering.Submitted, 1), bytes: 1} }
	in := fill(q, whale)
	if len(in) != maxQueuedRows/1000 || q.rows.Load() != maxQueuedRows {
		t.Errorf("a tenant alone got %d rows in", q.rows.Load())
	}
	if q.enter(one()) == nil { // it is seen, though
		t.Error("a full queue took another")
	}
	for _, s := range in {
		q.remove(s)
	}
	in = fill(q, whale)
	if q.rows.Load() != maxQueuedRows/2 {
		t.Errorf("beside another it got %d rows in", q.rows.Load())
	}
	waits := one()
	if err := q.enter(waits); err != nil {
		t.Error(err)
	}
	q.seen[0].at, q.seen[1].at = 1, 1
	q.started = q.started.Add(-time.Minute)
	if more := fill(q, whale); len(more) != 0 {
		t.Error("beside one that waits it got more than half")
	}
	q.remove(waits)
	q.started = q.started.Add(-time.Minute)
	more := fill(q, whale)
	if q.rows.Load() != maxQueuedRows {
		t.Errorf("alone again it got %d rows in", q.rows.Load())
	}
	for _, s := range append(in, more...) {
		q.remove(s)
	}
	if q.rows.Load() != 0 || q.bytes.Load() != 0 || len(q.shares) != 0 {
		t.Errorf("%d rows, %d bytes and shares %v are left", q.rows.Load(), q.bytes.Load(), q.shares)
	}
}

// TestP9_TenantsThatFloodNeverFillAQueue: each of them enters all that it can, by rows and by time, and another tenant is accepted still.
func TestP9_TenantsThatFloodNeverFillAQueue(t *testing.T) {
	for _, n := range []int{1, 4, 8} {
		for _, longest := range []time.Duration{time.Hour, 16_000 * firstPerRow} {
			q := newQueueLoad(longest)
			_ = q.mayEnter(&submission{tenant: uuid.New()}) // so that the first one is not alone
			for range n {
				fill(q, uuid.New())
			}
			if err := q.enter(&submission{tenant: uuid.New(), batch: make([]metering.Submitted, 100), bytes: 1}); err != nil {
				t.Errorf("beside %d tenants with %d rows: %v", n, q.rows.Load(), err)
			}
		}
	}
}

// Messages are not refused because of their tenant's HTTP traffic: the whole batch of
// messages would have to be delivered again.
func TestMessagesAreNotRefusedForTheirTenantsFlood(t *testing.T) {
	l, pool, _ := openLog(t)
	whale := uuid.Must(uuid.NewV7())
	load := l.ownWriter(whale).load
	load.longest = time.Hour
	message := func(id string) metering.Submitted {
		m := usageEvent(whale, id, 1)
		m.Inbox = "m/" + id
		return m
	}
	if l.Admit(neighbourOf(whale)) != nil {
		t.Fatal("an empty queue refuses")
	}
	flood := fill(load, whale)
	if len(flood) != maxQueuedRows/2000 {
		t.Errorf("the flood has %d thousand rows", len(flood))
	}
	if _, err := l.Submit(t.Context(), whale, []metering.Submitted{usageEvent(whale, "http", 1)}); !isOverloaded(err) {
		t.Errorf("the flood goes on: %v", err)
	}
	if _, err := l.Submit(t.Context(), whale, []metering.Submitted{message("one")}); err != nil {
		t.Errorf("a message: %v", err)
	}
	var many []metering.Submitted
	for i := range 2 * smallRows {
		many = append(many, message(fmt.Sprint(i)))
	}
	if _, err := l.Submit(t.Context(), whale, many); err != nil {
		t.Errorf("messages: %v", err)
	}
	for _, s := range flood {
		load.remove(s)
	}
	if n := recorded(t, pool); n != 1+2*smallRows || len(load.shares) != 0 || load.rows.Load() != 0 {
		t.Errorf("%d events, shares %v, %d rows", n, load.shares, load.rows.Load())
	}
	// They are seen as another tenant is, so that room is left for the next of them.
	if again := fill(load, whale); len(again) != maxQueuedRows/2000 {
		t.Errorf("beside messages the flood has %d thousand rows", len(again))
	}
}

// A refused submission uses no room, not even briefly: concurrent submissions that fit
// are admitted.
func TestRefusedSubmissionsUseNoQueueSpace(t *testing.T) {
	q, tenant := newQueueLoad(time.Hour), uuid.New()
	let := func(rows int) (*submission, error) {
		s := &submission{tenant: tenant, batch: make([]metering.Submitted, rows), bytes: 1}
		return s, q.enter(s)
	}
	if _, err := let(maxQueuedRows - 1); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for !done.Load() {
				if _, err := let(2); err == nil {
					t.Error("two rows are in where there is room for one")
					return
				}
			}
		})
	}
	for n, end := 0, time.Now().Add(300*time.Millisecond); time.Now().Before(end); n++ {
		s, err := let(1)
		if err != nil {
			t.Errorf("submission %d is refused, and there is room for it: %v", n, err)
			break
		}
		q.remove(s)
	}
	done.Store(true)
	all.Wait()
}
