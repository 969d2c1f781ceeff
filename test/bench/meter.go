package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// meter reads the CPU time and memory of processes from /proc. On a system without
// /proc all values are zero.
type meter struct {
	postgres, kafka, self int
	service               atomic.Pointer[[]int] // one process for each instance
}

func (m *meter) setService(pids ...int) { m.service.Store(&pids) }

func (m *meter) instances() []int {
	if pids := m.service.Load(); pids != nil {
		return *pids
	}
	return nil
}

// Taken is CPU time in seconds by process: the service, all of PostgreSQL's processes, Kafka, this
// load generator, and all other processes.
type Taken struct {
	Service  float64 `json:"service"`
	Postgres float64 `json:"postgres"`
	Kafka    float64 `json:"kafka"`
	Load     float64 `json:"load"`
	Others   float64 `json:"others"`
}

// ours is the time of the service and its servers.
func (t Taken) ours() float64 { return t.Service + t.Postgres + t.Kafka }

func (t Taken) minus(o Taken) Taken {
	return Taken{t.Service - o.Service, t.Postgres - o.Postgres, t.Kafka - o.Kafka, t.Load - o.Load, max(0, t.Others-o.Others)}
}

// Memory is resident memory in MiB. PostgreSQL's shared pages count once.
type Memory struct {
	Service     float64 `json:"service"`
	ServicePeak float64 `json:"servicePeak"`
	Postgres    float64 `json:"postgres"`
	Kafka       float64 `json:"kafka"`
	Load        float64 `json:"load"`
}

// cpuTime is the CPU time since each process began.
func (m *meter) cpuTime() Taken {
	list := processes()
	t := Taken{
		Postgres: tree(list, m.postgres),
		Kafka:    list[m.kafka].own, Load: list[m.self].own,
	}
	for _, pid := range m.instances() {
		t.Service += list[pid].own
	}
	t.Others = busy() - t.Service - t.Postgres - t.Kafka - t.Load
	return t
}

func (m *meter) memory() Memory {
	mem := Memory{Kafka: status(m.kafka, "VmRSS"), Load: status(m.self, "VmRSS")}
	for _, pid := range m.instances() {
		mem.Service += status(pid, "VmRSS")
		mem.ServicePeak += status(pid, "VmHWM")
	}
	for pid, p := range processes() {
		if pid == m.postgres || p.parent == m.postgres {
			mem.Postgres += proportional(pid)
		}
	}
	return mem
}

// process is a line of /proc/PID/stat: its own CPU seconds, and those of its ended children.
type process struct {
	parent    int
	own, gone float64
}

// ticksPerSecond is the unit in which Linux reports CPU time to programs.
const ticksPerSecond = 100

func processes() map[int]process {
	list := map[int]process{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		pid, nerr := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && nerr == nil { // it may have ended
			list[pid] = parseStat(raw)
		}
	}
	return list
}

// parseStat reads the fields behind the name, which may contain any character (proc(5)).
func parseStat(raw []byte) process {
	_, rest, _ := bytes.Cut(raw[max(0, bytes.LastIndexByte(raw, ')')):], []byte(") "))
	fields := strings.Fields(string(rest))
	field := func(number int) float64 { // as proc(5) counts them
		if i := number - 3; i < len(fields) {
			n, _ := strconv.ParseFloat(fields[i], 64)
			return n
		}
		return 0
	}
	return process{
		parent: int(field(4)),
		own:    (field(14) + field(15)) / ticksPerSecond,
		gone:   (field(16) + field(17)) / ticksPerSecond,
	}
}

// tree sums a process and its children, including ended ones.
func tree(list map[int]process, root int) float64 {
	sum := list[root].own + list[root].gone
	for _, p := range list {
		if p.parent == root {
			sum += p.own
		}
	}
	return sum
}

// busy is the machine's CPU time that was not idle.
func busy() float64 {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	sum := 0.0
	for i, f := range strings.Fields(line) {
		// user nice system idle iowait irq softirq steal; guests are in user.
		if n, err := strconv.ParseFloat(f, 64); err == nil && i != 4 && i != 5 && i < 8 {
			sum += n
		}
	}
	return sum / ticksPerSecond
}

// status reads a size from /proc/PID/status, in MiB.
func status(pid int, name string) float64 {
	return sizeIn(fmt.Sprintf("/proc/%d/status", pid), name)
}

// proportional is a process's memory, with its share of the pages that it shares with others.
func proportional(pid int) float64 { return sizeIn(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss") }

func sizeIn(file, name string) float64 {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n / 1024
		}
	}
	return 0
}
