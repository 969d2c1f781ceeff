package verify

import "github.com/meterplex/meterplex/events"

// addPlacement checks the partition and the topic of a row.
func (x *pass) addPlacement(r *row, _ *content, _ error) {
	if r.topic < 1 || r.topic >= maxTopic {
		x.placement.fault("%s is on topic %d, which does not exist", x.at(r.position), r.topic)
	}
	x.placement.n++
	x.placement.expect(partitionOf(r.tenant) == x.p, "%s is of tenant %s, which belongs to partition %d", x.at(r.position), r.tenant, partitionOf(r.tenant))
	info, known := events.Subject(r.subject).Info()
	if !known {
		x.placement.add(1, "of unknown subjects")
		return
	}
	x.placement.expect(int16(info.Topic) == r.topic, "%s, %s, is on topic %d", x.at(r.position), info.Name(), r.topic)
}
