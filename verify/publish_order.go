package verify

import "fmt"

// inTenantOrder checks that the first occurrences of each tenant are in the order of the log.
// Records published again after a rewind may be new to a topic that lost them: the relay
// then publishes all events from there, each behind the one before it.
func (t *topicPass) inTenantOrder(where offset, topic int16, n int64, s *source) {
	t.publishOrder.n++
	if s.previous > 0 && !t.held[topic].has(s.previous) {
		t.ahead[topic][s.previous] = n
	}
	if next, ahead := t.ahead[topic][n]; ahead {
		t.early[topic][next] = n
		delete(t.ahead[topic], n)
	}
	last := t.last[topic][s.tenant]
	switch {
	case n >= last:
		t.last[topic][s.tenant] = n
	case n <= t.furthest:
		t.publishOrder.add(1, "published again after a rewind")
	default:
		t.publishOrder.fault("%s is the first record of event %s, after %s of the same tenant", where, t.at(n), t.at(last))
	}
}

// republishedInOrder checks that an event first published before its predecessor was published again behind
// it; otherwise the relay did not publish in order after the rewind.
func (t *topicPass) republishedInOrder(name string, topic int16, before lease) {
	for n, previous := range t.early[topic] {
		switch {
		case n > t.furthest || n > before.position: // reported by its tenant's order, or not published again yet
		case before.fence != t.fence:
			t.publishOrder.incomplete(fmt.Errorf("the relay of partition %d was rewound or replaced during the read", t.p))
		default:
			t.publishOrder.fault("%s has event %s before its predecessor %s, and does not repeat it after", name, t.at(n), t.at(previous))
		}
	}
}
