package main

import "slices"

// stage is a consumer of the log or a topic, with an instance on each worker node.
type stage struct {
	c            *cell
	name         string
	queues       [partitions][]parcel
	count        [partitions]int
	locked       [partitions]bool // one batch of a partition at a time
	instances    []*instance
	perPartition int
	perBatch     int
	inFlight     int
	small        int   // smaller batches are paced
	pace         int64 // least time of a small batch
	process      func(i *instance, b *batch)
}

// instance owns the partitions p mod the number of instances.
type instance struct {
	s       *stage
	n       int
	cpu     *processor
	running int
	turn    int
	resting bool
	gone    bool
}

type batch struct {
	n       int
	parts   []int
	parcels [partitions][]parcel
	began   int64
}

func (c *cell) stages(sh shares) {
	add := func(name string, perPartition, perBatch, inFlight, small int, pace float64, process func(*instance, *batch)) *stage {
		s := &stage{c: c, name: name, perPartition: perPartition, perBatch: perBatch, inFlight: inFlight, small: small, pace: millis(pace),
			process: process}
		for n, cpu := range c.workers {
			s.instances = append(s.instances, &instance{s: s, n: n, cpu: cpu})
		}
		return s
	}
	// Both the raw event and its verdict pass the relay and the projector.
	const both = 2
	svc, db := sh.Service, sh.Postgres
	each := func(share float64) float64 { return c.service.each * share }
	rows := max(0, c.database.each-c.append.each) // the verdict's row costs as much as any row
	// The relay reads 10 ms after an ingested event, and at once after a verdict.
	c.relay = add("relay", 2000, 2000, 3, 1<<30, 7, c.publishes(each(svc.Relay)/both, rows*db.Relay/both))
	c.validator = add("validator", verdictRows, 1000, 1, 100, 3, c.validates(each(svc.Validator), rows*db.Validator))
	c.aggregator = add("aggregator", 2000, 2000, 1, 100, 3, c.aggregates(each(svc.Aggregator), rows*db.Aggregator))
	c.projector = add("projector", 2000, 8000, 1, 1<<30, 25, c.projects(each(svc.Projector)/both, rows*db.Projector/both))
}

func (s *stage) put(partition int, p parcel) {
	s.queues[partition] = append(s.queues[partition], p)
	s.count[partition] += p.n
	s.instances[partition%len(s.instances)].kick()
}

// kick starts the rounds that can start.
func (i *instance) kick() {
	for !i.gone && !i.resting && i.running < i.s.inFlight {
		b := i.gather()
		if b.n == 0 {
			return
		}
		i.running++
		if b.n < i.s.small && i.s.inFlight > 1 { // the relay reads the heads no more often
			i.resting = true
			i.s.c.after(i.s.pace, func() { i.resting = false; i.kick() })
		}
		i.s.process(i, b)
	}
}

func (i *instance) gather() *batch {
	s := i.s
	b := &batch{began: s.c.now}
	for k := range partitions {
		p := (i.turn + k) % partitions
		if p%len(s.instances) != i.n || s.count[p] == 0 || s.locked[p] || s.c.down[p] && s == s.c.relay {
			continue
		}
		got := s.removeFrom(p, min(s.perPartition, s.perBatch-b.n))
		for _, x := range got {
			b.n += x.n
		}
		b.parcels[p], b.parts = got, append(b.parts, p)
		s.locked[p] = true
		if b.n >= s.perBatch {
			i.turn = p + 1
			break
		}
	}
	return b
}

// removeFrom takes at most n events of a partition, and splits the last parcel if necessary.
func (s *stage) removeFrom(p, n int) (got []parcel) {
	for n > 0 && len(s.queues[p]) > 0 {
		first := s.queues[p][0]
		if first.n <= n {
			s.queues[p] = s.queues[p][1:]
		} else {
			s.queues[p][0].n -= n
			first.n = n
		}
		n -= first.n
		s.count[p] -= first.n
		got = append(got, first)
	}
	return got
}

// done ends a round, not before its pace allows.
func (i *instance) done(b *batch) {
	i.s.c.rounds++
	end := func() {
		i.running--
		for _, p := range b.parts {
			i.s.locked[p] = false
		}
		i.kick()
	}
	if rest := b.began + i.s.pace - i.s.c.now; b.n < i.s.small && i.s.inFlight == 1 && rest > 0 {
		i.s.c.after(rest, end)
		return
	}
	end()
}

// read is the beginning of each round: the service's CPU time and the database's.
func (c *cell) read(i *instance, b *batch, svc, db float64, then func()) {
	i.cpu.run(service, c.service.fixed+svc*float64(b.n), func() {
		c.after(c.trip, func() { c.postgres.run(database, c.database.fixed/2+db*float64(b.n), then) })
	})
}

// write is the end of each round, without its appends.
func (c *cell) write(bytes float64, then func()) {
	c.after(c.trip, func() {
		c.postgres.run(database, c.database.fixed/2, func() { c.disk.flush(bytes, then) })
	})
}

func (c *cell) publishes(svc, db float64) func(*instance, *batch) {
	const both = 2
	return func(i *instance, b *batch) {
		c.relays++
		c.read(i, b, svc, db, func() {
			c.kafka.run(broker, c.broker.fixed+c.broker.each/both*float64(b.n), func() {
				c.after(c.publish, func() {
					for _, p := range b.parts {
						for _, x := range b.parcels[p] {
							to := c.validator
							if x.verdict {
								to = c.aggregator
							}
							to.put(p, x)
						}
					}
					c.write(0, func() { i.done(b) })
				})
			})
		})
	}
}

// validates appends a verdict for each event, with the heads locked.
func (c *cell) validates(svc, db float64) func(*instance, *batch) {
	return func(i *instance, b *batch) {
		c.read(i, b, svc, db, func() {
			heads := slices.Sorted(slices.Values(b.parts))
			c.hold(heads, c.database.fixed/2+c.append.each*float64(b.n), c.wal.verdict*float64(b.n), func() {
				for _, p := range heads {
					for _, x := range b.parcels[p] {
						x.verdict = true
						c.logged(p, x)
					}
				}
				i.done(b)
			})
		})
	}
}

func (c *cell) aggregates(svc, db float64) func(*instance, *batch) {
	return func(i *instance, b *batch) {
		c.read(i, b, svc, db, func() {
			c.write(0, func() {
				for _, p := range b.parts {
					for _, x := range b.parcels[p] {
						c.applied += x.n
						if x.recorded >= c.from {
							c.fresh.add(c.now-x.recorded, x.n)
						}
					}
				}
				c.appliedAt = c.now
				i.done(b)
			})
		})
	}
}

func (c *cell) projects(svc, db float64) func(*instance, *batch) {
	return func(i *instance, b *batch) {
		c.read(i, b, svc, db, func() { c.write(0, func() { i.done(b) }) })
	}
}
