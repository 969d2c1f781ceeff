package main

import "math"

// size is the hardware for one rate.
type size struct {
	rate, perCell                    float64
	cells                            int
	overCell                         float64 // the fullest cell's load divided by the mean
	weights                          []float64
	run                              *cell // simulation of the fullest cell at the average rate
	brokers                          int
	binds                            string
	kafkaIn, kafkaNet, kafkaDisk     float64 // MB/s of records; MB/s of the busier direction; TB
	postgres, api, workers, kafkaCPU float64 // cores
	replicas                         float64
}

// kafkaBytes is the bytes of an event on the topics, one copy.
func (in *inputs) kafkaBytes() float64 {
	m := in.plan.Measured
	return (m.RawRecord + m.ValidRecord) * m.Compressed
}

const day = 86400

func (in *inputs) size(c costs, rate, limit float64) size {
	s := size{rate: rate}
	sizes := in.plan.Tenants.population()
	// The fullest cell must bear a burst: add cells until it does.
	for s.cells = max(1, int(math.Ceil(rate*in.plan.Traffic.Burst/limit))); ; s.cells++ {
		_, s.overCell, s.weights = place(sizes, s.cells, 0, true).hottest()
		if rate/float64(s.cells)*s.overCell*in.plan.Traffic.Burst <= limit {
			break
		}
	}
	s.perCell = rate / float64(s.cells)
	s.run = in.steadyCell(c, s.weights, s.perCell*s.overCell, 10)
	p, n := in.plan.Cell, float64(s.cells)
	s.postgres = n * float64(p.Postgres.Count*p.Postgres.Cores*(1+p.Standbys))
	s.api, s.workers = n*float64(p.API.Count*p.API.Cores), n*float64(p.Workers.Count*p.Workers.Cores)
	in.brokers(&s)
	return s
}

func (in *inputs) brokers(s *size) {
	k := in.plan.Kafka
	s.kafkaIn = s.rate * in.kafkaBytes() / 1e6
	s.kafkaNet = s.kafkaIn * max(k.Replication, k.Replication-1+k.Groups)
	s.kafkaDisk = s.kafkaIn * k.Replication * day * k.RetentionDays / 1e6
	s.replicas = float64(s.cells) * partitions * k.Topics * k.Replication
	// Followers fetch the leader's records; each is assumed to cost as much CPU as the leader.
	s.kafkaCPU = s.run.usage().kafka * float64(s.cells) * k.Replication
	needs := []struct {
		what string
		n    float64
	}{
		{"replication", float64(k.Brokers)},
		{"CPU", s.kafkaCPU * in.plan.Traffic.Burst / (float64(k.Cores) * 2 * k.CPUAt)},
		{"network", s.kafkaNet * in.plan.Traffic.Burst / (k.NetworkMBps * 2 * k.CPUAt)},
		{"disk", s.kafkaDisk / (k.DiskTB * 2 * k.CPUAt)},
		{"partitions", s.replicas / k.BrokerPartitions},
	}
	for _, need := range needs {
		if n := int(math.Ceil(need.n)); n > s.brokers {
			s.brokers, s.binds = n, need.what
		}
	}
}

// storageNeed is storage: TB in PostgreSQL by the classes' days, and with early archiving; TB in the
// archive when it is full; TB of archived keys for each year, and when the archive is full.
type storageNeed struct{ byClass, early, archive, keysYear, keys float64 }

func (in *inputs) storage(rate float64) (h storageNeed) {
	s := in.plan.Storage
	perDay := rate * day / 1e12
	for _, c := range s.Classes {
		h.byClass += perDay * c.Share * c.Days * in.diskEach
		h.early += perDay * c.Share * min(c.Days, s.EarlyDays) * in.diskEach
		h.archive += perDay * c.Share * max(0, c.Days-s.EarlyDays) * s.ParquetEach
	}
	h.keysYear = perDay * 365 * s.KeyEach
	h.keys = perDay * s.longest() * s.KeyEach
	return h
}

// longest returns the days of the class with the longest retention.
func (s storage) longest() (days float64) {
	for _, c := range s.Classes {
		days = max(days, c.Days)
	}
	return days
}

// bill is the cost in dollars a month.
type bill struct{ cores, ssd, object, zones float64 }

func (b bill) sum() float64 { return b.cores + b.ssd + b.object + b.zones }

func (in *inputs) bill(s size, early bool) (b bill) {
	const hours, month = 730, 30.4 * day
	p, h := in.plan.Prices, in.storage(s.rate)
	copies := float64(1 + in.plan.Cell.Standbys)
	b.cores = (s.postgres + s.api + s.workers + float64(s.brokers*in.plan.Kafka.Cores)) * hours * p.Core
	inPostgres := h.byClass
	if early {
		inPostgres = h.early
		b.object = (h.archive + h.keys) * 1000 * p.Object
	}
	b.ssd = (inPostgres*copies + s.kafkaDisk) * 1000 * p.SSD
	// Traffic between zones: the standbys' WAL, the followers' records, two thirds of the readers'
	// records and two thirds of the appends.
	const elsewhere = 2.0 / 3
	k := in.plan.Kafka
	each := in.walAll*float64(in.plan.Cell.Standbys) + in.kafkaBytes()*(k.Replication-1+elsewhere*k.Groups) + in.walIngest*elsewhere
	b.zones = s.rate * each / 1e9 * month * p.CrossZone
	return b
}

// partitionLimit is the greatest rate of one partition, in events a second: an append of a full
// group holds its head, and so do the verdicts on the group, one transaction after the other.
func (in *inputs) partitionLimit(c costs) (appends, whole float64) {
	p := in.plan.Cell
	held := func(fixed, each float64, rows int) float64 { // seconds for each event
		return ((fixed+each*float64(rows))/p.Speed/1e6 + (headTrips*p.RoundTripMs+p.Fsync.P50)/1e3) / float64(rows)
	}
	a := held(c.append.fixed, c.append.each, groupRows)
	v := held(c.database.fixed/2, c.append.each, verdictRows)
	return 1 / a, 1 / (a + v)
}
