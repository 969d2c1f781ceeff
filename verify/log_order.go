package verify

// addOrder checks a row against the row before it, and against the row before it on its topic.
func (x *pass) addOrder(r *row, _ *content, _ error) {
	x.logOrder.n++
	x.logOrder.expect(r.recorded >= x.last.recorded, "%s was recorded at %s, earlier than its predecessor", x.at(r.position),
		moment(r.recorded))
	if r.topic < 1 || r.topic >= maxTopic {
		return // reported by its placement
	}
	x.logOrder.expect(r.previous == x.topicEnd[r.topic], "%s has the previous position %d on its topic, want %d", x.at(r.position),
		r.previous, x.topicEnd[r.topic])
	x.logOrder.expect(r.epoch == x.owner(r.position), "%s has epoch %d, its position belongs to %d", x.at(r.position), r.epoch,
		x.owner(r.position))
}

// endOrder compares the rows with the head.
func (x *pass) endOrder() {
	for t := 1; t <= len(x.lastOf) && t < maxTopic; t++ {
		x.logOrder.expect(x.lastOf[t-1] == x.topicEnd[t], "the head of partition %d has %[3]d as the end of topic %[2]d, the rows %[4]d",
			x.p, t, x.lastOf[t-1], x.topicEnd[t])
	}
	if x.rows > 0 {
		x.logOrder.expect(!x.recordedAt.Before(moment(x.last.recorded)),
			"the head of partition %d was moved at %s, before its last event was recorded", x.p, x.recordedAt)
	}
	x.logOrder.expect(x.epoch == x.owner(x.head+1), "the head of partition %d has epoch %d, want %d", x.p, x.epoch, x.owner(x.head+1))
}
