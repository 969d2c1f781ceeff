package console

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/meterplex/meterplex/http/edge"
)

// Bounds of the form to sign in. It is read before its key is known: no bound of a tenant counts it.
const (
	maxSignIn   = 8 << 10         // bytes: a key of 4 KiB and the address that follows it
	maxNext     = 3 << 10         // bytes of that address, escaped
	maxReading  = 64              // forms that are read at the same time
	readingTime = 5 * time.Second // how long a form may take to arrive
)

// reading are the forms to sign in that are being read, in the order in which they began. One more ends the read of another: a
// client without a key could otherwise keep all others out.
type reading struct {
	mu    sync.Mutex
	forms []*unread
}

// unread is a form that is being read.
type unread struct {
	address string
	end     func() // its read
}

// begin adds a form. leave must be called before its request is answered.
func (r *reading) begin(f *unread) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.forms) >= maxReading {
		r.endOldest()
	}
	r.forms = append(r.forms, f)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.remove(f)
	}
}

// endOldest ends the read of the oldest form of the address that has most of them.
func (r *reading) endOldest() {
	of := map[string]int{}
	for _, f := range r.forms {
		of[f.address]++
	}
	oldest := r.forms[0]
	for _, f := range r.forms {
		if of[f.address] > of[oldest.address] {
			oldest = f
		}
	}
	r.remove(oldest)
	oldest.end()
}

func (r *reading) remove(form *unread) {
	r.forms = slices.DeleteFunc(r.forms, func(f *unread) bool { return f == form })
}

// readSignIn reads the form to sign in.
func (c *Console) readSignIn(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(readingTime))
	leave := c.reading.begin(&unread{edge.AddressOf(r.RemoteAddr), func() { _ = control.SetReadDeadline(time.Now()) }})
	err := parseForm(w, r, maxSignIn)
	leave()
	if err != nil {
		return err // the deadline stays: net/http would wait for the rest of the form before it answers
	}
	_ = control.SetReadDeadline(time.Time{})
	return nil
}
