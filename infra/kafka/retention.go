package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/meterplex/meterplex/events"
)

// Retention returns the time for which the brokers keep the records of each topic, as set on the topic. Topics
// whose records do not expire by age are missing, as are topics that do not exist. If the login may not read a
// topic's settings, its retention is the one that Ensure creates topics with.
func (a *Admin) Retention(ctx context.Context) (map[events.Topic]time.Duration, error) {
	kept := map[events.Topic]time.Duration{}
	for _, t := range events.Topics() {
		d, expires, err := a.retention(ctx, a.cfg.TopicPrefix+t.Name)
		if err != nil {
			return nil, fmt.Errorf("read the settings of the Kafka topic %s: %w", t.Name, err)
		}
		if expires {
			kept[t.Topic] = d
		}
	}
	return kept, nil
}

// retention asks for one topic alone: a broker's refusal for one topic is the client's error for all.
func (a *Admin) retention(ctx context.Context, name string) (d time.Duration, expires bool, err error) {
	configs, err := a.admin.DescribeTopicConfigs(ctx, name)
	if denied := (*kadm.AuthError)(nil); errors.As(err, &denied) {
		return events.TopicRetention, true, nil
	}
	for _, config := range configs {
		switch {
		case errors.Is(config.Err, kerr.UnknownTopicOrPartition):
			return 0, false, nil
		case config.Err != nil:
			return 0, false, config.Err
		}
		d, expires = retentionOf(config.Configs)
	}
	return d, expires, err
}

// retentionOf returns the age at which records expire, and false if they do not expire by age.
func retentionOf(configs []kadm.Config) (d time.Duration, expires bool) {
	for _, c := range configs {
		switch c.Key {
		case "cleanup.policy":
			if !strings.Contains(c.MaybeValue(), "delete") {
				return 0, false
			}
		case "retention.ms":
			ms, err := strconv.ParseInt(c.MaybeValue(), 10, 64)
			expires = err == nil && ms >= 0 && ms <= int64(math.MaxInt64/2/time.Millisecond)
			d = time.Duration(ms) * time.Millisecond
		}
	}
	return d, expires
}
