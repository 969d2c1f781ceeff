package eventlog

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
)

func TestAFailedAttemptGivesItsConnectionBack(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	s := &submission{tenant: tenant, batch: []commands.Submitted{usageEvent(tenant, "a", 1)}, places: make([]commands.Placement, 1)}
	g := newGroup(l, []*submission{s})
	for round := range 40 { // more than the pool has
		g.partitions = []int16{99}
		if err := l.writers[0].attempt(t.Context(), g, false, true); err == nil {
			t.Fatal("a partition that does not exist was locked")
		}
		g.partitions, g.members[0].submitted.Body = partitionsOf(g.pending), []byte("no JSON")
		if err := l.writers[0].attempt(t.Context(), g, round%2 == 0, true); err == nil {
			t.Fatal("a payload that is no JSON was taken")
		}
	}
	// One in mid-transaction is closed beside, and counts until that is done.
	until(t, "no connection is held", func() bool { return pool.Stat().AcquiredConns() == 0 })
}
