package postgres

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
)

// fill lets a tenant in, a thousand rows at a time, until it is refused.
func fill(q *queueLoad, tenant uuid.UUID) (in []*submission) {
	for {
		s := &submission{tenant: tenant, batch: make([]commands.Submitted, 1000), bytes: 1}
		if q.enter(s) != nil {
			return in
		}
		in = append(in, s)
	}
}

// A tenant that is alone has all of a queue, and half of it as soon as another comes,
// for as long as that waits or came lately.
func TestATenantAloneHasAllOfAQueue(t *testing.T) {
	q := newQueueLoad(time.Hour)
	whale, small := uuid.New(), uuid.New()
	one := func() *submission { return &submission{tenant: small, batch: make([]commands.Submitted, 1), bytes: 1} }
	in := fill(q, whale)
	if len(in) != maxQueuedRows/1000 || q.rows.Load() != maxQueuedRows {
		t.Errorf("a tenant alone got %d rows in", q.rows.Load())
	}
	if q.enter(one()) == nil { // it is seen, though
		t.Error("a full queue took another")
	}
	for _, s := range in {
		q.leave(s)
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
	q.leave(waits)
	q.started = q.started.Add(-time.Minute)
	more := fill(q, whale)
	if q.rows.Load() != maxQueuedRows {
		t.Errorf("alone again it got %d rows in", q.rows.Load())
	}
	for _, s := range append(in, more...) {
		q.leave(s)
	}
	if q.rows.Load() != 0 || q.bytes.Load() != 0 || len(q.shares) != 0 {
		t.Errorf("%d rows, %d bytes and shares %v are left", q.rows.Load(), q.bytes.Load(), q.shares)
	}
}

// What messages brought is not refused for what its tenant sends over HTTP: all that
// came beside it would have to come again.
func TestMessagesAreNotRefusedForTheirTenantsFlood(t *testing.T) {
	l, pool, _ := openLog(t)
	whale := uuid.Must(uuid.NewV7())
	load := l.ownWriter(whale).load
	load.longest = time.Hour
	message := func(id string) commands.Submitted {
		m := usage(whale, id, 1)
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
	if _, err := l.Submit(t.Context(), whale, []commands.Submitted{usage(whale, "http", 1)}); !isOverloaded(err) {
		t.Errorf("the flood goes on: %v", err)
	}
	if _, err := l.Submit(t.Context(), whale, []commands.Submitted{message("one")}); err != nil {
		t.Errorf("a message: %v", err)
	}
	var many []commands.Submitted
	for i := range 2 * smallRows {
		many = append(many, message(fmt.Sprint(i)))
	}
	if _, err := l.Submit(t.Context(), whale, many); err != nil {
		t.Errorf("messages: %v", err)
	}
	for _, s := range flood {
		load.leave(s)
	}
	if n := recorded(t, pool); n != 1+2*smallRows || len(load.shares) != 0 || load.rows.Load() != 0 {
		t.Errorf("%d events, shares %v, %d rows", n, load.shares, load.rows.Load())
	}
	// They are seen as another tenant is, so that room is left for the next of them.
	if again := fill(load, whale); len(again) != maxQueuedRows/2000 {
		t.Errorf("beside messages the flood has %d thousand rows", len(again))
	}
}

// Whoever is refused takes no room from those that come at the same moment: many
// that come at once fill a queue to its bound, or to their halves of it.
func TestTheRefusedTakeNoRoom(t *testing.T) {
	tenants := []uuid.UUID{uuid.New(), uuid.New()}
	for round := range 200 {
		q := newQueueLoad(time.Hour)
		var all sync.WaitGroup
		for caller := range 40 * len(tenants) {
			all.Go(func() {
				s := &submission{tenant: tenants[caller%len(tenants)], batch: make([]commands.Submitted, 1000), bytes: 1}
				_ = q.enter(s)
			})
		}
		all.Wait()
		if rows := q.rows.Load(); rows != maxQueuedRows {
			t.Fatalf("round %d: %d rows are in, the bound is %d", round, rows, maxQueuedRows)
		}
	}
}
