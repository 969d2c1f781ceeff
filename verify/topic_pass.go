package verify

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topicPass is one read of a partition of all topics.
type topicPass struct {
	*pass
	find    func(ctx context.Context, which []int64) (map[int64]*source, error)
	held    [maxTopic]bits
	firstOf [maxTopic]int64 // the first position read
	next    [maxTopic]int64 // the next expected offset
	resumed [maxTopic]int64 // the offset behind the last gap: the broker may have deleted the records before it
	since   [maxTopic]int64 // the first position from there
	last    [maxTopic]map[uuid.UUID]int64
	ahead   [maxTopic]map[int64]int64 // records published before their predecessor, by the predecessor
	early   [maxTopic]map[int64]int64 // records that must be repeated, since their predecessor came later
	waiting []*kgo.Record
	numbers []int16 // of the waiting records' topics
}

// compareTopics reads the topics completely and compares them with the log, up to the
// relay's cursor from before their ends were read.
func (x *pass) compareTopics(ctx context.Context, tx pgx.Tx, ends map[string]span, before lease) error {
	if ends == nil {
		return nil
	}
	vocabularies, err := readVocabularies(ctx, tx)
	if err != nil {
		return err
	}
	t := newTopicPass(x, func(ctx context.Context, which []int64) (map[int64]*source, error) {
		return findInLog(ctx, tx, x.p, which, vocabularies)
	})
	return t.compareAll(ctx, ends, before)
}

func newTopicPass(x *pass, find func(context.Context, []int64) (map[int64]*source, error)) *topicPass {
	t := &topicPass{pass: x, find: find}
	for n := range t.last {
		t.last[n], t.ahead[n], t.early[n] = map[uuid.UUID]int64{}, map[int64]int64{}, map[int64]int64{}
	}
	return t
}

// compareAll reads the topics' starts a second time: records that the broker deleted for their
// age during the read are not missing.
func (t *topicPass) compareAll(ctx context.Context, ends map[string]span, before lease) error {
	err := t.broker.read(ctx, t.p, ends, func(topic int16, r *kgo.Record) error {
		t.waiting, t.numbers = append(t.waiting, r), append(t.numbers, topic)
		if len(t.waiting) < 1000 {
			return nil
		}
		return t.compare(ctx)
	})
	if err == nil {
		err = t.compare(ctx)
	}
	var now map[string]span
	if err == nil {
		now, err = t.broker.ends(ctx, t.p)
	}
	if err != nil {
		return err
	}
	for name, topic := range t.broker.names() {
		s := ends[name]
		if s.start = max(s.start, now[name].start); s.start > s.end {
			t.topicEvents.incomplete(fmt.Errorf("the broker deleted all records of %s in partition %d while it was read", name, t.p))
			continue
		}
		t.checkComplete(name, topic, s, before.position)
		t.republishedInOrder(name, topic, before)
	}
	return nil
}

const eventsSQL = `SELECT ` + rowColumns + `, o.actor_type, o.actor_id, o.service, o.instance, o.commit, o.vocabulary, o.residency, o.via
 FROM event_log_rows l JOIN log_origins o ON o.id = l.origin WHERE l.partition = $1 AND l.position = ANY ($2::bigint[])`

// source is an event with the origin that its record states.
type source struct {
	row
	actorType, actor, via, service, instance, commit string
	vocabularyHash, residency                        string
	vocabulary                                       *vocabulary // nil: the hash is not in log_vocabularies
}

// compare compares the waiting records with their events.
func (t *topicPass) compare(ctx context.Context) error {
	var which []int64
	for _, r := range t.waiting {
		if n, ok := t.positionOf(r); ok {
			which = append(which, n)
		}
	}
	wanted, err := t.find(ctx, which)
	if err != nil {
		return fmt.Errorf("look records up in the log: %w", err)
	}
	for i, r := range t.waiting {
		t.compareRecord(r, t.numbers[i], wanted)
	}
	t.waiting, t.numbers = t.waiting[:0], t.numbers[:0]
	t.progress("partition %d: %d records compared", t.p, t.topicEvents.n)
	return nil
}

func findInLog(ctx context.Context, tx pgx.Tx, p int16, which []int64, vocabularies map[string]*vocabulary) (map[int64]*source, error) {
	wanted := map[int64]*source{}
	rows, err := tx.Query(ctx, eventsSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, p, which)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var copied [][]byte
		for _, raw := range rows.RawValues() {
			copied = append(copied, bytes.Clone(raw))
		}
		s := &source{}
		if err := s.read(copied); err != nil {
			return nil, err
		}
		s.actorType, s.actor, s.service, s.instance, s.commit = string(copied[16]), string(copied[17]), string(copied[18]),
			string(copied[19]), string(copied[20])
		s.vocabularyHash, s.residency, s.via = string(copied[21]), string(copied[22]), string(copied[23])
		s.vocabulary = vocabularies[s.vocabularyHash]
		wanted[s.position] = s
	}
	return wanted, rows.Err()
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

func (t *topicPass) positionOf(r *kgo.Record) (int64, bool) {
	partition, number, _ := strings.Cut(header(r, "mp-position"), "-")
	n, err := strconv.ParseInt(number, 10, 64)
	return n, err == nil && n > 0 && partition == strconv.Itoa(int(t.p))
}

// offset names a record. It is formatted only if a fault reports it.
type offset struct{ *kgo.Record }

func (o offset) String() string {
	return fmt.Sprintf("offset %d of %s/%d", o.Offset, o.Topic, o.Partition)
}

// compareRecord compares a record with its event.
func (t *topicPass) compareRecord(r *kgo.Record, topic int16, wanted map[int64]*source) {
	t.topicEvents.n++
	if t.next[topic] > 0 && r.Offset > t.next[topic] {
		t.resumed[topic], t.since[topic] = r.Offset, 0
	}
	t.next[topic] = r.Offset + 1
	where := offset{r}
	n, placed := t.positionOf(r)
	epoch, err := strconv.ParseInt(header(r, "mp-epoch"), 10, 32)
	switch {
	case !placed || err != nil:
		t.topicEvents.add(1, "without the headers of an event")
		return
	case header(r, "mp-log") != "" && header(r, "mp-log") != t.logID.String():
		t.topicEvents.add(1, "of another database's log")
		return
	case int32(epoch) != t.owner(n):
		t.topicEvents.add(1, "of events that the database lost in a failover or restore; consumers drop them")
		return
	case n > t.head:
		t.topicEvents.fault("%s is event %s, above the head at %d", where, t.at(n), t.head)
		return
	case !t.onTopic[topic].has(n) || wanted[n] == nil:
		t.topicEvents.fault("%s is event %s, which the log does not have on this topic", where, t.at(n))
		return
	}
	s := wanted[n]
	t.sameBytes(where, r, s)
	if header(r, "mp-replay") != "" {
		t.topicEvents.add(1, "published again for external readers")
		return
	}
	if t.held[topic].has(n) {
		t.topicEvents.add(1, "repetitions")
		delete(t.early[topic], n)
		return
	}
	t.held[topic].set(n, t.head)
	if t.firstOf[topic] == 0 || n < t.firstOf[topic] {
		t.firstOf[topic] = n
	}
	if t.since[topic] == 0 || n < t.since[topic] {
		t.since[topic] = n
	}
	t.inTenantOrder(where, topic, n, s)
}
