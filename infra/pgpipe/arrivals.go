package pgpipe

import "sync"

// Arrivals tells the subscribers of a process which topics its publishers have stored rows in. The zero
// value is ready.
type Arrivals struct {
	mu   sync.Mutex
	next map[string]chan struct{} // by topic, closed at its next rows
}

// of returns a channel that is closed once rows of the topic are committed after the call.
func (a *Arrivals) of(topic string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	next, ok := a.next[topic]
	if !ok {
		if a.next == nil {
			a.next = map[string]chan struct{}{}
		}
		next = make(chan struct{})
		a.next[topic] = next
	}
	return next
}

// committed announces rows of the topic.
func (a *Arrivals) committed(topic string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if next, ok := a.next[topic]; ok {
		close(next)
		delete(a.next, topic)
	}
}
