package main

// This file simulates the benchmark's own runs, with all processes on one machine.

const benchTenants = 16

func (in *inputs) bench(c costs, whole bool) *cell {
	s := newSim(5)
	b := in.plan.Bench
	all := &processor{sim: s, cores: in.report.Machine.Cores, speed: 1}
	at := site{
		api: []*processor{all}, workers: []*processor{all}, postgres: all, kafka: all, load: all,
		disk: &disk{sim: s, fsync: b.Fsync, perSecond: b.DiskMBps * 1e6},
		trip: millis(b.RoundTripMs), publish: millis(in.hop()),
	}
	if length, every := in.stalls(); length > 0 {
		at.disk.stall(length, every)
	}
	l := newCell(s, at, c, in, nil)
	l.inTurn(benchTenants)
	if whole {
		l.stages(in.plan.Shares)
	}
	return l
}

// hop is the time of a record through the broker: half of B5's limit, whose records pass the broker twice.
func (in *inputs) hop() float64 { return in.figures["B5"].Limit.P50 / 2 }

// stalls returns how long and how often the machine's disk stalled, from the latencies of
// bare commits at a steady rate (B3's limit). It assumes stalls as long as the slowest
// commit, evenly spread arrivals, and enough stalls that 1 % waited longer than p99.
func (in *inputs) stalls() (length, every int64) {
	l := in.figures["B3"].Limit
	if l == nil || l.P99 < 10*l.P50 || l.Max <= l.P99 {
		return 0, 0
	}
	share := 0.01 / (1 - l.P99/l.Max)
	return millis(l.Max), millis(l.Max / share)
}

// benchRun is a finished run with its rate.
type benchRun struct {
	*cell
	perSecond float64 // events
}

// each is the simulated CPU time for each recorded event.
func (r *benchRun) each() perProcess {
	us := func(p process) float64 {
		return float64(r.postgres.used[p]) / 1000 / float64(max(1, r.recorded))
	}
	return perProcess{us(service), us(database), us(broker), us(loader), us(other)}
}

// others is the number of cores that other programs used while a figure was measured.
func (in *inputs) others(id string) float64 {
	cpu := in.figures[id].CPU
	return cpu.Seconds.Others / max(1, cpu.Elapsed)
}

func (in *inputs) closedRun(id string, c costs, whole bool, clients, size int, took float64) *benchRun {
	l := in.bench(c, whole)
	l.otherLoad(l.postgres, other, in.others(id), seconds(took))
	l.closed(clients, size, seconds(took))
	l.until(seconds(took))
	return &benchRun{l, float64(l.recorded) / took}
}

// steadyRun counts latencies from the end of the first second.
func (in *inputs) steadyRun(id string, c costs, whole bool, perSecond float64, size, connections int, took, beside float64) *benchRun {
	l := in.bench(c, whole)
	l.from = seconds(1)
	l.otherLoad(l.postgres, loader, beside, seconds(took))
	l.otherLoad(l.postgres, other, in.others(id), seconds(took))
	l.steady(perSecond, size, connections, seconds(took))
	l.until(seconds(took))
	return &benchRun{l, float64(l.applied) / took}
}

func (in *inputs) benchB1(c costs, took float64) *benchRun {
	return in.closedRun("B1", c, false, 4, 1000, took)
}
func (in *inputs) benchB2(c costs, took float64) *benchRun {
	return in.closedRun("B2", c, false, 64, 1, took)
}
func (in *inputs) benchMixed(c costs, took float64) *benchRun {
	return in.closedRun("B1+", c, true, 4, 1000, took)
}

// pacedShare is the share of the greatest rate at which B1 and B2 report latencies.
const pacedShare = 0.7

func (in *inputs) pacedB1(c costs) *benchRun {
	return in.steadyRun("B1", c, false, pacedShare*in.figures["B1"].Value, 1000, 4, 8, 0)
}

func (in *inputs) pacedB2(c costs) *benchRun {
	return in.steadyRun("B2", c, false, pacedShare*in.figures["B2"].Value, 1, 64, 8, 0)
}

// benchB5 is B3, too: 1,000 single events a second with all roles running.
func (in *inputs) benchB5(c costs, took float64) *benchRun {
	const perSecond = 1000
	beside := (in.figures["B5"].CPU.Each.Load - c.send.of(1)) * perSecond / 1e6
	return in.steadyRun("B5", c, true, perSecond, 1, 32, took, max(0, beside))
}

// benchB4 offers more than the pipeline can process, and runs until all events are applied.
func (in *inputs) benchB4(c costs, took float64) *benchRun {
	const perSecond, size, connections, longest = 20000, 100, 16, 300
	b4 := in.figures["B4"]
	l := in.bench(c, true)
	l.otherLoad(l.postgres, loader, max(0, b4.CPU.Each.Load-c.send.of(size)/size)*b4.Value/1e6, seconds(longest))
	l.otherLoad(l.postgres, other, in.others("B4"), seconds(longest))
	l.steady(perSecond, size, connections, seconds(took))
	l.until(seconds(took))
	for l.applied < l.offered && l.now < seconds(longest) {
		l.until(l.now + seconds(0.25))
	}
	return &benchRun{l, float64(l.applied) / (float64(l.appliedAt) / 1e9)}
}
