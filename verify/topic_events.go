package verify

import mathbits "math/bits"

// checkComplete checks that each event of the topic up to the cursor is on it, except the events that the
// broker deleted for their age.
func (t *topicPass) checkComplete(name string, topic int16, s span, cursor int64) {
	from := int64(0)
	if s.start > 0 {
		from = cursor // all records are deleted
		first := t.firstOf[topic]
		switch {
		case s.start >= t.next[topic]: // every record read is deleted by now
			first = 0
		case t.resumed[topic] > 0 && s.start >= t.resumed[topic]:
			first = t.since[topic]
		}
		if first > 0 {
			from = first - 1
		}
	}
	var missing, deleted, example int64
	want, held := t.onTopic[topic], t.held[topic]
	for i, word := range want {
		if i < len(held) {
			word &^= held[i]
		}
		for ; word != 0; word &= word - 1 {
			switch n := int64(i)<<6 + int64(mathbits.TrailingZeros64(word)); {
			case n > cursor:
			case n <= from:
				deleted++
			default:
				if missing++; example == 0 {
					example = n
				}
			}
		}
	}
	t.topicEvents.add(deleted, "deleted by the broker for their age, and not required")
	t.topicEvents.expect(missing == 0, "%d events of partition %d are not on %s, the first is %s; see docs/runbooks/kafka-data-lost.md",
		missing, t.p, name, t.at(example))
}
