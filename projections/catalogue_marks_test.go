package projections_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// The change of a tenant leaves what is cached of others true, and only as far as every change behind it is known.
func TestTheChangeOfATenantLeavesOthersUnchanged(t *testing.T) {
	changed := uuid.MustParse("0198c3a0-0000-7000-8000-000000000001")
	other := uuid.MustParse("0198c3a0-0000-7000-8000-000000000002")
	for events.PartitionOf(other) != events.PartitionOf(changed) {
		other[15]++
	}
	p := events.PartitionOf(changed)
	step := func(m *projections.CatalogueMarks, epoch int32, mark int64, tenants ...uuid.UUID) *projections.CatalogueMarks {
		return m.With([]projections.CatalogueStep{{Partition: p, Epoch: epoch, Mark: mark, Changed: tenants}})
	}
	first := step(nil, 1, 10)
	next := step(first, 1, 20, changed)
	restarted := projections.CatalogueMarkOf(1, 20)
	for _, c := range []struct {
		what   string
		m      *projections.CatalogueMarks
		tenant uuid.UUID
		mark   int64
		want   bool
	}{
		{"the same mark", first, changed, 10, true},
		{"the tenant changed", next, changed, 10, false},
		{"another one changed", next, other, 10, true},
		{"read before the first state", next, other, 9, false},
		{"read behind the last state", first, other, 20, false},
		{"read since", next, changed, 20, true},
		{"changes that are not known", step(next, 1, 30), other, 20, false},
		{"and the next one", step(step(next, 1, 30), 1, 40, changed), other, 20, false},
		{"changes after them", step(step(next, 1, 30), 1, 40, changed), other, 30, true},
		{"another epoch", step(next, 2, 30, changed), other, 20, false},
		{"another start of the server", step(next, 1, restarted, changed), other, 20, false},
		{"positions that went back", step(next, 1, 15, changed), other, 10, false},
	} {
		if got := c.m.Unchanged(c.tenant, c.mark); got != c.want {
			t.Errorf("%s: unchanged %t, want %t", c.what, got, c.want)
		}
	}
	for _, c := range []struct {
		what       string
		tenant     uuid.UUID
		epoch      int32
		from, head int64
		want       bool
	}{
		{"at the head", other, 1, 10, 20, true},
		{"the tenant changed", changed, 1, 10, 20, false},
		{"the head is further", other, 1, 10, 21, false},
		{"the head is behind", other, 1, 10, 19, false},
		{"another epoch", other, 2, 10, 20, false},
		{"from before the first state", other, 1, 9, 20, false},
	} {
		if got := next.UnchangedAt(c.tenant, c.epoch, c.from, c.head); got != c.want {
			t.Errorf("under the lock, %s: unchanged %t, want %t", c.what, got, c.want)
		}
	}
	if later := step(next, 1, 30, other); !later.Unchanged(changed, 20) || later.Unchanged(other, 20) || !next.Unchanged(other, 10) {
		t.Error("a later state changed an earlier one, or not itself")
	}
}

// The memory of changes is bounded: beyond it each answer is read again.
func TestTheChangesOfTheCatalogueAreBounded(t *testing.T) {
	var tenant uuid.UUID
	m := (*projections.CatalogueMarks)(nil).With([]projections.CatalogueStep{{Partition: events.PartitionOf(tenant), Mark: 1}})
	for n := range 3000 {
		other := uuid.UUID{0: byte(n >> 8), 1: byte(n), 2: 1}
		m = m.With([]projections.CatalogueStep{{Partition: events.PartitionOf(tenant), Mark: int64(n + 2), Changed: []uuid.UUID{other}}})
	}
	if m.Unchanged(tenant, 1) {
		t.Error("an answer from before the known changes counts as unchanged")
	}
	if last := m.Mark(events.PartitionOf(tenant)); !m.Unchanged(tenant, last-1) {
		t.Error("the last change of another tenant changed this one")
	}
}
