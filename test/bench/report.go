package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is the result of a run: the figures, the machine and the versions.
type Report struct {
	Date     time.Time `json:"date"`
	Command  string    `json:"command"`
	Quick    bool      `json:"quick"`
	Seconds  float64   `json:"seconds"`
	Machine  Machine   `json:"machine"`
	Versions Versions  `json:"versions"`
	Figures  []Figure  `json:"figures"`
	Curves   []Curve   `json:"curves,omitempty"`
}

// Machine is the machine of the run: load, service, PostgreSQL and Kafka share it.
type Machine struct {
	OS        string  `json:"os"`
	Kernel    string  `json:"kernel"`
	Processor string  `json:"processor"`
	Cores     int     `json:"cores"`
	MemoryMiB float64 `json:"memoryMiB"`
	LoadAvg   string  `json:"loadAverageBefore"` // of the machine before the run: other programs
}

// Versions are those of the build and of the servers.
type Versions struct {
	Commit           string   `json:"commit"`
	Modified         bool     `json:"modified"` // the build had uncommitted changes
	Go               string   `json:"go"`
	Postgres         string   `json:"postgres"`
	PostgresSettings []string `json:"postgresSettings"`
	Kafka            string   `json:"kafka"`
}

// Figure is one measured value with its raw limit.
type Figure struct {
	ID        string    `json:"id"`
	What      string    `json:"what"`
	Unit      string    `json:"unit"`
	Value     float64   `json:"value"` // the median if there are several runs
	Runs      []float64 `json:"runs,omitempty"`
	LimitIs   string    `json:"limitIs,omitempty"`
	Limit     float64   `json:"limit,omitempty"`
	LimitRuns []float64 `json:"limitRuns,omitempty"`
	Ratio     float64   `json:"ratio,omitempty"` // of value and limit: the median of the pairs

	Latency      *Latency `json:"latency,omitempty"`
	LatencyAt    string   `json:"latencyAt,omitempty"`
	LimitLatency *Latency `json:"limitLatency,omitempty"`
	Reads        []Read   `json:"reads,omitempty"`

	CPU     CPU    `json:"cpu"`
	Written Writes `json:"database"`
	Memory  Memory `json:"memoryMiB"`
	Notes   []Note `json:"notes,omitempty"`
	Aims    []Aim  `json:"aims,omitempty"`

	aims     []aim
	heldHead time.Duration
}

// Latency is the latency of an open-loop load in milliseconds, counted from when each send was due.
type Latency struct {
	P50   float64 `json:"p50ms"`
	P90   float64 `json:"p90ms"`
	P99   float64 `json:"p99ms"`
	P999  float64 `json:"p999ms"`
	Max   float64 `json:"maxms"`
	Count int64   `json:"count"`
}

func latencyOf(h *hdrhistogram.Histogram) *Latency {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return &Latency{
		P50: ms(h.ValueAtQuantile(50)), P90: ms(h.ValueAtQuantile(90)), P99: ms(h.ValueAtQuantile(99)),
		P999: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max()), Count: h.TotalCount(),
	}
}

func (l *Latency) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, p99.9 %s, max %s ms", short(l.P50), short(l.P90), short(l.P99), short(l.P999), short(l.Max))
}

// CPU is the CPU time of a measurement: seconds by process, and microseconds for each event.
type CPU struct {
	Seconds    Taken   `json:"seconds"`
	Elapsed    float64 `json:"elapsed"`
	Events     int     `json:"events"`
	MicrosEach Taken   `json:"microsecondsEach"`
}

func cpuOf(t Taken, r rate) CPU {
	return CPU{t, r.took.Seconds(), r.events, t.times(1e6 / max(1, float64(r.events)))}
}

func (t Taken) plus(o Taken) Taken {
	return Taken{t.Service + o.Service, t.Postgres + o.Postgres, t.Kafka + o.Kafka, t.Load + o.Load, t.Others + o.Others}
}

func (t Taken) times(by float64) Taken {
	return Taken{t.Service * by, t.Postgres * by, t.Kafka * by, t.Load * by, t.Others * by}
}

func (m Memory) most(o Memory) Memory {
	return Memory{max(m.Service, o.Service), max(m.ServicePeak, o.ServicePeak), max(m.Postgres, o.Postgres), max(m.Kafka, o.Kafka),
		max(m.Load, o.Load)}
}

// Note is another observation of a figure's measurement.
type Note struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

func (f *Figure) note(name, text string) { f.Notes = append(f.Notes, Note{name, text}) }

// refused notes the refused requests.
func (f *Figure) refused(did rate) {
	if did.refused > 0 {
		f.note("refused", fmt.Sprintf("%d requests were answered 429 or 503 and are not in the other figures", did.refused))
	}
}

// Aim is a target of a figure, and whether the figure met it.
type Aim struct {
	Text string `json:"text"`
	Met  bool   `json:"met"`
}

// aim is an Aim before the figure is measured.
type aim struct {
	text string
	met  func(f *Figure) bool
}

func (f *Figure) judge() {
	for _, a := range f.aims {
		f.Aims = append(f.Aims, Aim{a.text, a.met(f)})
	}
}

func newReport(cfg *Config, now time.Time) *Report {
	r := &Report{Date: now.UTC().Truncate(time.Second), Command: cfg.Command, Quick: cfg.Quick}
	r.Machine = Machine{
		OS: runtime.GOOS + "/" + runtime.GOARCH, Kernel: firstLine("/proc/sys/kernel/osrelease"), Processor: processor(),
		Cores: runtime.NumCPU(), MemoryMiB: sizeIn("/proc/meminfo", "MemTotal"), LoadAvg: firstLine("/proc/loadavg"),
	}
	r.Versions = Versions{Commit: "unknown", Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				r.Versions.Commit = s.Value
			case "vcs.modified":
				r.Versions.Modified = s.Value == "true"
			}
		}
	}
	if r.Versions.Commit == "unknown" {
		r.Versions.Commit, r.Versions.Modified = workingTree()
	}
	return r
}

// workingTree asks git for the most likely commit of a build without the toolchain's stamp.
func workingTree() (commit string, modified bool) {
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "unknown", false
	}
	changes, err := exec.Command("git", "status", "--porcelain", "--", "*.go", "*.sql", "go.mod").Output()
	return strings.TrimSpace(string(head)), err != nil || len(changes) > 0
}

func firstLine(file string) string {
	raw, _ := os.ReadFile(file)
	line, _, _ := strings.Cut(string(raw), "\n")
	return line
}

func processor() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if name, found := strings.CutPrefix(line, "model name"); found {
			return strings.Trim(name, "\t :\n")
		}
	}
	return ""
}
