package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// subscription is one membership in a group for one topic. Its loop polls, delivers and marks. Meanwhile
// franz-go's goroutines send heartbeats and rebalance, and the committer commits, so that a slow handler does not
// lose its membership.
type subscription struct {
	cfg      *SubscriberConfig
	opts     []kgo.Opt
	number   events.Topic
	topic    string
	delivery watermill.Delivery

	client  *kgo.Client
	owned   *assignment
	commits *committer
	waiting *backlog
	reads   *retries.Log
}

// connect creates the client, which joins the group.
func (s *subscription) connect() error {
	owned := newAssignment(s.topic)
	opts := append(s.opts[:len(s.opts):len(s.opts)],
		kgo.ConsumeTopics(s.topic),
		kgo.OnPartitionsAssigned(owned.assigned),
		kgo.OnPartitionsRevoked(owned.revoked),
		kgo.OnPartitionsLost(owned.lost),
	)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("create a Kafka client for %s: %w", s.topic, err)
	}
	s.client, s.owned, s.commits = client, owned, newCommitter(client)
	s.waiting = newBacklog(s.cfg.MaxRecords, s.cfg.MaxRecordsPerPartition)
	return nil
}

// run delivers batches until ctx ends.
func (s *subscription) run(ctx context.Context) {
	defer func() { s.leave() }()
	for ctx.Err() == nil {
		if batch := s.next(ctx); len(batch) > 0 {
			s.deliver(ctx, batch)
		}
	}
}

// deliver sends the batch until it is acknowledged. After a Nack it removes partitions that were
// reassigned to another member.
func (s *subscription) deliver(ctx context.Context, batch []share) {
	for len(batch) > 0 {
		switch s.delivery.SendRecords(ctx, s.records(batch)) {
		case watermill.Acked:
			s.owned.mark(s.client, batch)
			s.commits.soon()
			return
		case watermill.Stopped:
			return
		case watermill.Nacked:
			if !loop.Sleep(ctx, nackPause) {
				return
			}
			batch = s.owned.stillOwned(batch)
		}
	}
}

// next waits for a batch. It returns an empty one after an error or at the end of ctx.
func (s *subscription) next(ctx context.Context) []share {
	s.waiting.drop(s.owned)
	if !s.waiting.empty() {
		// Add records that are buffered already, without waiting.
		s.poll(immediately)
		return s.waiting.next()
	}
	s.poll(ctx)
	s.waiting.drop(s.owned)
	return s.waiting.next()
}

// immediately makes a poll return without waiting: franz-go expects a nil context.
var immediately context.Context

// poll moves fetched records to the backlog. With a nil context it does not wait.
func (s *subscription) poll(ctx context.Context) {
	room := s.cfg.MaxRecords - s.waiting.size
	if room <= 0 {
		return
	}
	// No partition is assigned or revoked between the end of the poll and AllowRebalance, so that these are the generations in which the
	// records were fetched. A poll of an idle topic may span many assignments.
	fetches := s.client.PollRecords(ctx, room)
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		s.waiting.add(p.Partition, s.owned.generation(p.Partition), p.Records)
	})
	s.client.AllowRebalance()
	err := fetchError(fetches)
	s.report(err)
	if err == nil || ctx == nil || ctx.Err() != nil {
		return
	}
	loop.Sleep(ctx, nackPause)
	if errors.Is(err, kerr.UnknownTopicID) {
		s.reconnect()
	}
}

// reconnect creates a new client after a topic was deleted and created again: a client never adopts the
// new topic id.
func (s *subscription) reconnect() {
	old := s.commits
	if err := s.connect(); err != nil {
		s.cfg.Logger.Error("cannot create a new Kafka client", "topic", s.topic, "error", err)
		return
	}
	old.close()
}

func fetchError(fetches kgo.Fetches) error {
	var first error
	fetches.EachError(func(_ string, _ int32, err error) {
		if first == nil && !errors.Is(err, context.Canceled) && !errors.Is(err, kgo.ErrClientClosed) {
			first = err
		}
		if errors.Is(err, kerr.UnknownTopicID) {
			first = err
		}
	})
	return first
}

// readsLog logs the failures to read a topic.
func readsLog(logger *slog.Logger) *retries.Log {
	return retries.New(logger, slog.LevelWarn, "reading from Kafka fails; will retry", "reading from Kafka works again")
}

func (s *subscription) report(err error) {
	if err != nil {
		err = permission(err, "Read on the topic "+s.topic+" and the group "+s.cfg.TopicPrefix+s.cfg.Group)
	}
	s.reads.Report(context.Background(), err, "topic", s.topic, "group", s.cfg.Group)
}

// records converts the batch.
func (s *subscription) records(batch []share) []events.Record {
	n := 0
	for _, t := range batch {
		n += len(t.records)
	}
	records := make([]events.Record, 0, n)
	for _, t := range batch {
		for _, r := range t.records {
			records = append(records, events.Record{
				Topic: s.number, Partition: int16(r.Partition), Offset: r.Offset, Key: r.Key, Value: r.Value, Headers: headersOf(r.Headers),
			})
		}
	}
	return records
}

func (s *subscription) leave() { s.commits.close() }

// closeClient leaves the group and commits marked offsets, within commitTimeout.
func closeClient(client *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	// If no broker answers, the session times out instead.
	_ = client.LeaveGroupContext(ctx)
	client.Close()
}
