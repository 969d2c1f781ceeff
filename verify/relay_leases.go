package verify

import "context"

// leases checks that one live instance publishes each partition. A new owner has a new
// fence; between two owners there may be no owner for a moment, and no owner after a relay has stopped.
func (v *verifier) leases(_ context.Context, before, after *observation) error {
	owners := map[string]bool{}
	for p, a := range after.cursors {
		v.relayLeases.n++
		b := before.cursors[p]
		held := func(l lease) bool { return l.owner != nil && l.live && l.heard }
		if held(a) {
			owners[*a.owner] = true
		}
		v.relayLeases.expect(a.fence >= b.fence, "the fence of partition %d decreased from %d to %d", p, b.fence, a.fence)
		v.relayLeases.expect(a.owner == nil || b.owner == nil || *a.owner == *b.owner || a.fence > b.fence,
			"partition %d changed from %s to %s under one fence", p, text(b.owner), text(a.owner))
		if before.relays > 0 && after.reported > 0 {
			v.relayLeases.expect(held(a) || held(b), "no live instance holds partition %d (%s)", p, text(a.owner))
		}
	}
	if after.relays == 0 {
		v.relayLeases.note("no relay runs")
	} else {
		v.relayLeases.note("%d relays live, %d of them hold partitions", after.relays, len(owners))
	}
	v.relayLeases.done = true
	return nil
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}
