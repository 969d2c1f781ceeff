package main

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

var update = flag.Bool("update", false, "rewrite the golden report")

func TestReadableReport(t *testing.T) {
	b1 := figureB1()
	b1.Value, b1.Runs, b1.Limit, b1.LimitRuns, b1.Ratio = 45_000, []float64{44_000, 45_000, 46_000}, 50_000,
		[]float64{50_000, 49_000, 51_000}, 0.9
	b1.Latency, b1.LatencyAt = &Latency{20.5, 40, 61.25, 80, 101, 1234}, "of a request, at 31500 events/s"
	b1.CPU = cpuOf(Taken{Service: 9, Postgres: 12, Kafka: 0.5, Load: 0.4, Others: 0.1}, rate{events: 1_000_000, took: 24 * time.Second})
	b1.Written = writtenOf(spent{written: Written{WALBytes: 9e8, Writes: 2000, Transactions: 3500, Syncs: 1900, FullPages: 50_000},
		did: rate{events: 1_000_000, took: 24 * time.Second}})
	b1.Written.Limit = &Written{WALBytes: 700, Writes: 0.001}
	b3 := figureB3()
	b3.Latency, b3.LimitLatency, b3.LatencyAt = &Latency{3, 9, 15, 25, 30, 30_000}, &Latency{1, 2, 4, 8, 9, 30_000}, "at 1000 requests/s"
	b3.Value, b3.Limit = b3.Latency.P99, b3.LimitLatency.P99
	b3.note("beside", "a note")
	b13 := figureB13Explain(10_000_000)
	b13.Reads = []Read{
		{Name: "explanation, first page", Key: tenantKey, Latency: &Latency{P50: 5, P99: 101.5, Max: 130, Count: 199}, Refused: 1},
		{Name: "live figure", Key: operatorKey, Latency: &Latency{P50: 1, P99: 2, Max: 3, Count: 200}, IsLimit: true},
	}
	b13.slowest()
	r := &Report{Date: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Command: "bench all", Seconds: 301,
		Machine: Machine{OS: "linux/amd64", Kernel: "6.1", Processor: "CPU", Cores: 2, MemoryMiB: 24_104, LoadAvg: "0.10 0.20 0.30"},
		Versions: Versions{Commit: "abc", Modified: true, Go: "go1.26", Postgres: "15.18", PostgresSettings: []string{"fsync=on"},
			Kafka: "4.3.1"},
	}
	for _, f := range []Figure{b1, b3, b13} {
		f.judge()
		r.Figures = append(r.Figures, f)
	}
	got := r.Markdown("")
	const golden = "testdata/report.md"
	if *update {
		must.OK(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	if err != nil || got != string(want) {
		t.Errorf("the report differs from %s (-update rewrites it), %v:\n%s", golden, err, got)
	}
	for _, row := range []string{
		"| B13/explain | explanation, first page | tenant | 199 | 1 | 5.00 | 102 | 130 |",
		"| B13/explain | live figure (limit) | operator | 200 | 0 | 1.00 | 2.00 | 3.00 |",
	} {
		if !strings.Contains(got, row) {
			t.Errorf("the report lacks the row %s", row)
		}
	}
	if line := b13.line(); !strings.Contains(line,
		"explanation, first page, tenant's key: p50 5.00, p99 102, max 130 ms of 199; 1 refused") {
		t.Errorf("the printed figure lacks a read: %s", line)
	}
	if r.Figures = r.Figures[:2]; strings.Contains(r.Markdown(""), "Reads at size") {
		t.Error("the report has a section of reads without reads")
	}
	if !strings.Contains(got, "| yes; yes |") || !strings.Contains(got, "| **no** |") {
		t.Error("the report does not show met and missed aims")
	}
}
