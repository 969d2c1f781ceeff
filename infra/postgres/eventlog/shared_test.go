package eventlog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// tenantsApart makes tenants that live in partitions of their own.
func tenantsApart(n int) []uuid.UUID {
	var list []uuid.UUID
	taken := map[int16]bool{}
	for len(list) < n {
		id := uuid.Must(uuid.NewV7())
		if p := events.PartitionOf(id); !taken[p] {
			taken[p] = true
			list = append(list, id)
		}
	}
	return list
}

func TestALockedHeadBlocksNoOtherPartition(t *testing.T) {
	l, pool, _ := openLog(t)
	tenants := tenantsApart(6)
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := lockHeads(t.Context(), tx, []int16{events.PartitionOf(tenants[0])}); err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() {
		_, err := l.Submit(t.Context(), tenants[0], []metering.Submitted{usageEvent(tenants[0], "held", 1)})
		held <- err
	}()
	var all sync.WaitGroup
	var longest [6]time.Duration
	for i, tenant := range tenants[1:] {
		if int(events.PartitionOf(tenant))%len(l.writers) == int(events.PartitionOf(tenants[0]))%len(l.writers) {
			continue // a writer waits for all of its group's heads
		}
		all.Go(func() {
			for n := range 20 {
				began := time.Now()
				if _, err := l.Submit(t.Context(), tenant, []metering.Submitted{usageEvent(tenant, fmt.Sprint(i, "-", n), 1)}); err != nil {
					t.Error(err)
				}
				longest[i] = max(longest[i], time.Since(began))
			}
		})
	}
	all.Wait()
	// A submission that waits for the head waits for at least the 2 s of lock_timeout, as others may on a busy machine.
	if took := slices.Max(longest[:]); took > 1500*time.Millisecond && !testing.Short() {
		t.Errorf("an event of another partition waited %v for a head that somebody else had", took)
	}
	select {
	case err := <-held:
		t.Fatalf("an event was stored past a lock: %v", err)
	default:
	}
	must.OK(t, tx.Rollback(t.Context()))
	select {
	case err := <-held:
		must.OK(t, err)
	case <-time.After(2 * time.Minute):
		t.Fatal("an event waits for a head that is free")
	}
}

// Tenants of one partition share its head and its keys' index, and may name their
// events alike.
func TestP2_TenantsOfOnePartitionHaveEachTheirOwnEventIDs(t *testing.T) {
	l, _, _ := openLog(t)
	tenants := []uuid.UUID{uuid.Must(uuid.NewV7())}
	for len(tenants) < 4 {
		if id := uuid.Must(uuid.NewV7()); events.PartitionOf(id) == events.PartitionOf(tenants[0]) {
			tenants = append(tenants, id)
		}
	}
	var all sync.WaitGroup
	for i, tenant := range tenants {
		all.Go(func() {
			for n := range 50 {
				outcomes, err := l.Submit(context.Background(), tenant, []metering.Submitted{usageEvent(tenant, fmt.Sprint("e", n), i+1)})
				if err != nil || outcomes[0].Status != metering.Appended {
					t.Errorf("event %d of tenant %d: %v %v", n, i, outcomes, err)
				}
			}
		})
	}
	all.Wait()
}

// Small and large submissions are committed by different writers: the same events
// in both are stored once, while heads are held now and then.
func TestP2_SmallAndLargeSubmissionsOfTheSameEventsCountOnce(t *testing.T) {
	l, pool, _ := openLog(t)
	tenants := tenantsApart(5)
	const size = 3 * smallRows
	var appended atomic.Int64
	send := func(tenant uuid.UUID, batch []metering.Submitted) {
		outcomes, err := l.Submit(t.Context(), tenant, batch)
		if err != nil {
			t.Error(err)
		}
		for i := range outcomes {
			switch outcomes[i].Status {
			case metering.Appended:
				appended.Add(1)
			case metering.Duplicate:
			default:
				t.Errorf("status %v", outcomes[i].Status)
			}
		}
	}
	var all sync.WaitGroup
	for _, tenant := range tenants {
		batch := func() (b []metering.Submitted) {
			for n := range size {
				b = append(b, usageEvent(tenant, fmt.Sprint("e", n), n+1))
			}
			return b
		}
		all.Go(func() { send(tenant, batch()) })
		for range 2 {
			all.Go(func() {
				for _, s := range batch() {
					send(tenant, []metering.Submitted{s})
				}
			})
		}
		all.Go(func() {
			for range 10 { // another session appends, too
				tx, err := pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := lockHeads(t.Context(), tx, []int16{events.PartitionOf(tenant)}); err != nil {
					t.Error(err)
				}
				time.Sleep(3 * time.Millisecond)
				if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := appended.Load(); n != size*int64(len(tenants)) {
		t.Errorf("%d events of %d were answered as new", n, size*len(tenants))
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log`); n != size*len(tenants) {
		t.Errorf("%d events of %d are in the log", n, size*len(tenants))
	}
	checkDense(t, pool)
}

// A group that leaves out the submission whose head another session has locked records the others under their own actors.
func TestAGroupThatLeavesASubmissionKeepsTheOriginsOfTheOthers(t *testing.T) {
	l, pool, _ := openLog(t)
	tenants := tenantsApart(3)
	actor := func(tenant uuid.UUID) events.Actor {
		return events.Actor{Type: "api_key", ID: "key of " + tenant.String()}
	}
	eventOf := func(tenant uuid.UUID, id string) metering.Submitted {
		s := usageEvent(tenant, id, 1)
		s.Actor = actor(tenant)
		return s
	}
	for _, tenant := range tenants { // their origins are numbered
		submit(t, l, tenant, eventOf(tenant, "known"))
	}
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := lockHeads(t.Context(), tx, []int16{events.PartitionOf(tenants[0])}); err != nil {
		t.Fatal(err)
	}
	var subs []*submission
	for _, tenant := range tenants {
		s := &submission{tenant: tenant, batch: []metering.Submitted{eventOf(tenant, "x")}, outcomes: make([]metering.Outcome, 1),
			done: make(chan error, 1), load: newQueueLoad(time.Hour)}
		must.OK(t, l.numberOrigins(t.Context(), s))
		subs = append(subs, s)
	}
	newWriter(l, true).commit(subs)
	for i, s := range subs[1:] {
		must.OK(t, <-s.done)
		at := s.outcomes[0].Position
		list, err := l.Read(t.Context(), at.Partition, at.Number-1, at.Number, 1)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v %v", list, err)
		}
		if got, want := list[0].Actor, actor(tenants[i+1]); got != want {
			t.Errorf("the event of %s is recorded under %s", want.ID, got.ID)
		}
	}
	must.OK(t, tx.Rollback(t.Context()))
	if err := <-subs[0].done; err != nil {
		t.Errorf("the submission that was left out: %v", err)
	}
}
