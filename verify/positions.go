package verify

// addPosition checks the position of a row against the row before it.
func (x *pass) addPosition(r *row, _ *content, _ error) {
	x.positions.n++
	x.positions.expect(r.position == x.last.position+1, "%s follows %d", x.at(r.position), x.last.position)
}

// endPositions compares the last position with the head.
func (x *pass) endPositions() {
	x.positions.expect(x.last.position == x.head, "the head of partition %d is at %d, the last event at %d", x.p, x.head, x.last.position)
}
