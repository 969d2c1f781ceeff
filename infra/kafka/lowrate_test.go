package kafka_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
)

// A broker that accepts connections but never answers does not block a stop. Its client alone would
// wait for two minutes.
func TestP11_ABrokerThatSaysNothingHoldsUpNoStop(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	sub, err := kafka.NewLowRateSubscriber(kafka.SubscriberConfig{
		Config: kafka.Config{Brokers: []string{silent.Addr().String()}, Logger: logger()}, Group: events.GroupCommands})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := sub.Subscribe(t.Context(), "meterplex.commands")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // a request was sent
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := newAdmin(t, kafka.Config{Brokers: []string{silent.Addr().String()}, Logger: logger()}).Ping(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the broker answered: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second { // the client's own timeout is twice as long
		t.Errorf("Ping took %v", took)
	}
	began = time.Now()
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if _, open := <-messages; open {
		t.Error("unexpected message")
	}
}

// Repeated Pings of a silent broker share one request: the client waits for each request even after its
// caller has left.
func TestPingsOfASilentBrokerShareARequest(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	a := newAdmin(t, kafka.Config{Brokers: []string{silent.Addr().String()}, Logger: logger()})
	before := runtime.NumGoroutine()
	for range 100 {
		soon, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if err := a.Ping(soon); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the broker answered: %v", err)
		}
		cancel()
	}
	if more := runtime.NumGoroutine() - before; more > 20 {
		t.Errorf("%d goroutines wait for a silent broker", more)
	}
}
