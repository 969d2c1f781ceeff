package pipetest

import (
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
)

// suiteGrace is short because most tests of the suite close with messages in flight.
const suiteGrace = 50 * time.Millisecond

// defaultTimeout is the suite's bound of each wait, 15 s, which a busy machine exceeds. The suite offers
// only a build tag to change it.
//
//go:linkname defaultTimeout github.com/ThreeDotsLabs/watermill/pubsub/tests.defaultTimeout
var defaultTimeout time.Duration

// Suite runs Watermill's own tests through Unbatch, and with batches of more than one record through
// Rebatch, too.
//
// Disabled are: exactly-once (a pipe delivers at least once, consumers deduplicate by position), a
// context that travels with the message (it does not leave the process), and the restart of the server by
// a shell command (the contract kills the server itself). Order is checked between messages with the same
// payload, which share a partition here.
func Suite(t *testing.T, pipe Pipe, maxRecords int) {
	if defaultTimeout == 0 {
		t.Fatal("the suite has no bound of this name any more")
	}
	defaultTimeout = 2 * time.Minute
	byPayload := func(m *message.Message) string { return string(m.Payload) }
	inGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		pub := spread{pipe.Publisher(t), pipe.Partitions, byPayload}
		if maxRecords > 1 {
			pub.Publisher = Rebatch(pub.Publisher)
		}
		sub := Unbatch(pipe.Subscriber(t, group, maxRecords, suiteGrace), pipe.CreateTopic)
		// Two of the suite's tests leave subscribers open.
		t.Cleanup(func() { closeAll(t, pub, sub) })
		return pub, sub
	}
	features := tests.Features{
		ConsumerGroups:  true,
		GuaranteedOrder: true,
		Persistent:      true,
		ForceShort:      false,
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		return inGroup(t, "suite")
	}, inGroup)
	t.Run("TestNewSubscriberReceivesOldMessages", func(t *testing.T) {
		features.NewSubscriberReceivesOldMessages = true
		tests.TestNewSubscriberReceivesOldMessages(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
			func(t *testing.T) (message.Publisher, message.Subscriber) { return inGroup(t, "g"+wm.NewShortUUID()) })
	})
	t.Run("SpreadOverPartitions", func(t *testing.T) {
		features.GuaranteedOrder = false
		byUUID := func(m *message.Message) string { return m.UUID }
		constructor := func(t *testing.T) (message.Publisher, message.Subscriber) {
			pub, sub := inGroup(t, "spread")
			return spread{pub.(spread).Publisher, pipe.Partitions, byUUID}, sub
		}
		for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
			"TestPublishSubscribe":    tests.TestPublishSubscribe,
			"TestConcurrentSubscribe": tests.TestConcurrentSubscribe,
			"TestResendOnError":       tests.TestResendOnError,
		} {
			t.Run(name, func(t *testing.T) {
				test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, constructor)
			})
		}
	})
}
