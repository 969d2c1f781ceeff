package kafka_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
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

// TestPublishedRecordsAreTheSameAtEveryRate writes the same records through both clients.
func TestPublishedRecordsAreTheSameAtEveryRate(t *testing.T) {
	cfg := config(t)
	cfg.AllowAnyTopic = true
	makeTopic(t, cfg, events.TopicCatalogue)
	makeTopic(t, cfg, events.TopicUsageRaw)
	records := pipetest.Make(events.TopicCatalogue, 0, 20)
	records[3].Value, records[4].Key = nil, nil // a withheld record has no value
	batch, err := kafka.NewBatchPublisher(cfg)
	must.OK(t, err)
	lowRate, err := kafka.NewLowRatePublisher(cfg)
	must.OK(t, err)
	read := map[string][]string{}
	for topic, pub := range map[string]message.Publisher{"usage.raw": batch, "meterplex.catalogue": lowRate} {
		sent := slices.Clone(records)
		must.OK(t, pub.Publish(topic, watermill.Outgoing(t.Context(), sent)))
		sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g-" + topic})
		messages, err := sub.Subscribe(t.Context(), topic)
		must.OK(t, err)
		for len(read[topic]) < len(sent) {
			msg, list := receive(t, messages)
			for _, r := range list {
				read[topic] = append(
					read[topic],
					fmt.Sprintf("%d-%d %q nil:%v %q %q", r.Partition, r.Offset, r.Key, r.Value == nil, r.Value, r.Headers),
				)
			}
			msg.Ack()
		}
		for _, r := range sent {
			if at := fmt.Sprintf("%d-%d ", r.Partition, r.Offset); !slices.ContainsFunc(
				read[topic],
				func(s string) bool { return strings.HasPrefix(s, at) },
			) {
				t.Errorf("%s: a record was told to be at %s, and is not", topic, at)
			}
		}
		if err := errors.Join(sub.Close(), pub.Close()); err != nil {
			t.Error(err)
		}
		slices.Sort(read[topic])
	}
	if !slices.Equal(read["usage.raw"], read["meterplex.catalogue"]) {
		t.Errorf("%q\ndiffers from %q", read["usage.raw"], read["meterplex.catalogue"])
	}
}
