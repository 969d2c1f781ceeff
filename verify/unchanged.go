package verify

import "context"

// checkUnchanged checks that rows seen before are unchanged and that no position decreased.
func (v *verifier) checkUnchanged(_ context.Context, before, after *observation) error {
	for p, b := range before.heads {
		a := after.heads[p]
		v.unchanged.n += b.events
		if a.erasures != b.erasures {
			v.unchanged.incomplete(errErasing)
			a.digest = b.digest
		}
		v.unchanged.expect(a.events == b.events && a.digest == b.digest,
			"positions %d to %d of partition %d changed: %d events now, %d before", b.from+1, b.to, p, a.events, b.events)
		v.unchanged.expect(a.position >= b.position && a.epoch >= b.epoch, "the head of partition %d decreased from %d to %d", p,
			b.position, a.position)
		v.unchanged.expect(a.accepted >= b.accepted && a.validated >= b.validated && a.rejected >= b.rejected,
			"a counter of the head of partition %d decreased", p)
	}
	for name, was := range before.checkpoints {
		now, there := after.checkpoints[name]
		v.unchanged.expect(!there || now >= was, "the checkpoint of %s decreased from %d to %d", name, was, now)
	}
	for p, b := range before.cursors {
		a := after.cursors[p]
		v.unchanged.expect(a.position >= b.position || a.fence > b.fence && a.furthest >= b.position,
			"the relay's cursor of partition %d decreased from %d to %d under the same fence", p, b.position, a.position)
	}
	v.unchanged.note("%d checkpoints", len(before.checkpoints))
	v.unchanged.done = true
	return nil
}
