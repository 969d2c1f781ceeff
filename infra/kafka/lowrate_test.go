package kafka_test

import (
	"net"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/internal/must"
)

// A broker that accepts connections but never answers does not block a stop. Its client alone would
// wait for two minutes.
func TestP11_ASilentBrokerDoesNotDelayAStop(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer silent.Close()
	sub, err := kafka.NewLowRateSubscriber(kafka.SubscriberConfig{
		Config: kafka.Config{Brokers: []string{silent.Addr().String()}, Logger: logger()}, Group: events.GroupCommands})
	must.OK(t, err)
	messages, err := sub.Subscribe(t.Context(), "meterplex.commands")
	must.OK(t, err)
	conn, err := silent.Accept()
	must.OK(t, err)
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // a request was sent
		t.Fatal(err)
	}
	began := time.Now()
	must.OK(t, sub.Close())
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the stop took %v", took)
	}
	if _, open := <-messages; open {
		t.Error("unexpected message")
	}
}
