package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// table is a table of the documents.
type table struct {
	name string
	text string
}

func (in *inputs) tables() []table {
	c := in.calibrate()
	limit := in.limit(c)
	var sizes []size
	for _, rate := range in.plan.Traffic.Rates {
		sizes = append(sizes, in.size(c, rate, limit))
	}
	return []table{
		{"source", in.sourceText()},
		{"validation", in.validationTable(c)},
		{"cpu", in.cpuTable(c)},
		{"costs", in.costsTable(c)},
		{"requests", in.requestsTable(c)},
		{"cell", in.cellTable(c, limit)},
		{"levers", in.leversTable(c, limit)},
		{"rates", in.ratesTable(sizes)},
		{"network", in.networkTable(sizes)},
		{"skew", in.skewTable(sizes)},
		{"shocks", in.shocksTable(c, sizes[len(sizes)-1])},
		{"whale", in.whaleTable(c, sizes)},
		{"storage", in.storageTable(sizes)},
		{"money", in.moneyTable(sizes)},
	}
}

// num formats a number with three significant figures and commas.
func num(v float64) string {
	if v == 0 {
		return "0"
	}
	if math.Abs(v) < 1000 {
		return strconv.FormatFloat(round3(v), 'f', -1, 64)
	}
	whole := strconv.FormatFloat(round3(v), 'f', 0, 64)
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return whole
}

func round3(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64)
	return r
}

func grid(head string, rows ...[]string) string {
	var b strings.Builder
	columns := strings.Split(head, "|")
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

func (in *inputs) sourceText() string {
	return fmt.Sprintf("Measured: [latest.json](../benchmarks/latest.json) of %s, commit %.12s, %d cores of %s. Bytes of "+
		"write-ahead log: %s.\n"+
		"Assumed: [plan.json](../../test/scaling/plan.json) of %s.\n",
		in.report.Date, in.report.Versions.Commit, in.report.Machine.Cores, in.report.Machine.Processor, in.walFrom, in.plan.Date)
}

// compared is a row with a measured and a simulated value.
func compared(what string, measured, simulated float64, unit string) []string {
	factor := "–"
	if measured > 0 {
		factor = num(simulated / measured)
	}
	return []string{what, num(measured) + unit, num(simulated) + unit, factor}
}

func (in *inputs) validationTable(c costs) string {
	f := in.figures
	p1, p2, b5, b4 := in.pacedB1(c), in.pacedB2(c), in.benchB5(c, 30), in.benchB4(c, 40)
	const mixedFor = 10
	rows := [][]string{
		compared("B1, batches of 1,000, 4 clients", f["B1"].Value, in.benchB1(c, 8).perSecond, "/s"),
		compared("B2, single events, 64 clients", f["B2"].Value, in.benchB2(c, 8).perSecond, "/s"),
		compared("B4, end to end, until all events are applied", f["B4"].Value, b4.perSecond, "/s"),
		compared("B1+, B1 with all roles on the same cores", f["B1+"].Value, in.benchMixed(c, mixedFor).perSecond, "/s"),
	}
	late := func(what, id string, r *times) {
		if l := f[id].Latency; l != nil {
			rows = append(rows, compared(what+", p50", l.P50, r.quantile(0.5), " ms"), compared(what+", p99", l.P99, r.quantile(0.99),
				" ms"))
		}
	}
	late("B1, a request at 70 % of it", "B1", &p1.ingest)
	late("B2, a request at 70 % of it", "B2", &p2.ingest)
	late("B3, a request, 1,000/s with all roles", "B3", &b5.ingest)
	late("B4, a request in overload", "B4", &b4.ingest)
	late("B5, freshness at 1,000/s", "B5", &b5.fresh)
	return grid("figure|measured|simulated|factor", rows...)
}

func (in *inputs) cpuTable(c costs) string {
	var rows [][]string
	add := func(id string, r *benchRun) {
		m, s := in.figures[id].CPU.Each, r.each()
		pair := func(m, s float64) string { return num(m) + " / " + num(s) }
		writes := "–"
		if w := in.writes(id); w > 0 {
			n := float64(r.appends) / float64(max(1, r.recorded))
			if r.relay != nil {
				n += r.roundsEach()
			}
			writes = pair(w, n)
		}
		rows = append(rows, []string{id, pair(m.Service, s.Service), pair(m.Postgres, s.Postgres), pair(m.Kafka, s.Kafka), writes})
	}
	add("B1", in.benchB1(c, 8))
	add("B2", in.benchB2(c, 8))
	add("B4", in.benchB4(c, 40))
	add("B5", in.benchB5(c, 30))
	return grid("#|service, µs|PostgreSQL, µs|Kafka, µs|writing transactions", rows...)
}

func (in *inputs) costsTable(c costs) string {
	row := func(what, from string, r rate, of string) []string {
		return []string{what, num(r.fixed) + " a " + of, num(r.each), from}
	}
	return grid("cost, µs of CPU|fixed|for each event|from",
		row("service: ingest", "B1, B2", c.request, "request"),
		row("PostgreSQL: appending", "B1, B2", c.append, "transaction"),
		row("service: relay, validator, aggregator, projector", "B4, B5 less ingest", c.service, "round"),
		row("PostgreSQL: the same", "B4, B5 less appending", c.database, "round"),
		row("Kafka: both topics", "B4, B5", c.broker, "round of the relay"))
}

func (in *inputs) requestsTable(c costs) string {
	var rows [][]string
	for _, n := range []int{1, 10, 100, 1000} {
		svc, db := c.request.of(n)/float64(n), c.append.of(n)/float64(n)
		const hundredThousand = 1e5
		rows = append(rows, []string{num(float64(n)), num(svc), num(db), num((svc + db) * hundredThousand / 1e6)})
	}
	return grid("events in a request|service, µs each|PostgreSQL, µs each, a transaction for each request|cores for ingest of "+
		"100,000 events/s", rows...)
}

func (in *inputs) cellTable(c costs, limit float64) string {
	rows := [][]string{}
	for _, part := range []float64{0.1, 0.25, 0.5, 0.75, 1, 1.25, 1.5} {
		const took = 12.0
		rate := limit * part
		l := in.steadyCell(c, even(), rate, took)
		u := l.usage()
		note := ""
		if part == 1 {
			note = " (the limit)"
		}
		rows = append(rows, []string{num(rate) + note, num(u.api), num(u.postgres), num(u.workers), num(u.kafka),
			num(l.disk.written / took / 1e6),
			num(l.ingest.quantile(0.5)) + " / " + num(l.ingest.quantile(0.99)),
			num(l.fresh.quantile(0.5)) + " / " + num(l.fresh.quantile(0.99)),
			num(float64(l.offered-l.applied) / rate)})
	}
	p := in.plan.Cell
	head := fmt.Sprintf("events/s|API, cores of %d|PostgreSQL, of %d|workers, of %d|Kafka, of %d|log, MB/s|ingest p50 / p99, "+
		"ms|freshness p50 / p99, ms|behind at the end, s",
		p.API.Count*p.API.Cores, p.Postgres.Cores, p.Workers.Count*p.Workers.Cores, p.BrokerCores)
	return grid(head, rows...)
}
