package kafkatest_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func TestBrokerDoesNotAutoCreateTopics(t *testing.T) {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Broker(t).Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	created, missing := kafkatest.TopicPrefix(t)+"a", kafkatest.TopicPrefix(t)+"b"
	if _, err := admin.CreateTopic(t.Context(), 32, 1, nil, created); err != nil {
		t.Fatal(err)
	}
	topics, err := admin.ListTopics(t.Context(), created, missing)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(topics[created].Partitions); n != 32 {
		t.Errorf("%d partitions, want 32", n)
	}
	if topics[missing].Err == nil {
		t.Error("a topic that was not created exists")
	}
}
