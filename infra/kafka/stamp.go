package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/meterplex/meterplex/events"
)

// The timestamp of a record is the broker's append time. With the publisher's time, a broker refuses
// records an hour in the future and deletes records days in the past too early, so that an instance with
// a wrong clock would block its partitions.
const (
	timestampType = "message.timestamp.type"
	ofTheBroker   = "LogAppendTime"
)

// stamp is an Admin's knowledge of this setting. Existing topics are altered only once: their
// administrator may have a reason for another value, and topics are checked every few seconds.
type stamp struct {
	mu      sync.Mutex
	refused bool // the broker refuses to create topics with this setting
	settled bool // set or refused
	warned  bool
}

// create creates the topics, and repeats without the setting if the broker refuses the setting.
func (a *Admin) create(ctx context.Context, factor int16, inSync int) (kadm.CreateTopicResponses, error) {
	a.stamp.mu.Lock()
	defer a.stamp.mu.Unlock()
	plain, stamped := settings(inSync), settings(inSync)
	value := ofTheBroker
	stamped[timestampType] = &value
	if a.stamp.refused {
		return a.admin.CreateTopics(ctx, events.Partitions, factor, plain, a.names()...)
	}
	created, err := a.admin.CreateTopics(ctx, events.Partitions, factor, stamped, a.names()...)
	if err != nil {
		return nil, err
	}
	var retry []string
	var cause error
	for _, t := range created.Sorted() {
		if errors.Is(t.Err, kerr.InvalidConfig) || errors.Is(t.Err, kerr.PolicyViolation) {
			retry, cause = append(retry, t.Topic), fmt.Errorf("create %s: %w %s", t.Topic, t.Err, t.ErrMessage)
		}
	}
	if len(retry) == 0 {
		return created, nil
	}
	second, err := a.admin.CreateTopics(ctx, events.Partitions, factor, plain, retry...)
	if err != nil {
		return nil, err
	}
	for name, t := range second {
		created[name] = t
		if t.Err == nil || errors.Is(t.Err, kerr.TopicAlreadyExists) {
			a.stamp.refused, a.stamp.settled = true, true
		}
	}
	if a.stamp.refused {
		a.warn(cause)
	}
	return created, nil
}

// stampByBroker sets it on existing topics, until it is set or refused.
func (a *Admin) stampByBroker(ctx context.Context, topics []string) {
	a.stamp.mu.Lock()
	defer a.stamp.mu.Unlock()
	if a.stamp.settled {
		return
	}
	err := a.setStamp(ctx, topics)
	var answer *kerr.Error
	a.stamp.settled = err == nil || errors.As(err, &answer) && !answer.Retriable
	if err != nil {
		a.warn(err)
	}
}

// warn logs the consequence once.
func (a *Admin) warn(cause error) {
	if !a.stamp.warned {
		a.cfg.Logger.Warn("the Kafka topics use the publisher's timestamps: an instance whose clock is an hour ahead cannot publish",
			"error", cause)
	}
	a.stamp.warned = true
}

func (a *Admin) setStamp(ctx context.Context, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	described, err := a.admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return fmt.Errorf("read the topics' settings: %w", permission(err, a.topics("DescribeConfigs")))
	}
	var older []string
	for _, t := range described {
		if t.Err != nil {
			return fmt.Errorf("read the settings of %s: %w", t.Name, permission(t.Err, "DescribeConfigs on the topic "+t.Name))
		}
		for _, c := range t.Configs {
			if c.Key == timestampType && c.MaybeValue() != ofTheBroker {
				older = append(older, t.Name)
			}
		}
	}
	if len(older) == 0 {
		return nil
	}
	value := ofTheBroker
	altered, err := a.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: timestampType, Value: &value}}, older...)
	for _, t := range altered {
		err = errors.Join(err, t.Err)
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", timestampType, permission(err, a.topics("AlterConfigs")))
	}
	return nil
}
