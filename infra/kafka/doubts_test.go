package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
)

func TestDoubtsReportsUncleanLeaderElection(t *testing.T) {
	admin, err := NewAdmin(Config{Brokers: kafkatest.Broker(t).Brokers(), TopicPrefix: kafkatest.TopicPrefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if doubts, err := admin.Doubts(t.Context()); err != nil || len(doubts) != 0 {
		t.Errorf("new topics: %v, %v", doubts, err)
	}
	raw := admin.cfg.TopicPrefix + "usage.raw"
	yes := "true"
	if _, err := admin.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "unclean.leader.election.enable", Value: &yes}}, raw); err != nil {
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
		{1, "1", "one replica on 3 brokers"}, {2, "1", ""}, {3, "2", ""}, {3, "1", "a single replica"}, {3, "3", "publishing stops"}, {2, "2", "publishing stops"}, {5, "", "a single replica"},
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
