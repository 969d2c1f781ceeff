package kafka

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
)

// With a single broker missing acknowledgements cannot be observed, so the test reads the client's
// options.
func TestThePublisherWaitsForAllReplicas(t *testing.T) {
	p, err := NewPublisher(Config{Brokers: []string{"127.0.0.1:1"}})
	must.OK(t, err)
	defer p.Close()
	producer, err := p.acquire()
	must.OK(t, err)
	if acks := producer.client.OptValue(kgo.RequiredAcks); !reflect.DeepEqual(acks, kgo.AllISRAcks()) {
		t.Errorf("acknowledgements asked for: %+v, want those of all in-sync replicas", acks)
	}
	if once := producer.client.OptValue(kgo.DisableIdempotentWrite); once != false {
		t.Errorf("idempotent writing is disabled: %v", once)
	}
}

// Offsets of a batch that was read before its partition was revoked are not marked, also if the partition has come back meanwhile:
// another member may have gone back, or its records may be read again here.
func TestABatchFromBeforeARevocationMarksNoOffset(t *testing.T) {
	const topic = "usage.raw"
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.ConsumerGroup("g"), kgo.ConsumeTopics(topic), kgo.AutoCommitMarks())
	must.OK(t, err)
	defer client.CloseAllowingRebalance()
	a, of := newAssignment(topic), map[string][]int32{topic: {3, 4}}
	read := func(partition int32, offset int64) share {
		return share{partition, a.generation(partition), []*kgo.Record{{Partition: partition, Offset: offset}}}
	}
	a.assigned(t.Context(), client, of)
	before := []share{read(3, 41), read(4, 51)}
	a.lost(t.Context(), client, map[string][]int32{topic: {3}})
	a.assigned(t.Context(), client, map[string][]int32{topic: {3}})
	a.mark(client, before)
	if got := client.MarkedOffsets()[topic]; got[3].Offset != 0 || got[4].Offset != 52 {
		t.Errorf("partition 3 is marked up to %d, want 0, partition 4 up to %d, want 52", got[3].Offset, got[4].Offset)
	}
	a.mark(client, []share{read(3, 7)})
	if got := client.MarkedOffsets()[topic]; got[3].Offset != 8 {
		t.Errorf("partition 3 is marked up to %d, want 8", got[3].Offset)
	}
}

func TestDoubtsReportsUncleanLeaderElection(t *testing.T) {
	admin, err := NewAdmin(Config{Brokers: kafkatest.Broker(t).Brokers(), TopicPrefix: kafkatest.TopicPrefix(t)})
	must.OK(t, err)
	defer admin.Close()
	must.OK(t, admin.Ensure(t.Context()))
	if doubts, err := admin.Doubts(t.Context()); err != nil || len(doubts) != 0 {
		t.Errorf("new topics: %v, %v", doubts, err)
	}
	raw := admin.cfg.TopicPrefix + "usage.raw"
	yes := "true"
	if _, err := admin.admin.AlterTopicConfigs(t.Context(),
		[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: "unclean.leader.election.enable", Value: &yes}}, raw); err != nil {
		t.Fatal(err)
	}
	var doubts []string
	for began := time.Now(); len(doubts) == 0 && err == nil && time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
		doubts, err = admin.Doubts(t.Context()) // the change takes effect with a delay
	}
	if err != nil || len(doubts) != 1 || !strings.HasPrefix(doubts[0], raw+": unclean.leader.election.enable is true") {
		t.Errorf("%v, %v", doubts, err)
	}
}

func TestDoubtsAboutReplication(t *testing.T) {
	for _, c := range []struct {
		replicas int
		inSync   string
		want     string
	}{
		{1, "1", "one replica on 3 brokers"}, {2, "1", ""}, {3, "2", ""}, {3, "1", "a single replica"}, {3, "3", "publishing stops"},
		{2, "2", "publishing stops"}, {5, "", "a single replica"},
	} {
		got := strings.Join(doubtsOf(TopicState{Name: "t", Replicas: c.replicas}, 3, c.inSync, "false"), "; ")
		if got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if got := doubtsOf(TopicState{Name: "t", Replicas: 1}, 2, "1", "false"); len(got) != 0 {
		t.Errorf("one replica on two brokers: %q", got)
	}
}
