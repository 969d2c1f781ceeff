package queue

import "sync"

// Memory is a queue without files: its events end with the process.
type Memory struct {
	mu      sync.Mutex
	events  [][]byte
	bytes   int64
	settled int64
}

// Append stores all events.
func (q *Memory) Append(events [][]byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range events {
		q.bytes += int64(headSize + len(e))
	}
	q.events = append(q.events, events...)
	return len(events), nil
}

// Read returns the next events that are not settled.
func (q *Memory) Read(most, mostBytes int) ([][]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.events) && n < most && (n == 0 || size+len(q.events[n]) <= mostBytes) {
		size += len(q.events[n])
		n++
	}
	return q.events[:n:n], nil
}

// Settle removes the first of the events of the last Read.
func (q *Memory) Settle(events [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = q.events[len(events):]
	q.settled += int64(len(events))
	for _, e := range events {
		q.bytes -= int64(headSize + len(e))
	}
}

// Size returns the number and the bytes of the events that are not settled.
func (q *Memory) Size() (events int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.events), q.bytes
}

// Settled returns how many events were settled.
func (q *Memory) Settled() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.settled
}

// Peek returns the first event that is not settled.
func (q *Memory) Peek() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil
	}
	return q.events[0]
}

// Lost is false: the queue has one owner.
func (q *Memory) Lost() bool { return false }

// Renew and Close have no effect.
func (q *Memory) Renew() {}
func (q *Memory) Close() {}
