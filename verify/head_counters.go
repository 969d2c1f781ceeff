package verify

// endCounters compares the counters of the head with the rows.
func (x *pass) endCounters() {
	x.headCounters.n++
	x.headCounters.expect(x.counts == x.letterStates.counts,
		"partition %d: the head has accepted %d, validated %d, rejected %d, parked %d; the rows have %d, %d, %d, %d", x.p,
		x.counts.accepted, x.counts.validated, x.counts.rejected, x.counts.parked,
		x.letterStates.counts.accepted, x.letterStates.counts.validated, x.letterStates.counts.rejected, x.letterStates.counts.parked)
}
