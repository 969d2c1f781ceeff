package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func (v *tailed) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.Body.String()
}

// TestTail_ALongReadTellsItsPlace: a heartbeat of the API is passed on, so that no proxy ends the stream and a browser that connects again goes on
// behind the part of the log that was read.
func TestTail_ALongReadTellsItsPlace(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-101")
	f.api = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("after") != "" {
			log.ServeHTTP(w, r)
			return
		}
		if _, err := fmt.Fprint(w, "retry: 1000\n\n: alive\nid: 0-100,1-0\n\n"); err == nil {
			<-r.Context().Done() // it reads on for a long time
		}
	}
	v := &tailed{ResponseRecorder: httptest.NewRecorder()}
	defer f.watch(v, "")()
	awaited(t, "a heartbeat with the place", func() bool { return strings.Contains(v.text(), ": alive\nid: 0-100,1-0\n\n") })
	awaited(t, "the event behind it", func() bool { return len(v.positions()) > 0 })
	checkOnce(t, "viewer", v.positions(), 1)
}
