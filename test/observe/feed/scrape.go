// Package feed feeds scrapes of a service, before, during and after a fault, to the rule of the alert. Only the clock of the rule is
// simulated. It is for tests only.
package feed

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scrape holds the metrics of a job at a time.
type Scrape struct {
	At time.Time
	// Instances are the answers in the text format, by the address of the instance. An instance without an answer is "".
	Instances map[string]string
}

// sample is a series with its value.
type sample struct {
	name, labels string
	value        float64
	counter      bool
}

func (s *sample) key() string { return s.name + "{" + s.labels + "}" }

// Metric returns the values of the series of a selector, by instance and series. The selector may name the instance.
func (s *Scrape) Metric(selector string) map[string]float64 {
	found := map[string]float64{}
	name, matchers, _ := strings.Cut(strings.TrimSuffix(selector, "}"), "{")
	for instance, text := range s.Instances {
		for _, v := range samples(text, []string{name}) {
			labels := append(strings.Split(v.labels, ","), `instance="`+instance+`"`)
			if matchers == "" || !slices.ContainsFunc(strings.Split(matchers, ","), func(m string) bool {
				return !slices.Contains(labels, m)
			}) {
				found[instance+" "+v.labels] = v.value
			}
		}
	}
	return found
}

var typeLine = regexp.MustCompile(`^# TYPE (\S+) (\S+)`)

// samples reads the series of some metrics. A value that is no number is left out: it compares with no threshold.
func samples(text string, metrics []string) (all []sample) {
	family, counter := "", false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			if found := typeLine.FindStringSubmatch(line); found != nil {
				family, counter = found[1], found[2] == "counter" || found[2] == "histogram"
			}
			continue
		}
		series, number, found := strings.Cut(strings.TrimSpace(line), "} ")
		if !found {
			series, number, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		name, labels, _ := strings.Cut(series, "{")
		if !slices.Contains(metrics, name) {
			continue
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || v != v {
			continue
		}
		all = append(all, sample{name, labels, v, counter && strings.HasPrefix(name, family)})
	}
	return all
}

// phase is the history of a series while nothing changes but the clock: a first value and its growth in a second.
type phase struct {
	exists        bool
	first, growth float64
}

// history is a series from before the fault until after it.
type history struct {
	labels  string // with name and instance
	counter bool
	phases  []phase
}

// histories joins the scrapes of each phase. A counter goes on growing as it grew between the first and the last scrape of its phase, and a
// metric of ages, which has grown between them, grows by a second each second.
func histories(phases [][]Scrape, metrics, ages []string, step time.Duration, steps []int) (all []*history, err error) {
	found := map[string]*history{}
	last := map[string]float64{} // the value of the last scrape of a counter
	grows := map[string]bool{}
	ahead := map[string]float64{} // how far the simulated counter is ahead of it
	for n, scrapes := range phases {
		begin, end := values(&scrapes[0], metrics), values(&scrapes[len(scrapes)-1], metrics)
		seconds := scrapes[len(scrapes)-1].At.Sub(scrapes[0].At).Seconds()
		for key, v := range end {
			h := found[key]
			if h == nil {
				h = &history{labels: key, counter: v.counter, phases: make([]phase, len(phases))}
				found[key], all = h, append(all, h)
			}
			p := &h.phases[n]
			p.exists, p.first = true, v.value
			from, had := begin[key]
			switch {
			case v.counter:
				if v.value < last[key] { // a new process
					ahead[key] = 0
				}
				p.first += ahead[key]
				if had && v.value > from.value && seconds > 0 {
					p.growth = (v.value - from.value) / seconds
					ahead[key] += p.growth * step.Seconds() * float64(steps[n]-1)
				}
				last[key] = v.value
			case slices.Contains(ages, v.name) && len(scrapes) > 1:
				if had && v.value > from.value {
					p.growth = 1
					grows[v.name] = true
				}
			}
		}
	}
	for _, age := range ages {
		if !grows[age] {
			return nil, fmt.Errorf("the age %s does not grow", age)
		}
	}
	slices.SortFunc(all, func(a, b *history) int { return strings.Compare(a.labels, b.labels) })
	return all, nil
}

// values are the series of a scrape, and whether each instance answered, with the labels of Prometheus.
func values(s *Scrape, metrics []string) map[string]sample {
	all := map[string]sample{}
	for instance, text := range s.Instances {
		target := fmt.Sprintf(`job="meterplex",instance=%q`, instance)
		up := sample{name: "up", labels: target}
		if text != "" {
			up.value = 1
		}
		all[up.key()] = up
		for _, v := range samples(text, metrics) {
			if v.labels = strings.TrimSuffix(target+","+v.labels, ","); v.name != "" {
				all[v.key()] = v
			}
		}
	}
	return all
}

// text renders the history in the notation of promtool.
func (h *history) text(step time.Duration, steps []int) string {
	var parts []string
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	existed := false
	for n, p := range h.phases {
		switch more := steps[n] - 1; {
		case !p.exists && existed:
			parts = append(parts, "stale")
			if more > 0 {
				parts = append(parts, fmt.Sprintf("_x%d", more))
			}
		case !p.exists:
			parts = append(parts, fmt.Sprintf("_x%d", steps[n]))
		case more == 0:
			parts = append(parts, number(p.first))
		case p.growth == 0:
			parts = append(parts, fmt.Sprintf("%sx%d", number(p.first), more))
		default:
			parts = append(parts, fmt.Sprintf("%s+%sx%d", number(p.first), number(p.growth*step.Seconds()), more))
		}
		existed = p.exists
	}
	return strings.Join(parts, " ")
}
