package main

// rate is a cost in microseconds of CPU time: for each operation, and for each event of the operation.
type rate struct{ fixed, each float64 }

func (r rate) of(n int) float64 { return r.fixed + r.each*float64(n) }

// costs are the measured costs, divided over the simulated operations.
type costs struct {
	request rate // service: an HTTP request, with its share of the writer
	send    rate // load generator: the same
	append  rate // database: a transaction that appends, its rows
	// Costs after the append: for each round (a batch and its transaction) of any stage, and for
	// each event, all stages together.
	service, database, broker rate
}

// fit solves cost = fixed × rounds + each for two measurements, the second with the
// larger batches. If each would be negative, fit uses only the second measurement,
// since cells have large batches; the validation shows the resulting error.
func fit(cost1, rounds1, cost2, rounds2 float64) rate {
	fixed := max(0, (cost1-cost2)/(rounds1-rounds2))
	if fixed*rounds2 > cost2 {
		return rate{cost2 / rounds2, 0}
	}
	return rate{fixed, cost2 - fixed*rounds2}
}

// guess is the start of the iteration in calibrate.
func guess() costs {
	return costs{append: rate{150, 8}, service: rate{200, 30}, database: rate{300, 20}, broker: rate{200, 5}}
}

// calibrate divides the measured CPU time. The simulation gives the number of rounds
// and transactions for each event, which depends on the costs, so calibrate iterates
// until both agree.
func (in *inputs) calibrate() costs {
	cpu := func(id string) perProcess { return in.figures[id].CPU.Each }
	b1, b2, b4, b5 := cpu("B1"), cpu("B2"), cpu("B4"), cpu("B5")
	c := guess()
	c.request, c.send = fit(b2.Service, 1, b1.Service, 1.0/1000), fit(b2.Load, 1, b1.Load, 1.0/1000)
	const passes = 4
	for range passes {
		m1, m2 := in.benchB1(c, 2), in.benchB2(c, 1.5)
		m4, m5 := in.benchB4(c, 20), in.benchB5(c, 6)
		next := costs{request: c.request, send: c.send}
		next.append = fit(b2.Postgres, m2.appendsEach(), b1.Postgres, m1.appendsEach())
		r4, r5 := m4.roundsEach(), m5.roundsEach()
		next.service = fit(b5.Service-c.request.of(1), r5, b4.Service-c.request.of(100)/100, r4)
		next.database = fit(b5.Postgres-next.append.each-next.append.fixed*m5.appendsEach(), r5,
			b4.Postgres-next.append.each-next.append.fixed*m4.appendsEach(), r4)
		next.broker = fit(b5.Kafka, m5.relaysEach(), b4.Kafka, m4.relaysEach())
		c = next
	}
	return c
}
