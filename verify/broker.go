package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// broker reads the topics from Kafka, one partition of all topics at a time.
type broker struct {
	opts   []kgo.Opt
	prefix string
	admin  *kadm.Client
	client *kgo.Client
}

// topicSource is the source of records.
type topicSource interface {
	names() map[string]int16
	ends(ctx context.Context, p int16) (map[string]span, error)
	read(ctx context.Context, p int16, ends map[string]span, take func(topic int16, r *kgo.Record) error) error
}

// span is the offsets [start, end) of a topic's partition.
type span struct{ start, end int64 }

func (b *broker) open(ctx context.Context) error {
	client, err := kgo.NewClient(b.opts...)
	if err != nil {
		return fmt.Errorf("reach the brokers: %w", err)
	}
	b.client, b.admin = client, kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		b.close()
		return fmt.Errorf("reach the brokers: %w", err)
	}
	return nil
}

func (b *broker) close() {
	if b.client != nil {
		b.client.Close()
	}
}

// names returns the topics with events of the log, by their names on the broker.
func (b *broker) names() map[string]int16 {
	names := map[string]int16{}
	for topic, name := range topicNames {
		names[b.prefix+name] = topic
	}
	return names
}

// electionTime bounds the wait for a partition's leader: brokers elect one within seconds.
const electionTime = time.Minute

// ends returns the present offsets of a partition of each topic. It waits for partitions without a leader.
func (b *broker) ends(ctx context.Context, p int16) (map[string]span, error) {
	ctx, cancel := context.WithTimeout(ctx, electionTime)
	defer cancel()
	return awaitLeader(ctx, func() (map[string]span, error) { return b.presentEnds(ctx, p) })
}

// awaitLeader repeats a request while its partition has no leader.
func awaitLeader[T any](ctx context.Context, request func() (T, error)) (T, error) {
	for {
		answer, err := request()
		if !errors.Is(err, kerr.LeaderNotAvailable) && !errors.Is(err, kerr.NotLeaderForPartition) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b *broker) presentEnds(ctx context.Context, p int16) (map[string]span, error) {
	var names []string
	for name := range b.names() {
		names = append(names, name)
	}
	starts, err := b.admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("read the topics' start offsets: %w", err)
	}
	ends, err := b.admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("read the topics' end offsets: %w", err)
	}
	found := map[string]span{}
	for _, name := range names {
		from, _ := starts.Lookup(name, int32(p))
		to, ok := ends.Lookup(name, int32(p))
		if err := errors.Join(from.Err, to.Err); err != nil || !ok {
			return nil, fmt.Errorf("read the offsets of %s: %w", name, errors.Join(err, context.Cause(ctx)))
		}
		found[name] = span{from.Offset, to.Offset}
	}
	return found, nil
}

// read passes the records of a partition of all topics to take, up to the ends.
func (b *broker) read(ctx context.Context, p int16, ends map[string]span, take func(topic int16, r *kgo.Record) error) error {
	left, from := map[string]int64{}, map[string]map[int32]kgo.Offset{}
	for name, s := range ends {
		if s.end > s.start {
			left[name], from[name] = s.end, map[int32]kgo.Offset{int32(p): kgo.NewOffset().At(s.start)}
		}
	}
	if len(left) == 0 {
		return nil
	}
	b.client.AddConsumePartitions(from)
	defer b.client.PurgeTopicsFromConsuming(keys(from)...)
	names := b.names()
	for len(left) > 0 {
		poll, cancel := context.WithTimeout(ctx, 30*time.Second)
		fetched := b.client.PollFetches(poll)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fetched.Err(); err != nil {
			return fmt.Errorf("read the topics: %w", err)
		}
		for it := fetched.RecordIter(); !it.Done(); {
			r := it.Next()
			end, open := left[r.Topic]
			if !open || r.Partition != int32(p) {
				continue
			}
			if r.Offset >= end { // the rest was deleted meanwhile
				delete(left, r.Topic)
				continue
			}
			if err := take(names[r.Topic], r); err != nil {
				return err
			}
			if r.Offset+1 >= end {
				delete(left, r.Topic)
			}
		}
	}
	return nil
}

func keys[V any](m map[string]V) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}
