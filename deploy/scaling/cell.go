package main

import "slices"

const (
	partitions   = 32   // of a log
	nodeWriters  = 4    // of each instance; writer p mod 4 appends to partition p
	smallRows    = 16   // of a request that goes through the instance's one writer for all partitions
	crowd        = 16   // rows of its group, after which the next waits for as many
	linger       = 1.0  // ms at most
	groupRows    = 2000 // most rows that are committed together
	headTrips    = 1    // round trips to the database while heads are held: COPY, heads and COMMIT in one
	requestTrips = 2
	verdictRows  = 200 // most events of a partition that get their verdicts in one transaction
)

// site is what a cell runs on. On the benchmark's machine all of it is one processor.
type site struct {
	api, workers  []*processor
	postgres      *processor
	kafka         *processor
	load          *processor // nil: clients cost us nothing
	disk          *disk
	trip, publish int64 // to the database and back; until the broker has answered
}

// parcel is events of one partition that go the same way.
type parcel struct {
	n        int
	verdict  bool
	recorded int64 // when their request was committed
}

// request is what a client sends.
type request struct {
	n, partition int
	due          int64
	node         int
	stored       bool
	answered     func()
}

// cell is one log in one database with the instances that serve it.
type cell struct {
	*sim
	site
	costs
	weights                                 []float64 // of the partitions, summed up to 1
	wal                                     struct{ recorded, verdict float64 }
	pick                                    func() int // of a partition, for the next request
	heads                                   [partitions]lock
	writers                                 []*writer
	dead                                    []bool // API nodes
	out                                     []bool // those that get no requests any more
	wait                                    int64  // of a client for an answer that does not come
	next                                    int
	down                                    [partitions]bool // partitions whose leader is away
	relay, validator, aggregator, projector *stage

	tally
}

// tally is what a run comes to. Latencies count from the end of the warm-up.
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

// writer commits what waits for its partitions in groups.
type writer struct {
	c     *cell
	node  int
	queue []*request
	busy  bool
	// Of the writer for small requests of all partitions:
	shared  bool
	groups  int  // begun
	last    int  // rows of its last one
	waiting bool // for a crowd
}

func newCell(s *sim, at site, c costs, in *inputs, weights []float64) *cell {
	l := &cell{sim: s, site: at, costs: c, weights: weights, dead: make([]bool, len(at.api)), out: make([]bool, len(at.api))}
	for n := range at.api {
		for range nodeWriters {
			l.writers = append(l.writers, &writer{c: l, node: n})
		}
		l.writers = append(l.writers, &writer{c: l, node: n, shared: true})
	}
	// What the whole way writes beyond what is recorded is taken to be the verdict's.
	l.wal.recorded, l.wal.verdict = in.walIngest, max(0, in.walAll-in.walIngest)
	l.pick = l.byWeight
	return l
}

// arrive is a request that comes over the network to one of the nodes that live.
func (c *cell) arrive(r *request) {
	for c.next++; c.out[c.next%len(c.api)]; c.next++ {
	}
	r.node = c.next % len(c.api)
	c.api[r.node].run(service, c.request.of(r.n), func() {
		if c.dead[r.node] {
			c.again(r)
			return
		}
		w := c.writer(r, r.n <= smallRows)
		w.queue = append(w.queue, r)
		w.kick()
	})
}

// writer is who commits a request.
func (c *cell) writer(r *request, small bool) *writer {
	of := c.writers[r.node*(nodeWriters+1):][:nodeWriters+1]
	if small {
		return of[nodeWriters]
	}
	return of[r.partition%nodeWriters]
}

// again is what a client does that gets no answer: it waits, and asks another node.
func (c *cell) again(r *request) { c.after(c.wait, func() { c.arrive(r) }) }

func (w *writer) kick() {
	if w.busy || len(w.queue) == 0 || w.shared && w.gathers() {
		return
	}
	if w.shared {
		w.passOn()
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

// gathers tells that the next group waits for as many as the last one had.
func (w *writer) gathers() bool {
	rows := 0
	for _, r := range w.queue {
		rows += r.n
	}
	if w.last < crowd || rows >= w.last {
		return false
	}
	if !w.waiting {
		w.waiting = true
		before := w.groups
		w.c.after(millis(linger), func() {
			w.waiting = false
			if w.groups == before {
				w.last = 0 // they do not come
			}
			w.kick()
		})
	}
	return true
}

// passOn leaves requests whose heads somebody else has to the writers of their
// partitions, which wait.
func (w *writer) passOn() {
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

// hold is a transaction that has heads until it is durable.
func (c *cell) hold(heads []int, cost, bytes float64, done func()) {
	c.lockAll(heads, func() {
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

func (c *cell) lockAll(heads []int, then func()) {
	if len(heads) == 0 {
		then()
		return
	}
	c.heads[heads[0]].take(func() { c.lockAll(heads[1:], then) })
}

func (w *writer) answer(group []*request) {
	c := w.c
	c.appends++
	for _, r := range group {
		c.store(r)
		if c.dead[w.node] { // durable, but the client does not know: it comes again, as a duplicate
			c.again(r)
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

// store counts a request's events, once.
func (c *cell) store(r *request) {
	if r.stored {
		return
	}
	r.stored = true
	c.recorded += r.n
	if c.relay == nil { // nobody is there to apply them
		c.applied += r.n
		return
	}
	c.logged(r.partition, parcel{n: r.n, recorded: c.now})
}

// logged hands what stands in the log to those who read it.
func (c *cell) logged(partition int, p parcel) {
	c.relay.put(partition, p)
	c.projector.put(partition, p)
}

// byWeight gives a partition for the next request.
func (c *cell) byWeight() int {
	x := c.rng.Float64()
	for p, w := range c.weights {
		if x -= w; x < 0 {
			return p
		}
	}
	return len(c.weights) - 1
}
