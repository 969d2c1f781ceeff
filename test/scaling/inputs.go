package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// plan is plan.json: the assumptions, as opposed to measurements.
type plan struct {
	Date     string         `json:"date"`
	Measured measuredByHand `json:"measuredByHand"`
	Bench    benchSite      `json:"benchMachine"`
	Shares   shares         `json:"stageShares"`
	Traffic  traffic        `json:"traffic"`
	Cell     cellSite       `json:"cell"`
	Kafka    kafkaSite      `json:"kafka"`
	Failures failures       `json:"failures"`
	Tenants  tenants        `json:"tenants"`
	Storage  storage        `json:"storage"`
	Prices   prices         `json:"pricesAssumed"`
}

// measuredByHand has values that docs/benchmarks lacks. Reports of newer builds have some of them
// and take precedence.
type measuredByHand struct {
	How          string             `json:"how"`
	WALBytes     map[string]float64 `json:"walBytesEach"`        // by figure
	Writes       map[string]float64 `json:"writingTransactions"` // for each event, by figure
	RawRecord    float64            `json:"rawRecordBytes"`
	ValidRecord  float64            `json:"validatedRecordBytes"`
	Compressed   float64            `json:"compressedTo"`
	RequestBytes float64            `json:"requestBytesEach"` // JSON over HTTP
}

type benchSite struct {
	Fsync       spread  `json:"fsyncMs"`
	DiskMBps    float64 `json:"diskMBps"`
	RoundTripMs float64 `json:"roundTripMs"`
}

// shares divide the cost for each event beyond ingest over the stages.
type shares struct {
	Service  stageShares `json:"service"`
	Postgres stageShares `json:"postgres"`
}

type stageShares struct {
	Relay      float64 `json:"relay"`
	Validator  float64 `json:"validator"`
	Aggregator float64 `json:"aggregator"`
	Projector  float64 `json:"projector"`
}

type traffic struct {
	Rates       []float64 `json:"rates"`
	Requests    []portion `json:"requests"`
	Burst       float64   `json:"burst"`
	IngestP99Ms float64   `json:"ingestP99Ms"`
	FreshP99Ms  float64   `json:"freshnessP99Ms"`
}

type portion struct {
	Size  int     `json:"size"`
	Share float64 `json:"shareOfEvents"`
}

type nodes struct {
	Count int `json:"count"`
	Cores int `json:"cores"`
}

type cellSite struct {
	Speed         float64 `json:"coreSpeed"`
	Postgres      nodes   `json:"postgres"`
	Standbys      int     `json:"standbys"`
	API           nodes   `json:"api"`
	Workers       nodes   `json:"workers"`
	BrokerCores   int     `json:"brokerCores"`
	Fsync         spread  `json:"fsyncMs"`
	DiskMBps      float64 `json:"diskMBps"`
	RoundTripMs   float64 `json:"roundTripMs"`
	KafkaAnswerMs float64 `json:"kafkaAnswerMs"`
	VolumeTB      float64 `json:"largestVolumeTB"`
}

type kafkaSite struct {
	Brokers          int     `json:"leastBrokers"`
	Cores            int     `json:"cores"`
	Replication      float64 `json:"replication"`
	RetentionDays    float64 `json:"retentionDays"`
	Groups           float64 `json:"groupsForEachRecord"`
	NetworkMBps      float64 `json:"networkMBps"`
	DiskTB           float64 `json:"diskTB"`
	BrokerPartitions float64 `json:"partitionReplicasForEachBroker"`
	Topics           float64 `json:"topics"`
	CPUAt            float64 `json:"utilisation"`
}

type failures struct {
	APIClientWaitMs float64 `json:"clientWaitMs"`
	Balancer        float64 `json:"loadBalancerSeconds"`
	WorkerTakeover  float64 `json:"workerTakeoverSeconds"`
	Failover        float64 `json:"postgresFailoverSeconds"`
	LeaderMove      float64 `json:"leaderMoveSeconds"`
}

type tenants struct {
	Count   int     `json:"count"`
	Zipf    float64 `json:"zipfExponent"`
	Whale   float64 `json:"whaleShare"`
	Samples int     `json:"samples"`
}

type storage struct {
	Classes     []class `json:"classes"`
	EarlyDays   float64 `json:"archiveAfterDays"`
	ParquetEach float64 `json:"parquetBytesEach"`
	KeyEach     float64 `json:"archivedKeyBytesEach"`
}

type class struct {
	Name  string  `json:"name"`
	Share float64 `json:"shareOfEvents"`
	Days  float64 `json:"days"`
}

type prices struct {
	Core      float64 `json:"coreHour"`
	SSD       float64 `json:"ssdGBMonth"`
	Object    float64 `json:"objectGBMonth"`
	CrossZone float64 `json:"crossZoneGB"`
	Source    string  `json:"source"`
}

// report is the part of docs/benchmarks/latest.json that is used.
type report struct {
	Date    string `json:"date"`
	Machine struct {
		Processor string `json:"processor"`
		Cores     int    `json:"cores"`
	} `json:"machine"`
	Versions struct {
		Commit string `json:"commit"`
	} `json:"versions"`
	Figures []figure `json:"figures"`
}

type figure struct {
	ID      string   `json:"id"`
	Value   float64  `json:"value"`
	Latency *latency `json:"latency"`
	Limit   *latency `json:"limitLatency"`
	CPU     struct {
		Seconds perProcess `json:"seconds"`
		Each    perProcess `json:"microsecondsEach"`
		Elapsed float64    `json:"elapsed"`
	} `json:"cpu"`
	Memory struct {
		Peak     float64 `json:"servicePeak"`
		Postgres float64 `json:"postgres"`
	} `json:"memoryMiB"`
	Database struct {
		Each struct {
			WALBytes float64 `json:"walBytes"`
			Writes   float64 `json:"writingTransactions"`
		} `json:"each"`
	} `json:"database"`
	Notes []struct {
		Name string `json:"name"`
		Text string `json:"text"`
	} `json:"notes"`
}

type latency struct {
	P50 float64 `json:"p50ms"`
	P99 float64 `json:"p99ms"`
	Max float64 `json:"maxms"`
}

type perProcess struct {
	Service  float64 `json:"service"`
	Postgres float64 `json:"postgres"`
	Kafka    float64 `json:"kafka"`
	Load     float64 `json:"load"`
	Others   float64 `json:"others"`
}

// inputs are the plan and the measurements, from which all tables follow.
type inputs struct {
	plan    plan
	report  report
	figures map[string]figure
	diskEach,
	walIngest, walAll float64 // bytes for each event: of the log, and of the whole pipeline
	walFrom string
}

// needed returns the ids of the required figures.
func needed() []string { return []string{"B1", "B2", "B3", "B4", "B5", "B8", "B1+"} }

func read(root string) (*inputs, error) {
	in := &inputs{figures: map[string]figure{}}
	if err := readJSON(filepath.Join(root, "test/scaling/plan.json"), &in.plan); err != nil {
		return nil, err
	}
	if err := readJSON(filepath.Join(root, "docs/benchmarks/latest.json"), &in.report); err != nil {
		return nil, err
	}
	for _, f := range in.report.Figures {
		in.figures[f.ID] = f
	}
	if in.figures["B5"].Limit == nil {
		return nil, fmt.Errorf("docs/benchmarks/latest.json: B5 has no latency of the broker")
	}
	for _, id := range needed() {
		if in.figures[id].CPU.Each.Postgres <= 0 {
			return nil, fmt.Errorf("docs/benchmarks/latest.json has no figure %s with CPU time", id)
		}
	}
	in.diskEach = in.disk()
	if in.diskEach <= 0 {
		return nil, fmt.Errorf("docs/benchmarks/latest.json: B4 has no note on the disk for each usage event")
	}
	in.walIngest, in.walAll, in.walFrom = in.wal("B1"), in.wal("B4"), "the same report"
	if in.figures["B4"].Database.Each.WALBytes == 0 {
		in.walFrom = in.plan.Measured.How
	}
	return in, nil
}

func (in *inputs) wal(id string) float64 {
	if w := in.figures[id].Database.Each.WALBytes; w > 0 {
		return w
	}
	return in.plan.Measured.WALBytes[id]
}

// writes is the measured number of writing transactions for each event.
func (in *inputs) writes(id string) float64 {
	if w := in.figures[id].Database.Each.Writes; w > 0 {
		return w
	}
	return in.plan.Measured.Writes[id]
}

func (in *inputs) disk() float64 {
	leading := regexp.MustCompile(`^[0-9]+`)
	for _, n := range in.figures["B4"].Notes {
		if strings.HasPrefix(n.Name, "disk for each usage event") {
			v, _ := strconv.ParseFloat(leading.FindString(n.Text), 64)
			return v
		}
	}
	return 0
}

func readJSON(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the inputs: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
