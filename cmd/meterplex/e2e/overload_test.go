package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/tier"
)

// Clients send more than can be recorded and retry far sooner than Retry-After allows.
// The memory of the service at the beginning of the overload is compared with that at its end.
func TestOverloadIsRefusedEarlyAndPasses(t *testing.T) {
	tier.AtSize(t)
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	o := &overload{w: w, at: i, tenants: w.createTenants(i, 4), batches: map[string]batchOutcome{}, latencies: map[int][]time.Duration{}, answers: map[string]int{}}
	stop := o.start(16, 1000) // of each tenant
	stopSmall := o.start(2, 1)
	stopReads := o.read(2)
	within(t, "requests are accepted and refused", func(context.Context) (bool, string) {
		taken, refused := o.counts()
		return taken > 30_000 && refused > 100, fmt.Sprint(taken, " events accepted, ", refused, " requests refused")
	})
	o.sampleMemory(tier.Duration(t, 0, time.Minute))
	stop()
	stopSmall()
	stopReads()
	o.checkRecovery()
	o.report()
	o.checkMemory()
	o.checkLog()
	o.awaitFigures()
	i.stop()
}

// overload holds the answers of many clients. A batch counts as a whole, to save memory.
type overload struct {
	w       *deployment
	at      *instance
	tenants []*tenant
	clients int

	mu        sync.Mutex
	batches   map[string]batchOutcome
	latencies map[int][]time.Duration // latencies of accepted batches, by size
	answers   map[string]int          // by status and code
	events    int
	refused   int
	rss       []int // KiB, each second
	began     time.Time
}

type batchOutcome struct {
	size              int
	accepted, unknown bool // else refused
}

// start runs n clients for each tenant with batches of one size.
func (o *overload) start(n, size int) (stop func()) {
	ctx, cancel := context.WithCancel(o.w.t.Context())
	var all sync.WaitGroup
	for _, x := range o.tenants {
		for range n {
			o.clients++
			name := fmt.Sprint("c", o.clients)
			all.Go(func() {
				for turn := 0; ctx.Err() == nil; turn++ {
					if !o.send(x, fmt.Sprint(name, "-b", turn), size) {
						time.Sleep(50 * time.Millisecond) // far less than Retry-After
					}
				}
			})
		}
	}
	o.w.t.Cleanup(func() { cancel(); all.Wait() })
	return func() { cancel(); all.Wait() }
}

// send sends one batch once and reports whether it was accepted.
func (o *overload) send(x *tenant, name string, size int) bool {
	var body bytes.Buffer
	now := time.Now().UTC().Format(time.RFC3339Nano)
	body.WriteString(`{"events":[`)
	for n := range size {
		if n > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"eventId":"%s-e%d","feature":"api_calls","amount":1,"timestamp":%q}`, name, n, now)
	}
	body.WriteString(`]}`)
	start := time.Now()
	status := o.ask(x, http.MethodPost, "/api/v1/usage/events", &body, func(answer []byte) {
		if got := bytes.Count(answer, []byte(`"status":"accepted"`)); got != size {
			o.w.t.Errorf("%d of %d events were accepted: %.300s", got, size, answer)
		}
	})
	took := time.Since(start)
	o.mu.Lock()
	defer o.mu.Unlock()
	fate := batchOutcome{size: size, accepted: status == http.StatusAccepted, unknown: status == 0}
	o.batches[name] = fate
	if fate.accepted {
		o.latencies[size] = append(o.latencies[size], took)
		o.events += size
	}
	return fate.accepted
}

// ask makes a request and checks the form of the answer. It returns 0 without an answer.
func (o *overload) ask(x *tenant, method, path string, body io.Reader, good func([]byte)) (status int) {
	r, err := http.NewRequest(method, o.at.url()+path, body)
	if err != nil {
		o.w.t.Error(err)
		return 0
	}
	r.Header.Set("Authorization", "Bearer "+x.key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := o.w.http.Do(r)
	what := method + " "
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.answers[what]++
	}()
	if err != nil {
		what += "no answer"
		return 0
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil {
		what += "no whole answer"
		return 0
	}
	what += strconv.Itoa(answer.StatusCode)
	switch answer.StatusCode {
	case http.StatusOK, http.StatusAccepted:
		good(got)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		var p struct {
			Type, Title, Detail, Instance, Code, TraceID string
			Status                                       int
		}
		seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
		if err != nil || seconds < 1 || json.Unmarshal(got, &p) != nil || p.Code == "" || p.Status != answer.StatusCode ||
			p.Type == "" || p.Title == "" || p.Detail == "" || p.Instance == "" || answer.Header.Get("Content-Type") != "application/problem+json" {
			o.w.t.Errorf("malformed refusal: %v %s", answer.Header, got)
		}
		what += " " + p.Code
		o.mu.Lock()
		o.refused++
		o.mu.Unlock()
	default:
		o.w.t.Errorf("unexpected answer: %d %.300s", answer.StatusCode, got)
	}
	return answer.StatusCode
}

// read runs n clients that read entitlements.
func (o *overload) read(n int) (stop func()) {
	ctx, cancel := context.WithCancel(o.w.t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				o.ask(o.tenants[turn%len(o.tenants)], http.MethodGet, "/api/v1/entitlements", nil, func([]byte) {})
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

func (o *overload) counts() (events, refused int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.events, o.refused
}

// sampleMemory records the memory of the service each second, for the given time.
func (o *overload) sampleMemory(long time.Duration) {
	o.began = time.Now()
	for n := 0; time.Since(o.began) < long; n++ {
		time.Sleep(time.Second)
		o.rss = append(o.rss, o.at.memory(o.w.t, "VmRSS"))
		if n%30 == 29 {
			events, refused := o.counts()
			o.w.t.Logf("after %s: %d MiB, %d events accepted, %d requests refused, %v unpublished", time.Since(o.began).Round(time.Second),
				o.rss[n]>>10, events, refused, o.w.metric(o.at, "meterplex_outbox_unpublished_count"))
		}
	}
}

// memory returns the resident memory of the process in KiB: the present one (VmRSS) or the highest so far (VmHWM).
func (i *instance) memory(t testing.TB, of string) (kib int) {
	t.Helper()
	i.mu.Lock()
	pid := i.run.cmd.Process.Pid
	i.mu.Unlock()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if os.IsNotExist(err) {
		t.Skip("no /proc: the memory of a process is unknown")
	}
	_, rest, _ := strings.Cut(string(text), of+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// checkRecovery checks that after the load usage is accepted at once and all queues are empty.
func (o *overload) checkRecovery() {
	o.w.t.Helper()
	// The backlog may be at its bound until the relay has published a part of it.
	within(o.w.t, "usage sent after the overload is accepted", func(context.Context) (bool, string) {
		return o.send(o.tenants[0], "after", 1), "refused"
	})
	for _, gauge := range []string{"ingest_queue_rows", "ingest_queue_bytes", "http_request_bytes", `http_requests_in_flight{kind="ingest"}`} {
		within(o.w.t, gauge+" is 0", func(context.Context) (bool, string) {
			v := o.w.metric(o.at, "meterplex_"+gauge)
			return v == 0, fmt.Sprint(v)
		})
	}
}

func (o *overload) report() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w.t.Logf("answers: %v", o.answers)
	for size, took := range o.latencies {
		slices.Sort(took)
		o.w.t.Logf("%d batches of %d accepted: p50 %s, p99 %s, max %s", len(took), size, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	}
	sent, refused := 0, 0.0
	for what, n := range o.answers {
		if strings.Contains(what, " 429 ") || strings.Contains(what, " 503 ") {
			sent += n
		}
	}
	awaitFreshMetrics()
	for _, reason := range []string{"requests", "connections", "tenant", "memory", "queue", "database", "rate", "backlog", "behind"} {
		n := o.w.metric(o.at, `meterplex_http_refused_total{reason="`+reason+`"}`)
		if refused += n; n > 0 {
			o.w.t.Logf("%.0f requests were refused with reason %s", n, reason)
		}
	}
	if sent == 0 || refused < float64(sent) {
		o.w.t.Errorf("%d requests were refused, the metric counts %.0f", sent, refused)
	}
}

// mostMemory is generous: the memory of a full queue, full bodies and the pipe's
// buffers, twice for the garbage collector.
const mostMemory = 768 << 10 // KiB

func (o *overload) checkMemory() {
	most := o.at.memory(o.w.t, "VmHWM")
	if most > mostMemory {
		o.w.t.Errorf("the service used %d MiB", most>>10)
	}
	mean := func(list []int) (sum int) {
		for _, v := range list {
			sum += v
		}
		return sum / len(list)
	}
	part := len(o.rss) / 5
	early, late := mean(o.rss[part:2*part]), mean(o.rss[len(o.rss)-part:])
	o.w.t.Logf("memory: %d MiB in the second fifth of the time, %d MiB in the last, %d MiB at most", early>>10, late>>10, most>>10)
	if late > early*13/10 {
		o.w.t.Error("memory grows")
	}
}

// checkLog checks that accepted batches are stored whole and refused batches not at all.
func (o *overload) checkLog() {
	o.w.t.Helper()
	found, err := o.w.sql.Query(o.w.t.Context(), `SELECT substring(dedupe_key FROM '^u/(.*)-e[0-9]+$'), count(*) FROM event_log_rows WHERE subject = 1 GROUP BY 1`)
	if err != nil {
		o.w.t.Fatal(err)
	}
	var name string
	var n, total int
	_, err = pgx.ForEachRow(found, []any{&name, &n}, func() error {
		total += n
		fate, sent := o.batches[name]
		if !sent || !fate.accepted && !fate.unknown || n != fate.size {
			o.w.t.Errorf("%d events of %s are in the log: %+v", n, name, fate)
		}
		if fate.unknown {
			o.events += n
		}
		delete(o.batches, name)
		return nil
	})
	if err != nil {
		o.w.t.Fatal(err)
	}
	for name, fate := range o.batches {
		if fate.accepted {
			o.w.t.Errorf("%s was accepted and is not in the log", name)
		}
	}
	if total != o.events {
		o.w.t.Errorf("%d events are in the log, %d were accepted", total, o.events)
	}
	o.w.t.Logf("%d events accepted, and in the log", total)
}

// awaitFigures waits until the consumers have folded the backlog and the figures equal the accepted events.
func (o *overload) awaitFigures() {
	start, counted := time.Now(), -1
	for counted < o.events {
		before := counted
		within(o.w.t, "the figures count more events", func(ctx context.Context) (bool, string) {
			err := o.w.sql.QueryRow(ctx, `SELECT coalesce(sum(event_count), 0)::bigint FROM usage_aggregates`).Scan(&counted)
			return err == nil && counted > before, fmt.Sprint(counted, " of ", o.events, " ", err)
		})
	}
	if counted > o.events {
		o.w.t.Fatalf("%d events are counted, %d were accepted", counted, o.events)
	}
	o.w.t.Logf("the figures were complete %s after the load", time.Since(start).Round(time.Second))
}
