package verify

// applied checks that every verdict up to the aggregator's checkpoint is applied, parked or
// withheld, and that a redone verdict is applied at most once.
func (x *pass) applied(g *candidate, applied int64) {
	m := &x.figures
	var parked, withheld int64
	left := func(n int64) bool { return m.failed[n] || x.withheld[n] }
	for n := range m.failed {
		if n <= m.upTo && x.onTopic[topicValidated].has(n) && !x.withheld[n] {
			parked++
		}
	}
	for n := range x.withheld {
		if n <= m.upTo && x.onTopic[topicValidated].has(n) {
			withheld++
		}
	}
	x.consumedVerdicts.expect(m.consumed == applied+parked+withheld,
		"partition %d, generation %d: %d results were consumed, %d applied, %d parked, %d withheld",
		x.p, g.number, m.consumed, applied, parked, withheld)
	if g.serving {
		x.consumedVerdicts.add(applied, "applied")
		x.consumedVerdicts.add(parked, "parked")
		x.consumedVerdicts.add(withheld, "withheld")
	}
	for letter, tries := range m.redone {
		n := 0
		for _, at := range tries {
			n += count(!left(at))
		}
		x.consumedVerdicts.expect(n <= 1, "dead letter %s was applied %d times", letter, n)
	}
}
