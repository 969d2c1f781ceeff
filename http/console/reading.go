package console

import (
	"net/http"
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

// readSignIn reads the form to sign in.
func (c *Console) readSignIn(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(readingTime))
	form := &edge.SlowRequest{Address: edge.AddressOf(r.RemoteAddr), End: func() { _ = control.SetReadDeadline(time.Now()) }}
	c.reading.Join(form)
	err := parseForm(w, r, maxSignIn)
	c.reading.Leave(form)
	if err != nil {
		return err // the deadline stays: net/http would wait for the rest of the form before it answers
	}
	_ = control.SetReadDeadline(time.Time{})
	return nil
}
