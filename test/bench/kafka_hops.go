package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
)

// kafkaHops is the limit of B5: records are written to one topic (acknowledged by all), read, written to a
// second topic and read again, at the same rate and of about the same size, without other work.
func (r *run) kafkaHops(ctx context.Context) (*hdrhistogram.Histogram, error) {
	brokers := kgo.SeedBrokers(r.servers.broker.Brokers()...)
	admin, err := kgo.NewClient(brokers)
	if err != nil {
		return nil, fmt.Errorf("make a Kafka client: %w", err)
	}
	defer admin.Close()
	topics := []string{"bench.hop.1", "bench.hop.2"}
	made, err := kadm.NewClient(admin).CreateTopics(ctx, events.Partitions, 1, nil, topics...)
	if err = errors.Join(err, made.Error()); err != nil {
		return nil, fmt.Errorf("make topics: %w", err)
	}
	h := &hops{seen: newHistogram()}
	h.first, h.second = make(chan struct{}), make(chan struct{})
	if h.producer, err = kgo.NewClient(brokers, kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(time.Millisecond)); err != nil {
		return nil, fmt.Errorf("make a Kafka client: %w", err)
	}
	defer h.producer.Close()
	return h.run(ctx, brokers, topics, r.times.fresh)
}

// hops are the records under way.
type hops struct {
	producer      *kgo.Client
	first, second chan struct{} // closed when a reader is ready
	mu            sync.Mutex
	seen          *hdrhistogram.Histogram
	failed        error
}

func (h *hops) run(ctx context.Context, brokers kgo.Opt, topics []string, d time.Duration) (*hdrhistogram.Histogram, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	sends := int(freshRate * d.Seconds())
	all := make(chan struct{})
	began := time.Now()
	arrived := func(rec *kgo.Record) {
		sent := began.Add(time.Duration(binary.BigEndian.Uint64(rec.Value)))
		h.mu.Lock()
		defer h.mu.Unlock()
		record(h.seen, time.Since(sent))
		if int(h.seen.TotalCount()) == sends {
			close(all)
		}
	}
	forward := func(rec *kgo.Record) { h.produce(ctx, topics[1], rec.Partition, rec.Value) }
	wait.Go(func() { h.consume(ctx, brokers, topics[0], h.first, forward) })
	wait.Go(func() { h.consume(ctx, brokers, topics[1], h.second, arrived) })
	<-h.first
	<-h.second
	start := time.Now().Add(10 * time.Millisecond)
	load := openOver(freshRate, d, 1, nil)
	for n := range sends {
		due := load.due(start, n)
		sleepUntil(due)
		value := make([]byte, recordSize)
		binary.BigEndian.PutUint64(value, uint64(due.Sub(began)))
		h.produce(ctx, topics[0], int32(n%events.Partitions), value)
	}
	select {
	case <-all:
	case <-ctx.Done():
	case <-time.After(answerTime):
		h.fail(errors.New("some records did not arrive"))
	}
	cancel()
	wait.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen, h.failed
}

// recordSize is about the size of a usage record with its headers.
const recordSize = 600

func (h *hops) produce(ctx context.Context, topic string, partition int32, value []byte) {
	h.producer.Produce(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: value}, func(_ *kgo.Record, err error) {
		if err != nil && ctx.Err() == nil {
			h.fail(fmt.Errorf("write to Kafka: %w", err))
		}
	})
}

func (h *hops) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = errors.Join(h.failed, err)
}

// consume reads a topic without a group.
func (h *hops) consume(ctx context.Context, brokers kgo.Opt, topic string, ready chan<- struct{}, take func(*kgo.Record)) {
	c, err := kgo.NewClient(brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	close(ready)
	if err != nil {
		h.fail(fmt.Errorf("make a Kafka client: %w", err))
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			h.fail(fmt.Errorf("read from Kafka: %w", err))
			return
		}
		fetches.EachRecord(take)
	}
}
