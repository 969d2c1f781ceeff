package main

// send sends a request of n events that was due at a given time.
func (c *cell) send(n int, due int64, answered func()) {
	c.offered += n
	r := &request{n: n, partition: c.pick(), due: due, answered: answered}
	if c.load == nil {
		c.accept(r)
		return
	}
	c.load.run(loader, c.costs.send.of(n), func() { c.accept(r) })
}

// inTurn sends to n partitions in turn.
func (c *cell) inTurn(n int) {
	turn := 0
	c.pick = func() int { turn++; return turn % n }
}

// closed is a number of clients that send again as soon as they have an answer.
func (c *cell) closed(clients, size int, end int64) {
	var next func()
	next = func() {
		if c.now < end {
			c.send(size, c.now, next)
		}
	}
	for range clients {
		next()
	}
}

// steady is an open loop at equal intervals over a number of connections. A request without a
// free connection waits, and its latency counts the wait.
func (c *cell) steady(perSecond float64, size, connections int, end int64) {
	interval := seconds(float64(size) / perSecond)
	free := connections
	var due []int64
	var start func()
	start = func() {
		for free > 0 && len(due) > 0 {
			at := due[0]
			due = due[1:]
			free--
			c.send(size, at, func() { free++; start() })
		}
	}
	var tick func()
	tick = func() {
		if c.now >= end {
			return
		}
		due = append(due, c.now)
		start()
		c.after(interval, tick)
	}
	tick()
}

// random is an open loop of many independent clients: the times between requests of a size are
// exponential. The rate may change over time.
func (c *cell) random(perSecond func(at int64) float64, requests []portion, end int64) {
	for _, p := range requests {
		var tick func()
		wait := func() int64 {
			return seconds(c.rng.ExpFloat64() * float64(p.Size) / (perSecond(c.now) * p.Share))
		}
		tick = func() {
			if c.now >= end {
				return
			}
			c.send(p.Size, c.now, nil)
			c.after(wait(), tick)
		}
		c.after(wait(), tick)
	}
}

// otherLoad keeps a part of a processor busy with programs that are not simulated.
func (c *cell) otherLoad(p *processor, by process, cores float64, end int64) {
	const every = 10_000 // microseconds
	if cores <= 0 {
		return
	}
	var tick func()
	tick = func() {
		if c.now < end {
			p.run(by, cores*every, func() {})
			c.after(micros(every), tick)
		}
	}
	tick()
}
