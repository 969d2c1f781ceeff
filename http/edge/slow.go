package edge

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxUncharged bounds the requests of HTTP/2 that hold no memory of a tenant or an operator: their key is not known yet, or their answer is
// a refusal or a page for everyone. One connection carries hundreds of them, and each may wait for its client.
const maxUncharged = 1024

// Slow are requests that may wait for their clients and that no bound of a tenant counts, in the order in which they began. One more than
// Most ends another: a client without a key could otherwise keep all others out, or fill the memory.
type Slow struct {
	Most int

	mu   sync.Mutex
	list []*SlowRequest
}

// SlowRequest is a request of an address.
type SlowRequest struct {
	Address string
	End     func() // its wait; it must not block
}

// Join adds a request, and ends another one if there are too many.
func (s *Slow) Join(r *SlowRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) >= s.Most {
		s.endOldest()
	}
	s.list = append(s.list, r)
}

// Leave removes a request, if it is there. It must be called before the request ends.
func (s *Slow) Leave(r *SlowRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(r)
}

// Load returns the number of requests.
func (s *Slow) Load() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.list))
}

// endOldest ends the oldest request of the address that has most of them.
func (s *Slow) endOldest() {
	of := map[string]int{}
	for _, r := range s.list {
		of[r.Address]++
	}
	oldest := s.list[0]
	for _, r := range s.list {
		if of[r.Address] > of[oldest.Address] {
			oldest = r
		}
	}
	s.remove(oldest)
	oldest.End()
}

func (s *Slow) remove(request *SlowRequest) {
	s.list = slices.DeleteFunc(s.list, func(r *SlowRequest) bool { return r == request })
}

// await counts a request of HTTP/2 among those that hold no memory, until it is charged. Over HTTP/1 a request has a connection of its own,
// and these are bounded. end must be called behind the answer, before the charge ends.
func (e *Edge) await(x *Exchange, w http.ResponseWriter, r *http.Request) (bounded *http.Request, end func()) {
	if r.ProtoMajor < 2 {
		return r, func() {}
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		_ = r.Body.Close() // no handler reads the body: its data is dropped on arrival
	}
	ctx, cancel := context.WithCancel(r.Context())
	control := http.NewResponseController(w)
	x.uncharged = &SlowRequest{AddressOf(r.RemoteAddr), func() {
		cancel()
		_ = control.SetWriteDeadline(time.Now())
	}}
	e.uncharged.Join(x.uncharged)
	return r.WithContext(ctx), func() {
		if x.charge.Held() == 0 && x.answer.status != 0 {
			_ = control.Flush() // else the end of the answer would wait below the handler, uncounted
		}
		e.uncharged.Leave(x.uncharged)
		cancel()
	}
}
