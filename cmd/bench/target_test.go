package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
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

func TestPictureIsXMLWithEveryPoint(t *testing.T) {
	l := func(p50 float64) *Latency { return &Latency{P50: p50, P99: 3 * p50} }
	r := &Report{Curves: []Curve{
		{Panel: "a < b", Name: "one", Points: []Point{{100, l(1)}, {1000, l(20)}}},
		{Panel: "a < b", Name: "two", Points: []Point{{5000, l(0.4)}}},
		{Panel: "other", Name: "three", Points: []Point{{7, l(7)}}},
		{Panel: "none", Name: "four"},
	}}
	got := r.Picture()
	d := xml.NewDecoder(strings.NewReader(got))
	circles := 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, got)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			circles++
			for _, a := range e.Attr {
				if bytes.Contains([]byte(a.Value), []byte("NaN")) || bytes.Contains([]byte(a.Value), []byte("Inf")) {
					t.Errorf("%s=%q", a.Name.Local, a.Value)
				}
			}
		}
	}
	if circles != 8 { // p50 and p99 of four points
		t.Errorf("%d points of 8", circles)
	}
	if (&Report{}).Picture() != "" {
		t.Error("a picture without curves")
	}
}
