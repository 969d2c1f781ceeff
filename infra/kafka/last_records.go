package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// LastRecords returns the log position of the last record of each partition of the registry's topics, from its
// headers. It skips records without a position, and topics written by others.
func (a *Admin) LastRecords(ctx context.Context) ([]events.RecordPosition, error) {
	names := a.logTopics()
	starts, err := a.admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("read the topics' first offsets: %w", permission(err, a.topics("Describe")))
	}
	ends, err := a.admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("read the topics' last offsets: %w", permission(err, a.topics("Describe")))
	}
	from := map[string]map[int32]kgo.Offset{}
	missing := map[topicPartition]bool{}
	for topic, partitions := range ends {
		for p, end := range partitions {
			start, ok := starts.Lookup(topic, p)
			if unauthorized(end.Err) || unauthorized(start.Err) {
				return nil, fmt.Errorf("read the offsets of the Kafka topic %s: %w", topic,
					permission(errors.Join(end.Err, start.Err), "Describe on the topic "+topic))
			}
			if end.Err != nil || !ok || start.Err != nil || end.Offset <= start.Offset {
				continue // empty or just created
			}
			if from[topic] == nil {
				from[topic] = map[int32]kgo.Offset{}
			}
			from[topic][p] = kgo.NewOffset().At(end.Offset - 1)
			missing[topicPartition{topic, p}] = true
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	return a.readLast(ctx, from, missing)
}

// logTopics returns the topics that hold events of the log.
func (a *Admin) logTopics() (names []string) {
	for _, t := range events.Topics() {
		if !t.Topic.Outside() {
			names = append(names, a.cfg.TopicPrefix+t.Name)
		}
	}
	return names
}

func (a *Admin) readLast(ctx context.Context, from map[string]map[int32]kgo.Offset,
	missing map[topicPartition]bool) ([]events.RecordPosition, error) {
	opts, err := a.cfg.options("the topics' last records")
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(opts, kgo.ConsumePartitions(from))...)
	if err != nil {
		return nil, fmt.Errorf("create a Kafka client: %w", err)
	}
	defer closeClient(client)
	last := map[topicPartition]events.RecordPosition{}
	for len(missing) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetchError(fetches); err != nil {
			return nil, fmt.Errorf("read the topics' last records: %w", permission(err, a.topics("Read")))
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read the topics' last records: %w", ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at := topicPartition{r.Topic, r.Partition}
			delete(missing, at)
			record := events.Record{Partition: int16(r.Partition)}
			for _, h := range r.Headers {
				record.Headers = append(record.Headers, events.Header(h))
			}
			if p, err := codec.PositionOf(&record); err == nil {
				last[at] = p
			}
		})
	}
	records := make([]events.RecordPosition, 0, len(last))
	for _, p := range last {
		records = append(records, p)
	}
	return records, nil
}
