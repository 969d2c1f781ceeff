package verify

// addPlacement checks the partition and the topic of a row.
func (x *pass) addPlacement(r *row, _ *content, _ error) {
	if r.topic < 1 || r.topic >= maxTopic {
		x.placement.fault("%s is on topic %d, which does not exist", x.at(r.position), r.topic)
	}
	x.placement.n++
	x.placement.expect(partitionOf(r.tenant) == x.p, "%s is of tenant %s, which belongs to partition %d", x.at(r.position), r.tenant,
		partitionOf(r.tenant))
	topic, known := topicOf[r.subject]
	if !known {
		x.placement.add(1, "of unknown subjects")
		return
	}
	x.placement.expect(topic == r.topic, "%s, of subject %d, is on topic %d", x.at(r.position), r.subject, r.topic)
}
