package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// sim is a discrete-event simulation. Time is in nanoseconds from its start; events at the same
// time run in the order in which they were scheduled.
type sim struct {
	now            int64
	scheduledCount int64
	queue          agenda
	rng            *rand.Rand
}

func newSim(seed uint64) *sim { return &sim{rng: rand.New(rand.NewPCG(seed, 1))} }

type scheduled struct {
	at, turn int64
	do       func()
}

// agenda is a binary heap, typed because container/heap allocates for each event.
type agenda []scheduled

func (a agenda) less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].turn < a[j].turn
}

func (a *agenda) push(x scheduled) {
	*a = append(*a, x)
	q := *a
	for i := len(q) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.less(i, parent) {
			return
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

func (a *agenda) pop() scheduled {
	q := *a
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], scheduled{}
	*a = q[:last]
	q = q[:last]
	for i := 0; ; {
		least := 2*i + 1
		if least >= last {
			return first
		}
		if right := least + 1; right < last && q.less(right, least) {
			least = right
		}
		if !q.less(least, i) {
			return first
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
}

func (s *sim) after(d int64, do func()) {
	s.scheduledCount++
	s.queue.push(scheduled{s.now + max(d, 0), s.scheduledCount, do})
}

// until runs all work due before a time.
func (s *sim) until(end int64) {
	for len(s.queue) > 0 && s.queue[0].at < end {
		h := s.queue.pop()
		s.now = h.at
		h.do()
	}
	s.now = end
}

func seconds(s float64) int64 { return int64(math.Round(s * 1e9)) }
func millis(ms float64) int64 { return int64(math.Round(ms * 1e6)) }
func micros(us float64) int64 { return int64(math.Round(us * 1e3)) }

// process names the consumer of CPU time.
type process int

const (
	service process = iota
	database
	broker
	loader
	other // other programs
	processes
)

// processor is a number of cores. A task runs on one core at a time, for a slice.
type processor struct {
	*sim
	cores, busy int
	speed       float64 // of a core; the measured machine's is 1
	stopped     bool
	waiting     []task
	used        [processes]int64
}

type task struct {
	left int64
	by   process
	done func()
}

// slice is how long a task runs before the next task.
const slice = 1_000_000

// run takes a random time with the measured mean, since the times of single tasks were not measured.
func (p *processor) run(by process, us float64, done func()) {
	p.waiting = append(p.waiting, task{max(1, micros(us/p.speed*p.rng.ExpFloat64())), by, done})
	p.start()
}

func (p *processor) start() {
	for p.busy < p.cores && !p.stopped && len(p.waiting) > 0 {
		t := p.waiting[0]
		p.waiting = p.waiting[1:]
		ran := min(t.left, slice)
		p.busy++
		p.after(ran, func() {
			p.busy--
			p.used[t.by] += ran
			if t.left -= ran; t.left > 0 {
				p.waiting = append(p.waiting, t)
			}
			p.start()
			if t.left == 0 {
				t.done()
			}
		})
	}
}

// stop stops the processor for a while.
func (p *processor) stop(d int64) {
	p.stopped = true
	p.after(d, func() { p.stopped = false; p.start() })
}

// disk makes commits durable: commits that arrive during a flush share the next one.
type disk struct {
	*sim
	fsync     spread
	perSecond float64 // bytes
	busy      bool
	bytes     float64
	waiting   []func()
	written   float64
	flushes   int64
	stalled   int64 // no commit is durable before
}

// stall makes the disk unresponsive for a while, periodically.
func (d *disk) stall(length, every int64) {
	var tick func()
	tick = func() {
		d.stalled = d.now + length
		d.after(every, tick)
	}
	d.after(every/2, tick)
}

func (d *disk) flush(bytes float64, done func()) {
	d.bytes += bytes
	d.waiting = append(d.waiting, done)
	if !d.busy {
		d.start()
	}
}

func (d *disk) start() {
	group := d.waiting
	took := d.fsync.draw(d.rng) + seconds(d.bytes/d.perSecond)
	took += max(0, d.stalled-d.now)
	d.written += d.bytes
	d.flushes++
	d.waiting, d.bytes, d.busy = nil, 0, true
	d.after(took, func() {
		d.busy = false
		if len(d.waiting) > 0 {
			d.start()
		}
		for _, done := range group {
			done()
		}
	})
}

// spread is a log-normal time, given by its median and its 99th percentile in milliseconds.
type spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func (s spread) draw(rng *rand.Rand) int64 {
	const z99 = 2.3263
	sigma := math.Log(s.P99/s.P50) / z99
	return millis(s.P50 * math.Exp(sigma*rng.NormFloat64()))
}

// lock is a log partition's head row: one transaction holds it, the others queue.
type lock struct {
	held    bool
	waiting []func()
}

func (l *lock) acquire(then func()) {
	if l.held {
		l.waiting = append(l.waiting, then)
		return
	}
	l.held = true
	then()
}

func (l *lock) release() {
	if len(l.waiting) == 0 {
		l.held = false
		return
	}
	next := l.waiting[0]
	l.waiting = l.waiting[1:]
	next()
}

// times are latencies with the number of events of each.
type times struct{ list []timed }

type timed struct {
	took int64
	n    int
}

func (t *times) add(took int64, n int) { t.list = append(t.list, timed{took, n}) }

// quantile returns a quantile in milliseconds.
func (t *times) quantile(q float64) float64 {
	slices.SortFunc(t.list, func(a, b timed) int { return int(a.took/1000 - b.took/1000) })
	total := 0
	for _, x := range t.list {
		total += x.n
	}
	rest := min(int(float64(total)*q), total-1)
	for _, x := range t.list {
		if rest -= x.n; rest < 0 {
			return float64(x.took) / 1e6
		}
	}
	return 0
}
