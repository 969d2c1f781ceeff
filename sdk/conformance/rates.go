package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Rates measures each SDK: the rate of record with 64 callers and an fsync, memory and open files with all events in the queue, and the
// rate of sending them. Beside them are a plain client that posts prepared batches of 1,000 one after the other, and other load generators.
// It returns a table in Markdown.
func (s *Suite) Rates(t *testing.T, events int, others map[string]func(t testing.TB, tenant, key string) float64) string {
	var b strings.Builder
	s.Service.prepare(t)
	plain := s.plainRate(t, events)
	fmt.Fprintf(&b, "| client | record, events/s | send, events/s | of a plain client | memory before, MiB | memory with the queue, MiB "+
		"| open files before, with the queue |\n|---|---|---|---|---|---|---|\n")
	fmt.Fprintf(&b, "| plain: prepared batches, one connection | – | %.0f | 1.00 | – | – | – |\n", plain)
	for name, rate := range others {
		x := s.Service.newTenant(t)
		got := rate(t, x.id, x.key)
		fmt.Fprintf(&b, "| %s | – | %.0f | %.2f | – | – | – |\n", name, got, got/plain)
	}
	for _, l := range s.Languages {
		r := s.rateOf(t, l, events)
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.2f | %d | %d | %d, %d |\n", l.Name, r.record, r.send, r.send/plain, r.empty, r.full,
			r.filesEmpty, r.filesFull)
	}
	return b.String()
}

type rates struct {
	record, send                       float64
	empty, full, filesEmpty, filesFull int
}

func (s *Suite) rateOf(t *testing.T, l Language, events int) (r rates) {
	t.Helper()
	x := newTrial(t, s, l, false)
	c := x.openAt(settings{url: closedPort(x)}, object{"maxAgeMs": 1000})
	pid := c.cmd.Process.Pid
	c.must("load", object{"events": 100, "callers": 64, "prefix": "warm", "feature": "sdk_calls"}, nil)
	r.empty, r.filesEmpty = residentMB(pid), openFiles(pid)
	var took struct{ MS float64 }
	c.must("load", object{"events": events, "callers": 64, "prefix": "load", "feature": "sdk_calls"}, &took)
	r.record = float64(events) / took.MS * 1000
	r.full, r.filesFull = residentMB(pid), openFiles(pid)
	c.kill()
	began := time.Now()
	c = x.openAt(settings{url: s.Service.URL}, object{"maxAgeMs": 1000})
	c.sent()
	r.send = float64(events+100) / time.Since(began).Seconds()
	var counted int64
	for end := time.Now().Add(patience); counted != int64(events)+100 && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var page struct{ Data []struct{ EventCount int64 } }
		s.Service.ask(x, http.MethodGet, "/usage/aggregates?tenantId="+x.tenant.id, nil, &page)
		if counted = 0; len(page.Data) == 1 {
			counted = page.Data[0].EventCount
		}
	}
	if counted != int64(events)+100 {
		x.Errorf("%d events are counted, want %d", counted, events+100)
	}
	return r
}

// plainRate is the rate of the simplest client: batches that are encoded before, one at a time, without compression.
func (s *Suite) plainRate(t *testing.T, events int) float64 {
	t.Helper()
	x := s.Service.newTenant(t)
	var bodies [][]byte
	for n := 0; n < events; n += 1000 {
		list, _ := numbered(fmt.Sprint("plain-", n), min(1000, events-n))
		body, err := json.Marshal(object{"events": list})
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	began := time.Now()
	for _, body := range bodies {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Service.URL+"/api/v1/usage/events", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+x.key)
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var counts struct{ Accepted, Rejected int }
		err = json.NewDecoder(answer.Body).Decode(&counts)
		_ = answer.Body.Close()
		if err != nil || counts.Rejected > 0 || counts.Accepted == 0 {
			t.Fatalf("%d %+v %v", answer.StatusCode, counts, err)
		}
	}
	return float64(events) / time.Since(began).Seconds()
}
