package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

func targetOf(n int) *target {
	t := &target{feature: "f"}
	for i := range n {
		t.tenants = append(t.tenants, tenant{secret: strings.Repeat("k", 3+i%3) + string(rune('a'+i%26))})
	}
	return t
}

// answering is a server that accepts usage of the tenants of targetOf, and refuses every third
// request if refuse is set.
func answering(t *testing.T, refuse bool) (url string, keys map[string]int) {
	var mu sync.Mutex
	keys = map[string]int{}
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Events []struct{ EventID string } }
		raw, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(raw, &body); err != nil || len(body.Events) != 2 {
			t.Errorf("a body with %d events: %v", len(body.Events), err)
		}
		mu.Lock()
		defer mu.Unlock()
		keys[r.Header.Get("Authorization")]++
		if n++; refuse && n%3 == 0 {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "{}", http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"accepted":2,"duplicates":0,"events":[{"position":"3-4"}]}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, keys
}

// A shorter key leaves no byte of a longer one behind.
func TestMessagesCarryTheKeyOfEachTenantWhole(t *testing.T) {
	all := targetOf(9)
	url, keys := answering(t, false)
	all.urls = []string{url}
	l, err := all.newIngestLoad(t.Context(), 1, 2, time.Now())
	must.OK(t, err)
	defer l.close()
	for range 18 {
		if _, err := l.send(0); err != nil {
			t.Fatal(err)
		}
	}
	for _, one := range all.tenants {
		if keys["Bearer "+one.secret] != 2 {
			t.Errorf("the key %q arrived %d times: %v", one.secret, keys["Bearer "+one.secret], keys)
		}
	}
}

func TestRefusalsAreCountedAndEndNothing(t *testing.T) {
	all := targetOf(1)
	url, _ := answering(t, true)
	all.urls = []string{url}
	l, err := all.newIngestLoad(t.Context(), 1, 2, time.Now())
	must.OK(t, err)
	defer l.close()
	h, did, err := (&open{perSecond: 1000, sends: 30, clients: 1, send: l.sendOne}).run(t.Context())
	if err != nil || did.refused != 10 || h.TotalCount() != 20 {
		t.Errorf("open: %d refused, %d latencies, %v", did.refused, h.TotalCount(), err)
	}
	did = rate{}
	for tries := 0; tries < 50 && (did.refused == 0 || did.events == 0); tries++ { // every third request is refused
		some, err := closed(t.Context(), 1, 100*time.Millisecond, l.send)
		if did = did.plus(some); err != nil {
			t.Fatal(err)
		}
	}
	if did.refused == 0 || did.events == 0 || did.events%2 != 0 {
		t.Errorf("closed: %+v", did)
	}
}
