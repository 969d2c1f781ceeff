package watermill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
)

// MetadataBatch marks a message to publish whose payload is a batch of records, as a subscriber receives
// it. Every other message is one record.
const MetadataBatch = "mp-batch"

// Outgoing returns a message with a batch to publish, which ToPublish decodes. The publish call ends early
// if ctx ends. If the message is the only one of its call, the publisher sets the Offset of each stored
// record in records, -1 if the pipe has no offsets.
func Outgoing(ctx context.Context, records []events.Record) *message.Message {
	msg := message.NewMessage(wm.NewUUID(), nil)
	msg.Metadata.Set(MetadataBatch, "1")
	msg.SetContext(WithRecords(ctx, records))
	return msg
}

// ToPublish returns the records of a publish call, in the order of its messages. keepUUID stores the UUID
// of a single message in a header.
func ToPublish(topic events.Topic, msgs []*message.Message, keepUUID bool) ([]events.Record, error) {
	if len(msgs) == 1 && msgs[0].Metadata[MetadataBatch] != "" {
		return Records(msgs[0])
	}
	records := make([]events.Record, 0, len(msgs))
	for _, msg := range msgs {
		if msg.Metadata[MetadataBatch] != "" {
			batch, err := Records(msg)
			if err != nil {
				return nil, err
			}
			records = append(records, batch...)
			continue
		}
		r, err := Record(topic, msg, keepUUID)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// Topics publishes records of several topics: one call of Publisher for each topic, with one message.
type Topics struct {
	Publisher message.Publisher
	// InTurn makes the calls one after the other. Otherwise they run at the same time.
	InTurn bool
}

// Publish stores the records in order per topic and partition, and sets their offsets. A *PublishError
// names the records that are not stored, and those that are permanently refused. After any other error of
// a call no record of its topic is known to be stored.
func (t Topics) Publish(ctx context.Context, records []events.Record) error {
	if len(records) == 0 {
		return nil
	}
	groups := groupByTopic(records)
	if len(groups) == 1 && groups[0].topic.Name() != "" {
		return t.Publisher.Publish(groups[0].topic.Name(), Outgoing(ctx, records))
	}
	errs := make([]error, len(groups))
	var calls sync.WaitGroup
	for i := range groups {
		call := func() { errs[i] = t.publishOne(ctx, &groups[i], records) }
		if t.InTurn {
			call()
		} else {
			calls.Go(call)
		}
	}
	calls.Wait()
	return joinFailures(groups, errs, len(records))
}

// topicGroup holds the indexes of a topic's records in a call.
type topicGroup struct {
	topic   events.Topic
	indexes []int
}

func groupByTopic(records []events.Record) (groups []topicGroup) {
	var at [events.TopicCount]int // one more than the group's index
	for i := range records {
		topic := records[i].Topic
		if topic < 0 || topic >= events.TopicCount {
			topic = 0
		}
		if at[topic] == 0 {
			groups = append(groups, topicGroup{topic: topic, indexes: make([]int, 0, len(records)-i)})
			at[topic] = len(groups)
		}
		g := &groups[at[topic]-1]
		g.indexes = append(g.indexes, i)
	}
	return groups
}

func (t Topics) publishOne(ctx context.Context, g *topicGroup, records []events.Record) error {
	own := make([]events.Record, len(g.indexes))
	for i, at := range g.indexes {
		own[i] = records[at]
		own[i].Offset = -1
	}
	if g.topic.Name() == "" {
		return allRefused(len(own), ErrUnknownTopic)
	}
	err := t.Publisher.Publish(g.topic.Name(), Outgoing(ctx, own))
	for i, at := range g.indexes {
		records[at].Offset = own[i].Offset
	}
	return err
}

func allRefused(n int, err error) error {
	failed := make([]FailedRecord, n)
	for i := range failed {
		failed[i] = FailedRecord{Index: i, Permanent: true, Err: err}
	}
	return NewPublishError(failed, n)
}

// joinFailures joins the errors of the calls, with the indexes of the whole.
func joinFailures(groups []topicGroup, errs []error, total int) error {
	var failed []FailedRecord
	for i, err := range errs {
		for _, f := range failuresOf(err, len(groups[i].indexes)) {
			f.Index = groups[i].indexes[f.Index]
			failed = append(failed, f)
		}
	}
	return NewPublishError(failed, total)
}

// Failures returns the failure of each record that is not known to be stored, by index in a call with n
// records.
func Failures(err error, n int) map[int]FailedRecord {
	list := failuresOf(err, n)
	if len(list) == 0 {
		return nil
	}
	failed := make(map[int]FailedRecord, len(list))
	for _, f := range list {
		failed[f.Index] = f
	}
	return failed
}

func failuresOf(err error, n int) []FailedRecord {
	if err == nil {
		return nil
	}
	var partial *PublishError
	if errors.As(err, &partial) {
		return partial.Failed
	}
	failed := make([]FailedRecord, n)
	for i := range failed {
		failed[i] = FailedRecord{Index: i, Err: fmt.Errorf("publish: %w", err)}
	}
	return failed
}
