package main

import (
	"fmt"
	"time"
)

// The figures with their raw limits and aims.

func atLeast(text string, least float64) aim {
	return aim{text, func(f *Figure) bool { return f.Value >= least }}
}

func ratioAtLeast(text string, least float64) aim {
	return aim{text, func(f *Figure) bool { return f.Ratio >= least }}
}

func below(text string, of func(l *Latency) float64, most float64) aim {
	return aim{text, func(f *Figure) bool { return of(f.Latency) <= most }}
}

func p50(l *Latency) float64 { return l.P50 }
func p99(l *Latency) float64 { return l.P99 }

func figureB1() Figure {
	return Figure{
		ID: "B1", Unit: "events/s", What: "durable ingest, batches of 1,000, 4 clients (role api)",
		LimitIs: "the same rows by binary COPY into the same table and indexes, 4 connections, 1,000 a commit, no service",
		aims:    []aim{atLeast("≥ 40,000 events/s", 40_000), ratioAtLeast("≥ 0.85 of the limit", 0.85)},
	}
}

func figureB2(how string) Figure {
	return Figure{
		ID: "B2", Unit: "events/s", What: "durable ingest, single events, 64 clients (role api)",
		LimitIs: "one insert and commit each into the same columns and indexes, 64 connections: " + how,
		aims:    []aim{ratioAtLeast("≥ 0.8 of pgbench", 0.8)},
	}
}

func figureB3() Figure {
	return Figure{
		ID: "B3", Unit: "ms (p99)", What: "ingest latency at 1,000 single requests/s, open loop (all roles)",
		LimitIs: "a bare commit's p99: one insert and commit each at the same rate, beside the idle service",
		aims:    []aim{below("p99 < 12 ms", p99, 12)},
	}
}

func figureB4() Figure {
	return Figure{
		ID: "B4", Unit: "events/s", What: "end to end over Kafka: recorded → validated → aggregated, from the first event until all are " +
			"in the aggregates (all roles)",
		aims: []aim{atLeast("≥ 40,000 events/s", 40_000), {"≤ 35 µs of CPU for each event", func(f *Figure) bool {
			return f.CPU.MicrosEach.ours() <= 35
		}}},
	}
}

func figureB4c() Figure {
	return Figure{
		ID: "B4c", Unit: "events/s", What: fmt.Sprintf("B4 with %.0f %% corrections, each of an event of an earlier request (all roles)",
			correctedShare*100),
		LimitIs: "B4 of the same run",
		aims:    []aim{ratioAtLeast("≥ 0.8 of B4", 0.8)},
	}
}

// figureB7 is a figure of consumptions: B7a on an instance that only ingests, B7b with all roles, B7c denied, B7d held before.
func figureB7(id string) Figure {
	f := Figure{ID: id, Unit: "decisions/s", LimitIs: "single usage events of the same tenant, recorded in the same way"}
	switch id {
	case "B7a":
		f.What, f.aims = "consume on one account, 64 clients (role api)", []aim{ratioAtLeast("≥ 0.75 of single events", 0.75)}
	case "B7b":
		f.What, f.aims = "consume on one account, 64 clients (all roles)", []aim{ratioAtLeast("≥ 0.75 of single events", 0.75)}
	case "B7c":
		f.What, f.aims = "denied consumptions, the limit is reached, 64 clients (role api)",
			[]aim{ratioAtLeast("≥ 2 times single events", 2)}
	case "B7d":
		f.Unit, f.What = "pairs/s", "hold and commit on one account, 64 clients (role api)"
		f.aims = []aim{ratioAtLeast("≥ 0.2 of single events", 0.2), below("p99 of a pair < 25 ms at 1,000 pairs/s", p99, 25)}
	}
	return f
}

func figureB12() Figure {
	return Figure{
		ID: "B12", Unit: "events/s", What: "end to end with single events, 64 clients, from the first event until all are in the " +
			"aggregates (all roles)",
		LimitIs: "B2 of the same run: the same load on an instance that only ingests",
		aims:    []aim{ratioAtLeast("≥ 0.6 of B2", 0.6)},
	}
}

func figureB5() Figure {
	return Figure{
		ID: "B5", Unit: "ms (p50)", What: "freshness at 1,000 events/s: from the 202 until the aggregate is readable over HTTP (all roles)",
		LimitIs: "Kafka's own path: produce (acks=all), consume, produce, consume at the same rate, p50",
		aims:    []aim{below("p50 ≤ 10 ms", p50, 10), below("p99 ≤ 40 ms", p99, 40)},
	}
}

func figureMixed() Figure {
	return Figure{ID: "B1+", Unit: "events/s",
		What: "B1's load while relay, validator, aggregator and projector run on the same cores (all roles)"}
}

func figureB6() Figure {
	return Figure{
		ID: "B6", Unit: "checks/s", What: "entitlement checks over HTTP, one a request, 32 clients on kept connections (all roles)",
		LimitIs: "an HTTP server of the same kind, as another process, whose handler sends an empty answer",
		aims:    []aim{atLeast("≥ 30,000 checks/s", 30_000), below("p99 < 1 ms at 5,000/s", p99, 1)},
	}
}

func figureB9(away time.Duration) Figure {
	return Figure{
		ID: "B9", Unit: "s",
		What: fmt.Sprintf("drain after the broker was down for %.0f s under 2,000 events/s, which continue (all roles)", away.Seconds()),
		aims: []aim{
			{"≤ 20 s", func(f *Figure) bool { return f.Value <= 20 }},
			{"ingest p99 meanwhile within a quarter of before", func(f *Figure) bool { return f.Latency.P99 <= 1.25*f.LimitLatency.P99 }},
		},
	}
}

func figureCloses(tenants, lines int) Figure {
	return Figure{
		ID: "closes", Unit: "s", What: fmt.Sprintf("close of the month of %s tenants with %d figures each, all requested at once, under "+
			"%d events/s (all roles)", thousands(int64(tenants)), lines, outageRate),
		aims: []aim{
			{"≤ 60 s", func(f *Figure) bool { return f.Value <= 60 }},
			{"ingest p99 meanwhile within a quarter of before", func(f *Figure) bool { return f.Latency.P99 <= 1.25*f.LimitLatency.P99 }},
		},
	}
}

func figureCloseLong(events int) Figure {
	return Figure{
		ID: "close", Unit: "s", What: fmt.Sprintf("close of a period of one tenant with %s events, from the request until its figures "+
			"are frozen (all roles)", thousands(int64(events))),
		aims: []aim{
			{"≤ 120 s", func(f *Figure) bool { return f.Value <= 120 }},
			{"heads held < 50 ms in all", func(f *Figure) bool { return f.heldHead < 50*time.Millisecond }},
		},
	}
}

func figureIdle() Figure {
	return Figure{
		ID: "idle", Unit: "% of a core", What: "the service without requests; CPU and writes below are for each second (all roles)",
		aims: []aim{{"< 2 %", func(f *Figure) bool { return f.Value < 2 }}},
	}
}

func figureOverload(d time.Duration) Figure {
	return Figure{
		ID: "overload", Unit: "events/s", What: fmt.Sprintf("accepted while %s events/s are offered for %.0f s (all roles)",
			thousands(overloadRate), d.Seconds()),
	}
}

func figureMany(tenants int) Figure {
	f := figureTenants("B4/many", fmt.Sprintf("B4's load from %s tenants evenly, of a QUOTA feature (all roles)",
		thousands(int64(tenants))))
	f.aims = []aim{atLeast("≥ 15,000 events/s", 15_000)}
	return f
}

func figureTenants(id, what string) Figure { return Figure{ID: id, Unit: "events/s", What: what} }

func figureInstances(id string, n int, what string) Figure {
	return Figure{ID: fmt.Sprintf("%s/%d", id, n), Unit: "events/s",
		What: fmt.Sprintf("%s with %d processes of the service (all roles each)", what, n)}
}

// figureGrown is a figure of B10, compared with the same figure of a small log.
func figureGrown(of Figure, events, base int) Figure {
	of.ID, of.aims = "B10/"+of.ID, nil
	of.What = fmt.Sprintf("%s, with %s events in the log", of.What, thousands(int64(events)))
	of.LimitIs = fmt.Sprintf("the same with %s events in the log", thousands(int64(base)))
	return of
}

func figureB8(total int) Figure {
	return Figure{
		ID: "B8", Unit: "events/s", What: fmt.Sprintf("rebuild of usage_aggregates from a log of %s usage events with their verdicts, "+
			"until it has caught up with the live one, with %d concurrent reads/s and the default number of workers (all roles)",
			thousands(int64(total)), readRate),
		LimitIs: "COPY OUT of the columns that the fold needs, 2 connections, discarded",
		aims: []aim{ratioAtLeast("≥ 0.3 of the limit", 0.3),
			{"p99 of reads ≤ 1.5 × without a rebuild", func(f *Figure) bool { return f.Latency.P99 <= 1.5*f.LimitLatency.P99 }}},
	}
}

func figureB8Alone() Figure {
	return Figure{
		ID: "B8/100", Unit: "events/s", What: fmt.Sprintf("the same rebuild with METERPLEX_REBUILD_SHARE=100, %d workers and no other load",
			rebuildWorkers),
		LimitIs: "B8's",
		aims:    []aim{ratioAtLeast("≥ 0.8 of the limit", 0.8)},
	}
}

// The figures of reads have the greatest p99 of their reads as value.

func figureB13Explain(size int) Figure {
	return Figure{
		ID: "B13/explain", Unit: "ms (p99)", What: fmt.Sprintf("explain a figure of %s events, a page of %d (all roles)",
			thousands(int64(size)), pageSize),
		LimitIs: "the live read of the same figure",
		aims:    []aim{readsBelow("p99 < 100 ms", 100)},
	}
}

func figureB13AsOf(size int) Figure {
	return Figure{
		ID: "B13/as-of", Unit: "ms (p99)", What: fmt.Sprintf("a figure of %s events as of a position or a time (all roles)",
			thousands(int64(size))),
		LimitIs: "the live read of the same figure",
		aims:    []aim{readsBelow("p99 < 250 ms", 250)},
	}
}

func figureP12Lists(size int) Figure {
	return Figure{
		ID: "P12/lists", Unit: "ms (p99)", What: fmt.Sprintf("lists of usage events of a tenant with %s of them, a page of %d (all roles)",
			thousands(int64(size)), pageSize),
		LimitIs: "the live read of a figure",
		aims:    []aim{readsBelow("p99 < 100 ms", 100)},
	}
}

func figureP12Event(size int) Figure {
	return Figure{
		ID: "P12/event", Unit: "ms (p99)",
		What: fmt.Sprintf("receipt, lineage and stream of one event of a tenant with %s of them, with the tenant's key (all roles)",
			thousands(int64(size))),
		LimitIs: "the same reads with an operator's key",
		aims:    []aim{{"p50 ≤ 1.25 × an operator's", (*Figure).asFastAsLimit}},
	}
}

// readsBelow is met if the p99 of every read is at most the bound and no request was refused.
func readsBelow(text string, most float64) aim {
	return aim{text, func(f *Figure) bool {
		for i := range f.Reads {
			if x := &f.Reads[i]; !x.IsLimit && (x.Refused > 0 || x.Latency.Count == 0 || x.Latency.P99 > most) {
				return false
			}
		}
		return len(f.Reads) > 0
	}}
}

// asFastAsLimit compares each read with the same read that is its limit.
func (f *Figure) asFastAsLimit() bool {
	limits := map[string]float64{}
	for i := range f.Reads {
		if x := &f.Reads[i]; x.IsLimit {
			limits[x.Name] = x.Latency.P50
		}
	}
	for i := range f.Reads {
		if x := &f.Reads[i]; !x.IsLimit && (x.Refused > 0 || x.Latency.Count == 0 || x.Latency.P50 > 1.25*limits[x.Name]) {
			return false
		}
	}
	return len(limits) > 0
}
