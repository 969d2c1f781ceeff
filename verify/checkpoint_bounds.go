package verify

import (
	"fmt"
)

// endCheckpoints compares every checkpoint with the rows and the head.
func (x *pass) endCheckpoints() {
	x.checkpointBounds.expect(x.cursor <= x.head && x.furthest <= x.head,
		"the relay's cursor of partition %d is at %d (furthest %d), the head at %d", x.p, x.cursor, x.furthest, x.head)
	for _, c := range x.checkpoints {
		x.checkpointBounds.n++
		name := fmt.Sprintf("the checkpoint of %s, generation %d, in partition %d", c.consumer, c.generation, x.p)
		topic, ofTopic := topicRead[c.consumer]
		switch {
		case c.position > x.head:
			x.checkpointBounds.fault("%s is at %d, the head at %d", name, c.position, x.head)
		case ofTopic && c.position != 0 && !x.onTopic[topic].has(c.position):
			x.checkpointBounds.fault("%s is at %d, which is no event of its topic", name, c.position)
		case c.joined && c.position != x.checkpointOf(c.consumer):
			x.checkpointBounds.fault("%s is at %d, another generation's at %d", name, c.position, x.checkpointOf(c.consumer))
		case c.position > 0 && c.joined && c.epoch != x.owner(c.position):
			x.checkpointBounds.fault("%s has epoch %d, its position belongs to %d", name, c.epoch, x.owner(c.position))
		}
	}
}
