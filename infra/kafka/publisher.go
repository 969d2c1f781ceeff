package kafka

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
)

// Publisher writes the topics of low rate through watermill-kafka, and all others in batches through
// franz-go. It is safe for concurrent use.
type Publisher struct {
	batch   *BatchPublisher
	lowRate *LowRatePublisher
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher. It connects to the brokers on the first publish of each kind.
func NewPublisher(cfg Config) (*Publisher, error) {
	batch, err := NewBatchPublisher(cfg)
	if err != nil {
		return nil, err
	}
	lowRate, err := NewLowRatePublisher(cfg)
	return &Publisher{batch, lowRate}, err
}

// Publish publishes through the publisher of the topic's rate.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if t, known := events.TopicOf(topic); known && t.LowRate() {
		return p.lowRate.Publish(topic, msgs...)
	}
	return p.batch.Publish(topic, msgs...)
}

// Close waits for the calls in flight.
func (p *Publisher) Close() error { return errors.Join(p.batch.Close(), p.lowRate.Close()) }
