package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// clockMargin bounds the difference between the clocks of recording and publishing instances. A rewind
// that goes back too far only reads more known records.
const clockMargin = time.Minute

// Rewind is a watermill.Mover. For a group without members it commits the offsets of the first record
// published at or after a time, if they are before the committed ones. A partition without a committed
// offset is skipped: it is read from its start anyway.
func (a *Admin) Rewind(ctx context.Context, group, topic string, from int64) ([]events.ReplayStep, error) {
	group, topic = a.cfg.TopicPrefix+group, a.cfg.TopicPrefix+topic
	committed, err := a.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("read the offsets of %s: %w", group, permission(err, "Describe on the group "+group))
	}
	listed, err := a.offsetsAt(ctx, topic, from)
	if err != nil {
		return nil, err
	}
	var steps []events.ReplayStep
	offsets := kadm.Offsets{}
	for p := range int16(events.Partitions) {
		old, hasCommitted := committed.Lookup(topic, int32(p))
		to, listedOK := listed.Lookup(topic, int32(p))
		if !hasCommitted || !listedOK || old.At < 0 {
			continue
		}
		// Unchanged offsets are committed too: the broker refuses the commit while the group has
		// members, which would continue at their current offsets.
		offsets.AddOffset(topic, int32(p), min(old.At, to.Offset), -1)
		if to.Offset < old.At {
			steps = append(steps, events.ReplayStep{Partition: p, From: old.At, To: to.Offset})
		}
	}
	if len(offsets) == 0 {
		return nil, nil
	}
	done, err := a.admin.CommitOffsets(ctx, group, offsets)
	if err == nil {
		err = done.Error()
	}
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.NonEmptyGroup) || errors.Is(err, kerr.IllegalGeneration) ||
		errors.Is(err, kerr.RebalanceInProgress) {
		return nil, fmt.Errorf("move the offsets of %s: %w", group, watermill.ErrGroupBusy)
	}
	if err != nil {
		return nil, fmt.Errorf("move the offsets of %s: %w", group, permission(err, "Read on the group "+group+" and the topic "+topic))
	}
	return steps, nil
}

func (a *Admin) offsetsAt(ctx context.Context, topic string, at int64) (kadm.ListedOffsets, error) {
	var listed kadm.ListedOffsets
	var err error
	if at < 0 {
		listed, err = a.admin.ListStartOffsets(ctx, topic)
	} else {
		listed, err = a.admin.ListOffsetsAfterMilli(ctx, max(at-clockMargin.Milliseconds(), 0), topic)
	}
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the offsets of %s: %w", topic, err)
	}
	return listed, nil
}
