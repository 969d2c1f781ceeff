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

// The time of a record is when the broker took it. By the time of who publishes, a
// broker refuses what is an hour ahead, and drops what is days behind too early: one
// instance with a wrong clock would keep its partitions from being published.
const (
	timestampType = "message.timestamp.type"
	ofTheBroker   = "LogAppendTime"
)

// stamp is what an Admin knows of this setting. Topics that are there are set once: who
// manages them may have a reason to set them otherwise, and topics are looked at every
// few seconds.
type stamp struct {
	mu      sync.Mutex
	refused bool // at a creation: the broker lets nobody choose
	settled bool // set, or refused
	warned  bool
}

// create asks for the topics, and again without the setting where it is what the
// broker refuses.
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
	var again []string
	var because error
	for _, t := range created.Sorted() {
		if errors.Is(t.Err, kerr.InvalidConfig) || errors.Is(t.Err, kerr.PolicyViolation) {
			again, because = append(again, t.Topic), fmt.Errorf("create %s: %w %s", t.Topic, t.Err, t.ErrMessage)
		}
	}
	if len(again) == 0 {
		return created, nil
	}
	second, err := a.admin.CreateTopics(ctx, events.Partitions, factor, plain, again...)
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
		a.warn(because)
	}
	return created, nil
}

// stampByBroker sets it for topics that were made before it was, until that is done or
// refused.
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

// warn says once what follows.
func (a *Admin) warn(because error) {
	if !a.stamp.warned {
		a.cfg.Logger.Warn("the Kafka topics keep the time of those who publish; one whose clock is an hour ahead cannot", "error", because)
	}
	a.stamp.warned = true
}

func (a *Admin) setStamp(ctx context.Context, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	described, err := a.admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return fmt.Errorf("read the topics' settings: %w", err)
	}
	var older []string
	for _, t := range described {
		if t.Err != nil {
			return fmt.Errorf("read the settings of %s: %w", t.Name, t.Err)
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
		return fmt.Errorf("set %s: %w", timestampType, err)
	}
	return nil
}
