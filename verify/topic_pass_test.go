package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// fakeTopics is a topic, usage.raw, during a read; the broker may delete its oldest records meanwhile.
type fakeTopics struct {
	records []*kgo.Record
	now     span
}

func (s *fakeTopics) names() map[string]int16 { return map[string]int16{"usage.raw": topicRaw} }

func (s *fakeTopics) ends(context.Context, int16) (map[string]span, error) {
	return map[string]span{"usage.raw": s.now}, nil
}

func (s *fakeTopics) read(_ context.Context, _ int16, _ map[string]span, take func(int16, *kgo.Record) error) error {
	for _, r := range s.records {
		if err := take(topicRaw, r); err != nil {
			return err
		}
	}
	return nil
}

// onTopic reads records, each given as offset and position, from a topic that held [0, end) at
// first and begins at start now. The log has the positions 1 to 6, of one tenant. A negative
// position is a stand-in.
func onTopic(t *testing.T, s state, end, start int64, offsets ...[2]int64) *pass {
	t.Helper()
	s.head = 6
	x := newTestPass(s)
	log := map[int64]*source{}
	words := &vocabulary{subjects: map[int16]term{recorded: {recorded, 1, "meterplex.usage.event.recorded", "cold", "/s#sha256=1"}}}
	for n := int64(1); n <= s.head; n++ {
		r := event(n, recorded, topicRaw, fmt.Sprint("e/", n), `{"a":1}`)
		r.previous = n - 1
		x.add(r)
		log[n] = &source{row: *r, vocabulary: words, vocabularyHash: "words", residency: "eu"}
	}
	from := &fakeTopics{now: span{start, end}}
	for _, o := range offsets {
		n := max(o[1], -o[1])
		value, err := wire(0, log[n])
		if err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: "usage.raw", Offset: o[0], Key: []byte("platform"), Value: value, Headers: []kgo.RecordHeader{
			{Key: "mp-subject", Value: []byte("meterplex.usage.event.recorded.v1")},
			{Key: "mp-position", Value: fmt.Append(nil, "0-", n)}, {Key: "mp-previous", Value: fmt.Append(nil, n-1)},
			{Key: "mp-epoch", Value: []byte("1")},
			{Key: "mp-event-id", Value: []byte(log[n].id.String())}, {Key: "mp-tenant", Value: []byte("platform")}}}
		if o[1] < 0 {
			r.Value, r.Headers = nil, append(r.Headers, kgo.RecordHeader{Key: "mp-withheld", Value: []byte("1")})
		}
		from.records = append(from.records, r)
	}
	x.broker = from
	c := newTopicPass(x, func(context.Context, []int64) (map[int64]*source, error) { return log, nil })
	if err := c.compareAll(t.Context(), map[string]span{"usage.raw": {0, end}}, lease{position: s.head}); err != nil {
		t.Fatal(err)
	}
	return x
}

// requireResult fails the test unless the check has the given result and its figures contain a text.
func requireResult(t *testing.T, what string, of *tally, is string, text string) {
	t.Helper()
	c, got := of.result(), "undetermined"
	if c.Holds != nil {
		got = fmt.Sprint(*c.Holds)
	}
	if got != is || !strings.Contains(c.Figures, text) {
		t.Errorf("%s: %s is %s, want %s: %s", what, c.Name, got, is, c.Figures)
	}
}

// P11: records that retention deletes during the read are not missing.
func TestP11_RecordsDeletedDuringTheReadAreNotMissing(t *testing.T) {
	s := stateAt(6, validator)
	x := onTopic(t, s, 6, 0, [2]int64{0, 1}, [2]int64{1, 2}, [2]int64{2, 3}, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	requireResult(t, "all of it", x.topicEvents, "true", "6 records")
	requireResult(t, "all of it", x.recordBytes, "true", "6 records")
	x = onTopic(t, s, 6, 3, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	requireResult(t, "deleted before it was read", x.topicEvents, "true", "3 deleted by the broker")
	x = onTopic(t, s, 6, 4, [2]int64{0, 1}, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	requireResult(t, "deleted between two reads", x.topicEvents, "true", "2 deleted by the broker")
	x = onTopic(t, s, 6, 0, [2]int64{0, 1}, [2]int64{3, 4}, [2]int64{4, 5}, [2]int64{5, 6})
	requireResult(t, "not deleted", x.topicEvents, "false", "2 events of partition 0 are not on usage.raw, the first is 0-2")
	x = onTopic(t, s, 6, 6, [2]int64{0, 1})
	requireResult(t, "all that was read is deleted", x.topicEvents, "true", "5 deleted by the broker")
	x = onTopic(t, s, 6, 9, [2]int64{0, 1})
	requireResult(t, "all of it and more is deleted", x.topicEvents, "undetermined", "while it was read")
}

// orderOf reads the positions as a topic and returns the check of their order.
func orderOf(t *testing.T, furthest int64, positions ...int64) *tally {
	t.Helper()
	s := stateAt(6, validator)
	s.furthest = furthest
	var all [][2]int64
	for n, p := range positions {
		all = append(all, [2]int64{int64(n), p})
	}
	x := onTopic(t, s, int64(len(all)), 0, all...)
	requireResult(t, fmt.Sprint(positions), x.topicEvents, "true", "records")
	return x.publishOrder
}

// P10: a rewind excuses the order of the records that it publishes again, and no other disorder below.
func TestP10_OnlyRewoundRecordsMayBeOutOfOrder(t *testing.T) {
	requireResult(t, "in order", orderOf(t, 0, 1, 2, 3, 4, 5, 6), "true", "6 first records")
	requireResult(t, "a repetition", orderOf(t, 0, 1, 2, 3, 2, 3, 4, 5, 6), "true", "6 first records")
	requireResult(t, "no rewind", orderOf(t, 0, 1, 2, 5, 3, 4, 5, 6), "false", "after 0-5 of the same tenant")
	requireResult(t, "3 and 4 were lost, and published again", orderOf(t, 6, 1, 2, 5, 6, 3, 4, 5, 6), "true",
		"2 published again after a rewind")
	requireResult(t, "all but the end was lost, and published again", orderOf(t, 6, 6, 1, 2, 3, 4, 5, 6), "true",
		"5 published again after a rewind")
	requireResult(t, "two are swapped below", orderOf(t, 6, 1, 3, 2, 4, 5, 6), "false",
		"usage.raw has event 0-3 before its predecessor 0-2")
	requireResult(t, "published again backwards", orderOf(t, 6, 1, 2, 5, 6, 4, 3), "false",
		"usage.raw has event 0-4 before its predecessor 0-3")
}

// A stand-in is late if the consumer had read its event from the log before only a stand-in
// could be published: the event has a verdict, the topic has the stand-in.
func TestAStandInIsLateOrWithheld(t *testing.T) {
	s := stateAt(6, validator)
	s.standIns[2], s.standIns[3], s.withheld[3] = true, true, true
	all := [][2]int64{{0, 1}, {1, -2}, {2, -3}, {3, 4}, {4, 5}, {5, 6}}
	x := onTopic(t, s, 6, 0, all...)
	requireResult(t, "a late one and a withheld one", x.recordBytes, "true", "2 stand-ins")
	requireResult(t, "a late one and a withheld one", x.topicEvents, "true", "6 records")
	all[4][1] = -5
	requireResult(t, "a stand-in without a row in withheld_records", onTopic(t, s, 6, 0, all...).recordBytes, "false",
		"stands in for 0-5, which was not withheld")
	for what, yes := range map[string][]int64{"": {1, 2}, "0-2 has no result": {1}, "0-3 has a validation beside its stand-in": {1, 2,
		3}} {
		x := newTestPass(s)
		x.verdict.upTo = 3
		for n := range int64(3) {
			x.verdict.add(x, event(n+1, recorded, topicRaw, fmt.Sprint("e/", n), "{}"), &content{}, nil)
		}
		for n, of := range yes {
			x.verdict.add(x, event(int64(n)+4, validated, topicValidated, fmt.Sprint("v/", of), "{}"), &content{RawPosition: of}, nil)
		}
		x.verdict.end(x)
		requireResult(t, fmt.Sprint("yes to ", yes), x.verdicts, fmt.Sprint(what == ""), what)
	}
}
