package kafka

import (
	"reflect"
	"testing"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

// With a single broker missing acknowledgements cannot be observed, so the test reads the client's
// options.
func TestPublishersWaitForAllReplicas(t *testing.T) {
	p, err := NewBatchPublisher(Config{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	producer, err := p.acquire()
	if err != nil {
		t.Fatal(err)
	}
	if acks := producer.client.OptValue(kgo.RequiredAcks); !reflect.DeepEqual(acks, kgo.AllISRAcks()) {
		t.Errorf("acknowledgements asked for: %+v, want those of all in-sync replicas", acks)
	}
	if once := producer.client.OptValue(kgo.DisableIdempotentWrite); once != false {
		t.Errorf("idempotent writing is disabled: %v", once)
	}
	low, err := producerConfig(&Config{ClientID: "test", DeliveryTimeout: DefaultDeliveryTimeout})
	if err != nil {
		t.Fatal(err)
	}
	if p := low.Producer; p.RequiredAcks != sarama.WaitForAll || !p.Idempotent || low.Metadata.AllowAutoTopicCreation {
		t.Errorf("topics of low rate are written with %+v, want the acknowledgements of all in-sync replicas, once, into topics that exist", p)
	}
}
