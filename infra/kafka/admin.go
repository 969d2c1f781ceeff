package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/singleflight"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
)

// topicMaxBytes is the largest batch that a topic accepts: twice our own limit, in case compression adds
// bytes.
const topicMaxBytes = 2 * maxBatchBytes

// ErrTooFewBrokers means that topics are missing and there are too few brokers for the replication factor.
var ErrTooFewBrokers = errors.New("kafka: too few brokers for the replication factor")

// ErrTopicsUnfit means that the topics cannot be used or created. Waiting does not help.
var ErrTopicsUnfit = errors.New("kafka: unusable topics")

// With at least replicatedBrokers brokers, each record has three replicas and is acknowledged by two.
const (
	replicatedBrokers = 3
	replicas          = 3
	minInSync         = 2
)

// Admin creates and describes the topics of the registry.
type Admin struct {
	cfg    Config
	client *kgo.Client
	admin  *kadm.Client
	stamp  stamp
	pings  singleflight.Group
}

// NewAdmin returns an Admin. It connects to the brokers on the first request.
func NewAdmin(cfg Config) (*Admin, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	opts, err := cfg.options("administration")
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("create a Kafka client: %w", err)
	}
	return &Admin{cfg: cfg, client: client, admin: kadm.NewClient(client)}, nil
}

// Close closes the connections.
func (a *Admin) Close() { a.client.Close() }

// pingTimeout bounds both a Ping and the request that concurrent Pings share.
const pingTimeout = 5 * time.Second

// Ping reports whether a broker answers, within pingTimeout and before the end of ctx. If a broker accepts
// connections but does not answer, the client waits for several seconds; concurrent calls share that
// request and its result.
func (a *Admin) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	answered := a.pings.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
		defer cancel()
		return nil, a.client.Ping(ctx)
	})
	var err error
	select {
	case answer := <-answered:
		err = answer.Err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("reach Kafka at %v: %w", a.cfg.Brokers, explained(err))
	}
	return nil
}

// Ensure creates the missing topics of the registry. It returns ErrTopicsUnfit if a topic has another
// number of partitions, because a log partition is always the Kafka partition of the same number, or if
// the brokers refuse to create one. Other errors may be temporary.
func (a *Admin) Ensure(ctx context.Context) error {
	// Brokers with late heartbeats are fenced for a moment. Then there may be too few brokers for any
	// topic.
	var tooFew error
	for until := time.Now().Add(checkPatience); ; {
		err := a.ensure(ctx)
		if ctx.Err() != nil && tooFew != nil {
			return tooFew
		}
		if !errors.Is(err, kerr.InvalidReplicationFactor) {
			return err
		}
		tooFew = fmt.Errorf("%w: %w", ErrTooFewBrokers, err)
		if time.Now().After(until) || !loop.Sleep(ctx, 200*time.Millisecond) {
			return tooFew
		}
	}
}

func (a *Admin) ensure(ctx context.Context) error {
	factor, err := a.factor(ctx)
	if err != nil {
		return err
	}
	created, err := a.create(ctx, factor, min(max(int(factor)-1, 1), minInSync))
	if err != nil {
		return fmt.Errorf("create the Kafka topics: %w", explained(err))
	}
	existing, err := a.existing(ctx, created)
	if err != nil {
		return err
	}
	if err := a.check(ctx); err != nil {
		return err
	}
	a.stampByBroker(ctx, existing)
	return nil
}

// factor returns the replication factor of new topics.
func (a *Admin) factor(ctx context.Context) (int16, error) {
	if a.cfg.Replication > 0 {
		return a.cfg.Replication, nil
	}
	brokers, err := a.brokers(ctx)
	if err != nil {
		return 0, err
	}
	if brokers >= replicatedBrokers {
		return replicas, nil
	}
	return 1, nil
}

// brokers counts all brokers of the cluster, including those that are temporarily unreachable (Kafka 4.0
// and later), because the replication factor of a topic is fixed at its creation.
func (a *Admin) brokers(ctx context.Context) (int, error) {
	request := kmsg.NewPtrDescribeClusterRequest()
	request.IncludeFencedBrokers = true
	if all, err := request.RequestWith(ctx, a.client); err == nil && all.ErrorCode == 0 {
		return len(all.Brokers), nil
	}
	live, err := a.admin.ListBrokers(ctx) // for brokers without DescribeCluster
	if err != nil {
		return 0, fmt.Errorf("list the Kafka brokers: %w", explained(err))
	}
	return len(live), nil
}

// existing returns the topics that existed before. A client without permission to create topics is
// refused even for those, so a refusal counts only if the topic is missing.
func (a *Admin) existing(ctx context.Context, created kadm.CreateTopicResponses) (names []string, err error) {
	refused := map[string]error{}
	for _, t := range created.Sorted() {
		if t.Err != nil {
			names = append(names, t.Topic)
		}
		if t.Err != nil && !errors.Is(t.Err, kerr.TopicAlreadyExists) {
			refused[t.Topic] = fmt.Errorf("create the Kafka topic %s: %w %s", t.Topic,
				permission(t.Err, "Create and Describe on the topic "+t.Topic), t.ErrMessage)
		}
	}
	if len(refused) == 0 {
		return names, nil
	}
	topics, err := a.Topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		switch err := refused[t.Name]; {
		case err == nil || t.Partitions != 0:
		case kerr.IsRetriable(err) || errors.Is(err, kerr.InvalidReplicationFactor): // a broker may join
			return nil, err
		default:
			return nil, fmt.Errorf("%w: %w", ErrTopicsUnfit, err)
		}
	}
	return names, nil
}

func settings(inSync int) map[string]*string {
	text := func(n int64) *string { s := strconv.FormatInt(n, 10); return &s }
	return map[string]*string{
		"retention.ms":        text(events.TopicRetention.Milliseconds()),
		"max.message.bytes":   text(topicMaxBytes),
		"min.insync.replicas": text(int64(inSync)),
	}
}

// checkPatience bounds the time until all brokers know a new topic.
const checkPatience = 30 * time.Second

func (a *Admin) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	for {
		topics, err := a.Topics(ctx)
		if err != nil {
			return err
		}
		missing := ""
		for _, t := range topics {
			if t.Partitions != 0 && t.Partitions != events.Partitions {
				return fmt.Errorf("%w: topic %s has %d partitions, needs %d: log partition p is Kafka partition p of every topic; "+
					"delete the topic (it is restored from the log) or use another topic prefix",
					ErrTopicsUnfit, t.Name, t.Partitions, events.Partitions)
			}
			if !t.Ready {
				missing = t.Name
			}
		}
		if missing == "" {
			return nil
		}
		if !loop.Sleep(ctx, nackPause) {
			return fmt.Errorf("wait for the Kafka topic %s: %w", missing, ctx.Err())
		}
	}
}

func (a *Admin) names() []string {
	var names []string
	for _, t := range events.Topics() {
		names = append(names, a.cfg.TopicPrefix+t.Name)
	}
	return names
}

// TopicState describes a topic of the registry.
type TopicState struct {
	Topic      events.Topic
	Name       string // including the prefix
	Partitions int    // 0 if the topic does not exist
	Replicas   int    // of the partition with the fewest
	InSync     int    // of the partition with the fewest
	Ready      bool   // every partition has a leader
}

// Topics describes the registry's topics.
func (a *Admin) Topics(ctx context.Context) ([]TopicState, error) {
	details, err := a.admin.ListTopics(ctx, a.names()...)
	if err != nil {
		return nil, fmt.Errorf("list the Kafka topics: %w", permission(err, a.topics("Describe")))
	}
	var states []TopicState
	for _, t := range events.Topics() {
		if err := details[a.cfg.TopicPrefix+t.Name].Err; unauthorized(err) {
			return nil, fmt.Errorf("list the Kafka topics: %w", permission(err, "Describe on the topic "+a.cfg.TopicPrefix+t.Name))
		}
		states = append(states, state(t, a.cfg.TopicPrefix+t.Name, details))
	}
	return states, nil
}

func state(t events.TopicInfo, name string, details kadm.TopicDetails) TopicState {
	s := TopicState{Topic: t.Topic, Name: name}
	detail, ok := details[name]
	if !ok || detail.Err != nil {
		return s
	}
	s.Partitions, s.Ready = len(detail.Partitions), len(detail.Partitions) > 0
	for _, p := range detail.Partitions {
		if s.Replicas == 0 || len(p.Replicas) < s.Replicas {
			s.Replicas = len(p.Replicas)
		}
		if s.InSync == 0 || len(p.ISR) < s.InSync {
			s.InSync = len(p.ISR)
		}
		s.Ready = s.Ready && p.Err == nil && p.Leader >= 0
	}
	return s
}

// PartitionLag is the distance from a group's committed offset to the end of a partition.
type PartitionLag struct {
	Topic     events.Topic
	Partition int16
	Committed int64 // -1 if the group has not committed an offset
	End       int64
	Lag       int64
}

// Lag returns the lag of a consumer group for each partition of the registry's topics that it reads or
// has read.
func (a *Admin) Lag(ctx context.Context, group string) ([]PartitionLag, error) {
	name := a.cfg.TopicPrefix + group
	groups, err := a.admin.Lag(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the lag of %s: %w", name, permission(err, "Describe on the group "+name))
	}
	described := groups[name]
	if err := described.Error(); err != nil {
		return nil, fmt.Errorf("read the lag of %s: %w", name, permission(err, "Describe on the group "+name))
	}
	var lags []PartitionLag
	for _, t := range events.Topics() {
		for _, l := range described.Lag[a.cfg.TopicPrefix+t.Name] {
			if l.Err != nil {
				return nil, fmt.Errorf("read the lag of %s on %s: %w", name, l.Topic, l.Err)
			}
			lags = append(lags, PartitionLag{t.Topic, int16(l.Partition), l.Commit.At, l.End.Offset, l.Lag})
		}
	}
	return lags, nil
}

// DeleteTopics deletes the registry's topics and their records. They can be restored from the log.
func (a *Admin) DeleteTopics(ctx context.Context) error {
	answers, err := a.admin.DeleteTopics(ctx, a.names()...)
	if err != nil {
		return fmt.Errorf("delete the Kafka topics: %w", err)
	}
	for _, t := range answers.Sorted() {
		if t.Err != nil && !errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("delete the Kafka topic %s: %w", t.Topic, t.Err)
		}
	}
	return nil
}
