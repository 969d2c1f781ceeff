package main

import (
	"fmt"
	"math"
	"strconv"
)

// across makes a table with a column for each rate.
func across(sizes []size, what string, rows ...func(s size) (string, string)) string {
	head, cells := what, make([][]string, len(rows))
	for _, s := range sizes {
		head += "|" + num(s.rate) + " events/s"
	}
	for i, row := range rows {
		for k, s := range sizes {
			name, v := row(s)
			if k == 0 {
				cells[i] = []string{name}
			}
			cells[i] = append(cells[i], v)
		}
	}
	return grid(head, cells...)
}

func (in *inputs) ratesTable(sizes []size) string {
	p := in.plan.Cell
	count := func(n int) string { return num(float64(n)) }
	ms := func(t *times, q float64) string { return num(t.quantile(q)) }
	return across(sizes, "needed",
		func(s size) (string, string) { return "cells", count(s.cells) },
		func(s size) (string, string) { return "log partitions", count(s.cells * partitions) },
		func(s size) (string, string) { return "events/s of a cell", num(s.perCell) },
		func(s size) (string, string) {
			return fmt.Sprintf("PostgreSQL nodes of %d cores, including standbys", p.Postgres.Cores), count(s.cells * (1 + p.Standbys))
		},
		func(s size) (string, string) {
			return fmt.Sprintf("API nodes of %d cores", p.API.Cores), count(s.cells * p.API.Count)
		},
		func(s size) (string, string) {
			return fmt.Sprintf("worker nodes of %d cores", p.Workers.Cores), count(s.cells * p.Workers.Count)
		},
		func(s size) (string, string) {
			return fmt.Sprintf("Kafka brokers of %d cores (limited by)", in.plan.Kafka.Cores), fmt.Sprintf("%d (%s)", s.brokers, s.binds)
		},
		func(s size) (string, string) { return "Kafka partitions, replicas counted", num(s.replicas) },
		func(s size) (string, string) {
			peak := in.figures["B4"].Memory.Peak
			return fmt.Sprintf("memory of the service, %s MiB an instance (its peak in B4)", num(peak)),
				num(float64(s.cells*(p.API.Count+p.Workers.Count))*peak/1024) + " GiB"
		},
		func(s size) (string, string) {
			u := s.run.usage()
			return "simulated: PostgreSQL cores in use, of a cell", num(u.postgres)
		},
		func(s size) (string, string) {
			return "simulated: ingest p50 / p99, ms", ms(&s.run.ingest, 0.5) + " / " + ms(&s.run.ingest, 0.99)
		},
		func(s size) (string, string) {
			return "simulated: freshness p50 / p99, ms", ms(&s.run.fresh, 0.5) + " / " + ms(&s.run.fresh, 0.99)
		},
	)
}

// variant is a change of the plan.
type variant struct {
	what   string
	change func(p *plan)
}

func (in *inputs) leversTable(c costs, limit float64) string {
	set := func(what string, change func(p *plan)) variant { return variant{what, change} }
	requests := func(n int) func(p *plan) {
		return func(p *plan) { p.Traffic.Requests = []portion{{n, 1}} }
	}
	rows := [][]string{{"as planned", num(limit), "1"}}
	for _, m := range []variant{
		set("1 worker node in place of 3", func(p *plan) { p.Cell.Workers.Count = 1 }),
		set("6 worker nodes", func(p *plan) { p.Cell.Workers.Count = 6 }),
		set("1 API node in place of 3", func(p *plan) { p.Cell.API.Count = 1 }),
		set("half the cores of the primary", func(p *plan) { p.Cell.Postgres.Cores /= 2 }),
		set("twice the cores of the primary", func(p *plan) { p.Cell.Postgres.Cores *= 2 }),
		set("cores twice as fast", func(p *plan) { p.Cell.Speed *= 2 }),
		set("round trips of 1 ms", func(p *plan) { p.Cell.RoundTripMs = 1 }),
		set("commits of 3 ms (a synchronous standby in another zone)", func(p *plan) { p.Cell.Fsync = spread{3, 12} }),
		set("all in requests of 1", requests(1)),
		set("all in requests of 10", requests(10)),
		set("all in requests of 1,000", requests(1000)),
	} {
		other := *in
		m.change(&other.plan)
		v := other.limit(c)
		rows = append(rows, []string{m.what, num(v), num(v / limit)})
	}
	best, most := "", 0.0
	for _, row := range rows {
		if v, _ := strconv.ParseFloat(row[2], 64); v > most {
			best, most = row[0], v
		}
	}
	return grid("a cell|events/s|of the planned one's", rows...) + fmt.Sprintf("\nGreatest effect: %s.\n", best)
}

func (in *inputs) networkTable(sizes []size) string {
	m := in.plan.Measured
	flow := func(name string, each float64) func(s size) (string, string) {
		return func(s size) (string, string) { return name, num(s.rate * each / 1e6) }
	}
	k := in.plan.Kafka
	return across(sizes, "MB/s",
		flow("clients to API nodes", m.RequestBytes),
		flow("API nodes to primaries (no more than the log's bytes)", in.walIngest),
		flow("primaries to standbys", in.walAll*float64(in.plan.Cell.Standbys)),
		flow("primaries to relays (rows, no more than the records)", m.RawRecord+m.ValidRecord),
		flow("relays to brokers", in.kafkaBytes()),
		flow("between brokers", in.kafkaBytes()*(k.Replication-1)),
		flow("brokers to consumers", in.kafkaBytes()*k.Groups),
		flow("workers to primaries (verdicts)", max(0, in.walAll-in.walIngest)),
	)
}

func (in *inputs) skewTable(sizes []size) string {
	var rows [][]string
	for _, s := range sizes {
		for _, directory := range []bool{true, false} {
			by := "hash"
			if directory {
				by = "directory"
			}
			k := in.skew(s.cells, directory)
			rows = append(rows, []string{num(float64(s.cells)), by, num(k.cell) + " / " + num(k.worstCell),
				num(k.partition) + " / " + num(k.worstPartition)})
		}
	}
	return grid("cells|tenants placed by|fullest cell / mean cell, mean / worst|fullest partition / mean partition, mean / worst", rows...)
}

func (in *inputs) shocksTable(c costs, s size) string {
	var rows [][]string
	for _, sh := range in.shocks() {
		x := in.shock(c, s.weights, s.perCell*s.overCell, sh)
		drained := num(x.drained)
		if x.drained < 0 {
			drained = fmt.Sprintf("not within %.0f", shockRun-shockAt)
		}
		rows = append(rows, []string{sh.name, num(x.ingest.quantile(0.5)) + " / " + num(x.ingest.quantile(0.99)), num(x.ingest.quantile(1)),
			num(x.fresh.quantile(0.5)) + " / " + num(x.fresh.quantile(0.99)), num(float64(x.mostBehind)), drained,
			num(float64(x.offered - x.applied))})
	}
	head := fmt.Sprintf("a cell at %s events/s|ingest p50 / p99, ms|max|freshness p50 / p99, ms|largest backlog|backlog as before "+
		"after, s|backlog at the end", num(s.perCell*s.overCell))
	return grid(head, rows...)
}

func (in *inputs) whaleTable(c costs, sizes []size) string {
	appends, whole := in.partitionLimit(c)
	limit, share := in.whaleLimit(c), in.plan.Tenants.Whale
	keeps := limit / in.plan.Traffic.Burst
	var rows [][]string
	for _, part := range []float64{0.25, 0.5, 0.75, 1, 1.25, 2, 4} {
		const took = 12.0
		rate := limit * part
		l := in.steadyCell(c, with(even(), share), rate/share, took)
		late := num(l.fresh.quantile(0.99))
		if float64(l.offered-l.applied) > rate {
			late = "grows"
		}
		rows = append(rows, []string{num(rate), num(float64(l.recorded) * share / took), num(float64(l.applied) * share / took), late})
	}
	text := grid("one tenant, "+num(share*100)+" % of its cell: sent/s|recorded/s|applied/s|freshness p99, ms", rows...)
	text += fmt.Sprintf("\nLimit by the head alone: %s events/s if only ingest locks it, %s with the results of validation, %d at a time.\n"+
		"In the simulation, whose rounds wait for the head in turn, one tenant can send **%s events/s**; %s leave room for a burst.\n\n",
		num(appends), num(whole), verdictRows, num(limit), num(keeps))
	sizesOf := in.plan.Tenants.population()
	shards := [][]string{}
	for _, s := range sizes {
		above := 0
		for _, part := range sizesOf {
			if part*s.rate > keeps {
				above++
			}
		}
		shards = append(shards, []string{num(s.rate), num(math.Ceil(s.rate * share / keeps)), num(sizesOf[0] * s.rate),
			num(float64(above))})
	}
	return text + grid(fmt.Sprintf("events/s in all|shards for a whale of %s %%|without a whale: the largest tenant, "+
		"events/s|tenants above %s", num(share*100), num(keeps)), shards...)
}

func (in *inputs) storageTable(sizes []size) string {
	volume := in.plan.Cell.VolumeTB
	tb := func(s size, v float64) string { return num(v) + " TB; " + num(v/float64(s.cells)) + " of a cell" }
	st := in.plan.Storage
	return across(sizes, fmt.Sprintf("%s B in PostgreSQL for each event", num(in.diskEach)),
		func(s size) (string, string) { return "a day", tb(s, s.rate*day/1e12*in.diskEach) },
		func(s size) (string, string) {
			return "in PostgreSQL by the classes' days", tb(s, in.storage(s.rate).byClass)
		},
		func(s size) (string, string) {
			return fmt.Sprintf("in PostgreSQL, archived after %s days", num(st.EarlyDays)), tb(s, in.storage(s.rate).early)
		},
		func(s size) (string, string) {
			return fmt.Sprintf("days until %s TB, the largest volume, are full", num(volume)),
				num(volume / (s.rate / float64(s.cells) * day / 1e12 * in.diskEach))
		},
		func(s size) (string, string) {
			return fmt.Sprintf("archive at %s B, full after %s days", num(st.ParquetEach), num(st.longest())),
				num(in.storage(s.rate).archive) + " TB"
		},
		func(s size) (string, string) {
			return fmt.Sprintf("keys of archived events at %s B, kept for ever: each year", num(st.KeyEach)),
				tb(s, in.storage(s.rate).keysYear)
		},
		func(s size) (string, string) { return "Kafka, all replicas", num(s.kafkaDisk) + " TB" },
		func(s size) (string, string) {
			const hour = 3600
			return "hours of a rebuild of a cell's " + num(st.EarlyDays) + " days, at B8's rate",
				num(s.perCell * day * st.EarlyDays / in.figures["B8"].Value / hour)
		},
	)
}

func (in *inputs) moneyTable(sizes []size) string {
	usd := func(v float64) string { return "$" + num(v) }
	const million = 1e6
	row := func(name string, early bool, of func(b bill) float64) func(s size) (string, string) {
		return func(s size) (string, string) { return name, usd(of(in.bill(s, early))) }
	}
	const perMonth = 30.4 * day
	return across(sizes, "a month",
		row("cores", true, func(b bill) float64 { return b.cores }),
		row("disks, archived early", true, func(b bill) float64 { return b.ssd }),
		row("archive and its keys in an object store, when full", true, func(b bill) float64 { return b.object }),
		row("traffic between zones", true, func(b bill) float64 { return b.zones }),
		row("**total**", true, bill.sum),
		func(s size) (string, string) {
			return "for a million events", usd(in.bill(s, true).sum() / (s.rate * perMonth) * million)
		},
		row("total, with the classes' days in PostgreSQL", false, bill.sum),
	)
}
