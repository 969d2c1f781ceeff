package e2e

import (
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cpuTimes is the processors' time at a moment, in ticks: in total, idle, and of this
// process and its descendants.
type cpuTimes struct{ all, idle, own float64 }

func readCPUTimes() (m cpuTimes) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{} // not Linux: assume no other programs
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for n, text := range strings.Fields(line) {
		ticks, _ := strconv.ParseFloat(text, 64)
		if n == 0 || n > 8 { // guests are in user already
			continue
		}
		m.all += ticks
		if n == 4 || n == 5 {
			m.idle += ticks
		}
	}
	m.own = familyTicks(os.Getpid())
	return m
}

// others is the share of the machine that other programs have used since.
func (m cpuTimes) others() float64 {
	now := readCPUTimes()
	if all := now.all - m.all; all > 0 {
		return max(0, (all-(now.idle-m.idle)-(now.own-m.own))/all)
	}
	return 0
}

// familyTicks sums the time of a process and its descendants, including ended ones: a
// parent inherits their time.
func familyTicks(root int) (ticks float64) {
	type process struct {
		parent int
		ticks  float64
	}
	all := map[int]process{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// The name in parentheses may contain any character.
		_, rest, _ := strings.Cut(string(raw), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 15 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parent, _ := strconv.Atoi(fields[1])
		used := 0.0
		for _, text := range fields[11:15] {
			n, _ := strconv.ParseFloat(text, 64)
			used += n
		}
		all[pid] = process{parent, used}
	}
	for pid, p := range all {
		for at, steps := pid, 0; at > 1 && steps < 50; at, steps = all[at].parent, steps+1 {
			if at == root {
				ticks += p.ticks
				break
			}
		}
	}
	return ticks
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Host
}

func atHost(text, host string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	u.Host = host
	return u.String()
}
