package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
)

// someRecords are a topic, usage.raw, as it is read; the broker may delete from its
// beginning meanwhile.
type someRecords struct {
	records []*kgo.Record
	now     span
}

func (s *someRecords) names() map[string]int16 { return map[string]int16{"usage.raw": topicRaw} }

func (s *someRecords) ends(context.Context, int16) (map[string]span, error) {
	return map[string]span{"usage.raw": s.now}, nil
}

func (s *someRecords) read(_ context.Context, _ int16, _ map[string]span, take func(int16, *kgo.Record) error) error {
	for _, r := range s.records {
		if err := take(topicRaw, r); err != nil {
			return err
		}
	}
	return nil
}

// onTopic reads records of positions, at the offsets before the colon, as it would a
// topic that held [0, end) at first and begins at start now. The log has 1 to 6, one
// tenant's. A negative position is a stand-in.
func onTopic(t *testing.T, s stand, end, start int64, offsets ...[2]int64) *pass {
	t.Helper()
	s.head = 6
	x := reading(s)
	log := map[int64]*source{}
	for n := int64(1); n <= s.head; n++ {
		r := event(n, recorded, topicRaw, fmt.Sprint("e/", n), `{"a":1}`)
		r.previous = n - 1
		x.take(r)
		log[n] = &source{row: *r}
	}
	from := &someRecords{now: span{start, end}}
	for _, o := range offsets {
		n := max(o[1], -o[1])
		value, err := wire(0, log[n])
		if err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: "usage.raw", Offset: o[0], Key: []byte("platform"), Value: value, Headers: []kgo.RecordHeader{
			{Key: "mp-position", Value: fmt.Append(nil, "0-", n)}, {Key: "mp-previous", Value: fmt.Append(nil, n-1)}, {Key: "mp-epoch", Value: []byte("1")},
			{Key: "mp-event-id", Value: []byte(log[n].id.String())}, {Key: "mp-tenant", Value: []byte("platform")}}}
		if o[1] < 0 {
			r.Value, r.Headers = nil, append(r.Headers, kgo.RecordHeader{Key: "mp-withheld", Value: []byte("1")})
		}
		from.records = append(from.records, r)
	}
	x.broker = from
	c := &topicPass{pass: x, find: func(context.Context, []int64) (map[int64]*source, error) { return log, nil }}
	if err := c.compareAll(t.Context(), map[string]span{"usage.raw": {0, end}}, s.head); err != nil {
		t.Fatal(err)
	}
	return x
}

// holds fails the test unless the check is what is said, and says what is said.
func holds(t *testing.T, what string, of *tally, is string, text string) {
	t.Helper()
	c, got := of.result(), "untold"
	if c.Holds != nil {
		got = fmt.Sprint(*c.Holds)
	}
	if got != is || !strings.Contains(c.Figures, text) {
		t.Errorf("%s: %s is %s, not %s: %s", what, c.Name, got, is, c.Figures)
	}
}

// P11: what retention deletes while the topics are read is not missing.
func TestP11_WhatIsDeletedMeanwhileIsNotMissing(t *testing.T) {
	s := at(6, events.GroupValidator)
	x := onTopic(t, s, 6, 0, [2]int64{0, 1}, [2]int64{1, 2}, [2]int64{2, 3}, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	holds(t, "all of it", x.topics, "true", "6 records")
	holds(t, "all of it", x.bytes, "true", "6 records")
	x = onTopic(t, s, 6, 3, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	holds(t, "deleted before it was read", x.topics, "true", "3 deleted by the broker")
	x = onTopic(t, s, 6, 4, [2]int64{0, 1}, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	holds(t, "deleted between two reads", x.topics, "true", "2 deleted by the broker")
	x = onTopic(t, s, 6, 0, [2]int64{0, 1}, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	holds(t, "not deleted", x.topics, "false", "2 events of partition 0 are not on usage.raw, the first is 0-2")
	x = onTopic(t, s, 6, 6, [2]int64{0, 1})
	holds(t, "all that was read is deleted", x.topics, "true", "5 deleted by the broker")
	x = onTopic(t, s, 6, 9, [2]int64{0, 1})
	holds(t, "all of it and more is deleted", x.topics, "untold", "while it was read")
}
