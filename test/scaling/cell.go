package main

import "slices"

const (
	partitions   = 32   // of a log
	nodeWriters  = 4    // of each instance; writer p mod 4 appends to partition p
	smallRows    = 16   // most rows of a request for the instance's shared writer of all partitions
	gatherRows   = 16   // rows of the last group from which the shared writer waits for as many again
	linger       = 1.0  // ms at most
	groupRows    = 2000 // most rows in one commit
	headTrips    = 1    // round trips to the database with heads locked: COPY, heads and COMMIT in one
	requestTrips = 2
	verdictRows  = 200 // most verdicts of a partition in one transaction
)

// site is the hardware of a cell. On the benchmark's machine one processor runs all of it.
type site struct {
	api, workers  []*processor
	postgres      *processor
	kafka         *processor
	load          *processor // nil: the clients' CPU time is not simulated
	disk          *disk
	trip, publish int64 // round trip to the database; the broker's answer time
}

// parcel is a number of events of one partition on the same path.
type parcel struct {
	n        int
	verdict  bool
	recorded int64 // when their request was committed
}

// request is a client's request.
type request struct {
	n, partition int
	due          int64
	node         int
	stored       bool
	answered     func()
}

// cell is one log in one database with its instances.
type cell struct {
	*sim
	site
	costs
	weights                                 []float64 // of the partitions; their sum is 1
	wal                                     struct{ recorded, verdict float64 }
	pick                                    func() int // of a partition, for the next request
	heads                                   [partitions]lock
	writers                                 []*writer
	dead                                    []bool // API nodes
	out                                     []bool // nodes that the load balancer has removed
	wait                                    int64  // how long a client waits for a missing answer
	next                                    int
	down                                    [partitions]bool // partitions without a leader
	relay, validator, aggregator, projector *stage

	tally
}

// tally is the result of a run. Latencies count from the end of the warm-up.
type tally struct {
	from                                    int64 // end of the warm-up
	offered, recorded, applied, mostBacklog int
	appends, rounds, relays                 int
	ingest, fresh                           times
	appliedAt                               int64
}

func (t *tally) roundsEach() float64  { return float64(t.rounds) / float64(max(1, t.applied)) }
func (t *tally) relaysEach() float64  { return float64(t.relays) / float64(max(1, t.applied)) }
func (t *tally) appendsEach() float64 { return float64(t.appends) / float64(max(1, t.recorded)) }
func (t *tally) backlog() int         { return t.recorded - t.applied }

// writer commits the queued requests of its partitions in groups.
type writer struct {
	c     *cell
	node  int
	queue []*request
	busy  bool
	// Of the shared writer for small requests of all partitions:
	shared  bool
	groups  int  // number begun
	last    int  // rows of the last group
	waiting bool // for a group of at least last rows
}

func newCell(s *sim, at site, c costs, in *inputs, weights []float64) *cell {
	l := &cell{sim: s, site: at, costs: c, weights: weights, dead: make([]bool, len(at.api)), out: make([]bool, len(at.api))}
	for n := range at.api {
		for range nodeWriters {
			l.writers = append(l.writers, &writer{c: l, node: n})
		}
		l.writers = append(l.writers, &writer{c: l, node: n, shared: true})
	}
	// All bytes that the pipeline writes beyond the recorded event are counted for the verdict.
	l.wal.recorded, l.wal.verdict = in.walIngest, max(0, in.walAll-in.walIngest)
	l.pick = l.byWeight
	return l
}

// accept sends a request to one of the nodes in the load balancer.
func (c *cell) accept(r *request) {
	for c.next++; c.out[c.next%len(c.api)]; c.next++ {
	}
	r.node = c.next % len(c.api)
	c.api[r.node].run(service, c.request.of(r.n), func() {
		if c.dead[r.node] {
			c.retry(r)
			return
		}
		w := c.writer(r, r.n <= smallRows)
		w.queue = append(w.queue, r)
		w.kick()
	})
}

// writer returns the writer that commits a request.
func (c *cell) writer(r *request, small bool) *writer {
	of := c.writers[r.node*(nodeWriters+1):][:nodeWriters+1]
	if small {
		return of[nodeWriters]
	}
	return of[r.partition%nodeWriters]
}

// retry is a client's retry: without an answer it waits and sends to another node.
func (c *cell) retry(r *request) { c.after(c.wait, func() { c.accept(r) }) }

func (w *writer) kick() {
	if w.busy || len(w.queue) == 0 || w.shared && w.gathering() {
		return
	}
	if w.shared {
		w.passToOwners()
		if len(w.queue) == 0 {
			return
		}
	}
	rows, end := w.queue[0].n, 1
	for end < len(w.queue) && rows+w.queue[end].n <= groupRows {
		rows += w.queue[end].n
		end++
	}
	group := slices.Clone(w.queue[:end])
	w.queue = w.queue[end:]
	w.busy, w.last, w.groups = true, rows, w.groups+1
	var heads []int
	for _, r := range group {
		if !slices.Contains(heads, r.partition) {
			heads = append(heads, r.partition)
		}
	}
	slices.Sort(heads)
	w.c.hold(heads, w.c.append.of(rows), w.c.wal.recorded*float64(rows), func() { w.answer(group) })
}

// gathering reports whether the next group waits for as many rows as the last one had.
func (w *writer) gathering() bool {
	rows := 0
	for _, r := range w.queue {
		rows += r.n
	}
	if w.last < gatherRows || rows >= w.last {
		return false
	}
	if !w.waiting {
		w.waiting = true
		before := w.groups
		w.c.after(millis(linger), func() {
			w.waiting = false
			if w.groups == before {
				w.last = 0 // they did not arrive
			}
			w.kick()
		})
	}
	return true
}

// passToOwners passes requests with locked heads to the writers of their partitions,
// which wait for the lock.
func (w *writer) passToOwners() {
	queue := w.queue
	w.queue = nil
	for _, r := range queue {
		if !w.c.heads[r.partition].held {
			w.queue = append(w.queue, r)
			continue
		}
		own := w.c.writer(r, false)
		own.queue = append(own.queue, r)
		own.kick()
	}
}

// hold is a transaction that holds heads until it is durable.
func (c *cell) hold(heads []int, cost, bytes float64, done func()) {
	c.lockHeads(heads, func() {
		c.after(c.trip*headTrips, func() {
			c.postgres.run(database, cost, func() {
				c.disk.flush(bytes, func() {
					for _, p := range heads {
						c.heads[p].release()
					}
					done()
				})
			})
		})
	})
}

func (c *cell) lockHeads(heads []int, then func()) {
	if len(heads) == 0 {
		then()
		return
	}
	c.heads[heads[0]].acquire(func() { c.lockHeads(heads[1:], then) })
}

func (w *writer) answer(group []*request) {
	c := w.c
	c.appends++
	for _, r := range group {
		c.store(r)
		if c.dead[w.node] { // durable, but without an answer: the client retries, a duplicate
			c.retry(r)
			continue
		}
		if r.due >= c.from {
			c.ingest.add(c.now-r.due+c.trip*(requestTrips-headTrips), r.n)
		}
		if r.answered != nil {
			r.answered()
		}
	}
	c.mostBacklog = max(c.mostBacklog, c.backlog())
	w.busy = false
	w.kick()
}

// store counts a request's events once.
func (c *cell) store(r *request) {
	if r.stored {
		return
	}
	r.stored = true
	c.recorded += r.n
	if c.relay == nil { // no stage applies them
		c.applied += r.n
		return
	}
	c.logged(r.partition, parcel{n: r.n, recorded: c.now})
}

// logged passes events of the log to its readers.
func (c *cell) logged(partition int, p parcel) {
	c.relay.put(partition, p)
	c.projector.put(partition, p)
}

// byWeight returns the partition of the next request.
func (c *cell) byWeight() int {
	x := c.rng.Float64()
	for p, w := range c.weights {
		if x -= w; x < 0 {
			return p
		}
	}
	return len(c.weights) - 1
}
