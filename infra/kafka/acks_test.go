package kafka

import (
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// With a single broker missing acknowledgements cannot be observed, so the test reads the client's
// options.
func TestPublishersWaitForAllReplicas(t *testing.T) {
	p, err := NewPublisher(Config{Brokers: []string{"127.0.0.1:1"}})
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
}
