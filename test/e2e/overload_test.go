package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// Clients send more than can be recorded and retry far sooner than Retry-After allows. Some requests are refused before they begin, the
// memory of the service does not grow, and afterwards the queues are empty and the backlog drains.
func TestOverloadIsRefusedEarlyAndPasses(t *testing.T) {
	tier.AtSize(t)
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 4)
	at := func(int) string { return i.url() }
	large, small := w.startLoad(tenants, 16, mix{batch: 1000}, at), w.startLoad(tenants, 2, mix{batch: 1}, at)
	within(t, "requests are accepted and refused", func(context.Context) (bool, string) {
		accepted, refused := large.acked(), large.refused()+small.refused()
		return accepted > 30_000 && refused > 100, fmt.Sprint(accepted, " events accepted, ", refused, " requests refused")
	})
	var resident []int // KiB, each second
	for began := time.Now(); time.Since(began) < tier.Duration(t, 0, time.Minute); time.Sleep(time.Second) {
		resident = append(resident, memoryOf(t, i, "VmRSS"))
	}
	refused := large.refused() + small.refused()
	large.cancel()
	small.stop()
	large.stop()
	w.settle(i, tenants...)
	awaitFreshMetrics()
	counted := metricsOf(w, i.url(), func(series string) bool { return strings.HasPrefix(series, "meterplex_http_refused_total{") })
	if counted < float64(refused) {
		t.Errorf("%d requests were refused, the metric counts %.0f", refused, counted)
	}
	for _, gauge := range []string{"ingest_queue_rows", "ingest_queue_bytes", `http_request_bytes{kind="ingest"}`,
		`http_requests_in_flight{kind="ingest"}`} {
		within(t, gauge+" is 0", func(context.Context) (bool, string) {
			v := w.metric(i, "meterplex_"+gauge)
			return v == 0, fmt.Sprint(v)
		})
	}
	part := len(resident) / 5
	early, late, most := mean(resident[part:2*part]), mean(resident[len(resident)-part:]), memoryOf(t, i, "VmHWM")
	t.Logf("memory: %d MiB in the second fifth of the time, %d MiB in the last, %d MiB at most", early>>10, late>>10, most>>10)
	// Generous: the memory of a full queue, full bodies and the pipe's buffers, twice for the garbage collector.
	if late > early*13/10 || most > 768<<10 {
		t.Errorf("memory grows from %d to %d KiB, and was %d", early, late, most)
	}
	for counted := -1; counted < large.acked(); { // as long as there is progress
		before := counted
		within(t, "the figures count more events", func(context.Context) (bool, string) {
			counted = w.count(`SELECT coalesce(sum(event_count), 0)::bigint FROM usage_aggregates`)
			return counted > before, fmt.Sprint(counted)
		})
	}
	w.finish()
}

func mean(list []int) (sum int) {
	for _, v := range list {
		sum += v
	}
	return sum / max(1, len(list))
}

// memoryOf returns the resident memory of the process in KiB: the present one (VmRSS) or the highest so far (VmHWM).
func memoryOf(t testing.TB, i *instance, of string) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.pid()))
	if os.IsNotExist(err) {
		t.Skip("no /proc: the memory of a process is unknown")
	}
	_, rest, _ := strings.Cut(string(text), of+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
