package main

import (
	"fmt"
	"math"
)

// cellAt builds a cell of the plan.
func (in *inputs) cellAt(c costs, weights []float64, seed uint64) *cell {
	s := newSim(seed)
	p := in.plan.Cell
	make := func(n nodes) (list []*processor) {
		for range n.Count {
			list = append(list, &processor{sim: s, cores: n.Cores, speed: p.Speed})
		}
		return list
	}
	at := site{
		api: make(p.API), workers: make(p.Workers), postgres: make(p.Postgres)[0], kafka: make(nodes{1, p.BrokerCores})[0],
		disk: &disk{sim: s, fsync: p.Fsync, perSecond: p.DiskMBps * 1e6},
		trip: millis(p.RoundTripMs), publish: millis(p.KafkaAnswerMs),
	}
	l := newCell(s, at, c, in, weights)
	l.wait = millis(in.plan.Failures.APIClientWaitMs)
	l.stages(in.plan.Shares)
	return l
}

// even returns equal shares for all partitions.
func even() []float64 {
	list := make([]float64, partitions)
	for i := range list {
		list[i] = 1.0 / partitions
	}
	return list
}

// with gives the first partition a share of all events, a whale's.
func with(weights []float64, share float64) []float64 {
	list := make([]float64, len(weights))
	for i, w := range weights {
		list[i] = w * (1 - share)
	}
	list[0] += share
	return list
}

func usedBy(list ...*processor) (cores float64) {
	for _, p := range list {
		for _, ns := range p.used {
			cores += float64(ns) / float64(p.now)
		}
	}
	return cores
}

// usage is the cores in use of a cell.
type usage struct{ api, workers, postgres, kafka float64 }

func (c *cell) usage() usage {
	return usage{usedBy(c.api...), usedBy(c.workers...), usedBy(c.postgres), usedBy(c.kafka)}
}

// warmUp is the time in seconds that is not counted.
const warmUp = 2.0

// steadyCell runs a cell under a constant load.
func (in *inputs) steadyCell(c costs, weights []float64, perSecond, took float64) *cell {
	l := in.cellAt(c, weights, 7)
	l.from = seconds(warmUp)
	l.random(func(int64) float64 { return perSecond }, in.plan.Traffic.Requests, seconds(took))
	l.until(seconds(took))
	return l
}

// withinTargets reports whether a cell keeps up with a load within the latency targets.
func (in *inputs) withinTargets(c costs, perSecond float64) bool {
	const took = 5.0
	l := in.steadyCell(c, even(), perSecond, took)
	t := in.plan.Traffic
	return float64(l.offered-l.applied) < perSecond*t.FreshP99Ms/1000 && l.ingest.quantile(0.99) <= t.IngestP99Ms &&
		l.fresh.quantile(0.99) <= t.FreshP99Ms
}

// limit is the greatest rate that a cell holds, in events a second.
func (in *inputs) limit(c costs) float64 {
	return most(func(rate float64) bool { return in.withinTargets(c, rate) }, 10_000)
}

// shock is a disturbance of a cell during a run: a failure, or a higher load for a while.
type shock struct {
	name  string
	do    func(c *cell)
	burst float64 // times the usual load
}

const (
	shockAt  = 10.0
	shockRun = 90.0
	burstFor = 10.0
)

func (in *inputs) shocks() []shock {
	f, nothing := in.plan.Failures, func(*cell) {}
	return []shock{
		{"none", nothing, 1},
		{fmt.Sprintf("%.3g times the load for %.0f s", in.plan.Traffic.Burst, burstFor), nothing, in.plan.Traffic.Burst},
		{"an API node dies", func(c *cell) { c.loseAPI(seconds(f.Balancer)) }, 1},
		{"a worker node dies", func(c *cell) { c.loseWorker(seconds(f.WorkerTakeover)) }, 1},
		{"a broker dies", func(c *cell) { c.loseBroker(in.plan.Kafka.Brokers, seconds(f.LeaderMove)) }, 1},
		{"the primary fails over", func(c *cell) { c.postgres.stop(seconds(f.Failover)) }, 1},
	}
}

// loseAPI kills a node; the load balancer removes it later.
func (c *cell) loseAPI(found int64) {
	c.dead[0] = true
	c.after(found, func() { c.out[0] = true })
}

// loseWorker kills an instance of each stage; the others take over its partitions later.
func (c *cell) loseWorker(takeover int64) {
	list := []*stage{c.relay, c.validator, c.aggregator, c.projector}
	for _, s := range list {
		s.instances[0].gone = true
	}
	c.after(takeover, func() {
		for _, s := range list {
			s.instances = s.instances[1:]
			for n, i := range s.instances {
				i.n = n
				i.kick()
			}
		}
	})
}

// loseBroker stops the partitions that one broker leads until other brokers lead them.
func (c *cell) loseBroker(brokers int, moved int64) {
	for p := 0; p < partitions; p += brokers {
		c.down[p] = true
	}
	c.kafka.cores = max(1, c.kafka.cores*(brokers-1)/brokers)
	c.after(moved, func() {
		clear(c.down[:])
		for _, i := range c.relay.instances {
			i.kick()
		}
	})
}

// shocked is the effect of a shock on a cell.
type shocked struct {
	*cell
	mostBehind int
	drained    float64 // seconds from the shock until the backlog is as before; -1: not in this run
}

func (in *inputs) shock(c costs, weights []float64, perSecond float64, s shock) shocked {
	l := in.cellAt(c, weights, 11)
	l.from = seconds(warmUp)
	rate := func(at int64) float64 {
		if at >= seconds(shockAt) && at < seconds(shockAt+burstFor) {
			return perSecond * s.burst
		}
		return perSecond
	}
	l.random(rate, in.plan.Traffic.Requests, seconds(shockRun))
	usual, worst, drained := 0, 0, -1.0
	var look func()
	look = func() {
		behind := l.offered - l.applied
		worst = max(worst, behind)
		worst = max(worst, behind)
		if l.now < seconds(shockAt) {
			usual = max(usual, behind)
		} else if behind > 2*usual {
			drained = -1
		} else if drained < 0 {
			drained = float64(l.now-seconds(shockAt)) / 1e9
		}
		l.after(seconds(0.1), look)
	}
	l.after(seconds(warmUp), look)
	l.after(seconds(shockAt), func() { s.do(l) })
	l.until(seconds(shockRun))
	return shocked{l, worst, drained}
}

// whaleLimit is the greatest rate of one tenant that its partition keeps up with.
func (in *inputs) whaleLimit(c costs) float64 {
	const took = 6.0
	share := in.plan.Tenants.Whale
	keeps := func(rate float64) bool {
		l := in.steadyCell(c, with(even(), share), rate/share, took)
		late := in.plan.Traffic.FreshP99Ms
		return float64(l.offered-l.applied) < rate*late/1000 && l.fresh.quantile(0.99) <= late
	}
	return most(keeps, 1000)
}

// most is the greatest rate that bears accepts, within a twentieth.
func most(bears func(rate float64) bool, first float64) float64 {
	low, high := 0.0, first
	for bears(high) && high < 1e6 {
		low, high = high, 2*high
	}
	for high-low > 0.05*high {
		if mid := (low + high) / 2; bears(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return math.Floor(low/100) * 100
}
