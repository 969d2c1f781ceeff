// Package newest holds the newest committed events of a process in memory: a Tail for its relay, a Recent for its
// consumers. Both are caches that may miss any event; the log in the database has all of them.
package newest

import "github.com/meterplex/meterplex/events"

// heldEvent is the memory of an event without its payload.
const heldEvent = 500

// memoryOf is the memory of an event, in bytes.
func memoryOf(e *events.Envelope) int { return heldEvent + len(e.Payload) }

// Events are the caches of the newest committed events of a process, of which each may be nil.
type Events struct {
	Tail   *Tail
	Recent *Recent
}

// Put offers committed events to the caches, and returns of how many a consumer of their topic is told. Each has memory of its own: a part of a
// larger list would keep all of it.
func (n Events) Put(list []*events.Envelope) (told int) {
	for _, e := range list {
		event := func() *events.Envelope { return e }
		n.Tail.Offer(e.Place(), event)
		if n.Recent.Offer(e.Place(), e.Subject.Topic(), e.Subject, event) {
			told++
		}
	}
	return told
}
