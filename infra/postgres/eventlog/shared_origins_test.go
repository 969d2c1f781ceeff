package eventlog

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

// A group that leaves out the submission whose head another session has locked records the others under their own actors.
func TestAGroupThatLeavesASubmissionKeepsTheOriginsOfTheOthers(t *testing.T) {
	l, pool, _ := openLog(t)
	tenants := tenantsApart(3)
	actor := func(tenant uuid.UUID) events.Actor {
		return events.Actor{Type: "api_key", ID: "key of " + tenant.String()}
	}
	eventOf := func(tenant uuid.UUID, id string) commands.Submitted {
		s := usageEvent(tenant, id, 1)
		s.Actor = actor(tenant)
		return s
	}
	for _, tenant := range tenants { // their origins are numbered
		submit(t, l, tenant, eventOf(tenant, "known"))
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := lockHeads(t.Context(), tx, []int16{events.PartitionOf(tenants[0])}); err != nil {
		t.Fatal(err)
	}
	var subs []*submission
	for _, tenant := range tenants {
		s := &submission{tenant: tenant, batch: []commands.Submitted{eventOf(tenant, "x")}, places: make([]commands.Placement, 1), done: make(chan error, 1), load: newQueueLoad(time.Hour)}
		if err := l.numberOrigins(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		subs = append(subs, s)
	}
	newWriter(l, true).commit(subs)
	for i, s := range subs[1:] {
		if err := <-s.done; err != nil {
			t.Fatal(err)
		}
		at := s.places[0].Position
		list, err := l.Read(t.Context(), at.Partition, at.Number-1, at.Number, 1)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v %v", list, err)
		}
		if got, want := list[0].Actor, actor(tenants[i+1]); got != want {
			t.Errorf("the event of %s is recorded under %s", want.ID, got.ID)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-subs[0].done; err != nil {
		t.Errorf("the submission that was left out: %v", err)
	}
}
