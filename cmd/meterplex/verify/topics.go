package verify

import (
	"bytes"
	"context"
	"fmt"
	mathbits "math/bits"
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
		return lookUp(ctx, tx, x.p, which, vocabularies)
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
			t.topics.incomplete(fmt.Errorf("the broker deleted all records of %s in partition %d while it was read", name, t.p))
			continue
		}
		t.checkComplete(name, topic, s, before.position)
		t.republishedInOrder(name, topic, before)
	}
	return nil
}

// checkComplete checks that each event of the topic up to the cursor is on it, except the events that the
// broker deleted for their age.
func (t *topicPass) checkComplete(name string, topic int16, s span, cursor int64) {
	from := int64(0)
	if s.start > 0 {
		from = cursor // all records are deleted
		first := t.firstOf[topic]
		switch {
		case s.start >= t.next[topic]: // every record read is deleted by now
			first = 0
		case t.resumed[topic] > 0 && s.start >= t.resumed[topic]:
			first = t.since[topic]
		}
		if first > 0 {
			from = first - 1
		}
	}
	var missing, deleted, example int64
	want, held := t.onTopic[topic], t.held[topic]
	for i, word := range want {
		if i < len(held) {
			word &^= held[i]
		}
		for ; word != 0; word &= word - 1 {
			switch n := int64(i)<<6 + int64(mathbits.TrailingZeros64(word)); {
			case n > cursor:
			case n <= from:
				deleted++
			default:
				if missing++; example == 0 {
					example = n
				}
			}
		}
	}
	t.topics.add(deleted, "deleted by the broker for their age, and not required")
	t.topics.expect(missing == 0, "%d events of partition %d are not on %s, the first is %s; see docs/runbooks/kafka-data-lost.md", missing, t.p, name, t.at(example))
}

const eventsSQL = `SELECT ` + rowColumns + `, o.actor_type, o.actor_id, o.service, o.instance, o.commit, o.vocabulary, o.residency
 FROM event_log_rows l JOIN log_origins o ON o.id = l.origin WHERE l.partition = $1 AND l.position = ANY ($2::bigint[])`

// source is an event with the origin that its record states.
type source struct {
	row
	actorType, actor, service, instance, commit string
	vocabularyHash, residency                   string
	vocabulary                                  *vocabulary // nil: the hash is not in log_vocabularies
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
	t.progress("partition %d: %d records compared", t.p, t.topics.n)
	return nil
}

func lookUp(ctx context.Context, tx pgx.Tx, p int16, which []int64, vocabularies map[string]*vocabulary) (map[int64]*source, error) {
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
		s.actorType, s.actor, s.service, s.instance, s.commit = string(copied[16]), string(copied[17]), string(copied[18]), string(copied[19]), string(copied[20])
		s.vocabularyHash, s.residency = string(copied[21]), string(copied[22])
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
	t.topics.n++
	if t.next[topic] > 0 && r.Offset > t.next[topic] {
		t.resumed[topic], t.since[topic] = r.Offset, 0
	}
	t.next[topic] = r.Offset + 1
	where := offset{r}
	n, placed := t.positionOf(r)
	epoch, err := strconv.ParseInt(header(r, "mp-epoch"), 10, 32)
	switch {
	case !placed || err != nil:
		t.topics.add(1, "without the headers of an event")
		return
	case header(r, "mp-log") != "" && header(r, "mp-log") != t.logID.String():
		t.topics.add(1, "of another database's log")
		return
	case int32(epoch) != t.owner(n):
		t.topics.add(1, "of events that the database lost in a failover or restore; consumers drop them")
		return
	case n > t.head:
		t.topics.fault("%s is event %s, above the head at %d", where, t.at(n), t.head)
		return
	case !t.onTopic[topic].has(n) || wanted[n] == nil:
		t.topics.fault("%s is event %s, which the log does not have on this topic", where, t.at(n))
		return
	}
	s := wanted[n]
	t.sameBytes(where, r, s)
	if header(r, "mp-replay") != "" {
		t.topics.add(1, "published again for external readers")
		return
	}
	if t.held[topic].has(n) {
		t.topics.add(1, "repetitions")
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

// inTenantOrder checks that the first occurrences of each tenant are in the order of the log.
// Records published again after a rewind may be new to a topic that lost them: the relay
// then publishes all events from there, each behind the one before it.
func (t *topicPass) inTenantOrder(where offset, topic int16, n int64, s *source) {
	t.first.n++
	if s.previous > 0 && !t.held[topic].has(s.previous) {
		t.ahead[topic][s.previous] = n
	}
	if next, ahead := t.ahead[topic][n]; ahead {
		t.early[topic][next] = n
		delete(t.ahead[topic], n)
	}
	last := t.last[topic][s.tenant]
	switch {
	case n >= last:
		t.last[topic][s.tenant] = n
	case n <= t.furthest:
		t.first.add(1, "published again after a rewind")
	default:
		t.first.fault("%s is the first record of event %s, behind %s of the same tenant", where, t.at(n), t.at(last))
	}
}

// republishedInOrder checks that an event first published before its predecessor was published again behind
// it; otherwise the relay did not publish in order after the rewind.
func (t *topicPass) republishedInOrder(name string, topic int16, before lease) {
	for n, previous := range t.early[topic] {
		switch {
		case n > t.furthest || n > before.position: // reported by its tenant's order, or not published again yet
		case before.fence != t.fence:
			t.first.incomplete(fmt.Errorf("the relay of partition %d was rewound or replaced during the read", t.p))
		default:
			t.first.fault("%s has event %s before its predecessor %s, and does not repeat it after", name, t.at(n), t.at(previous))
		}
	}
}

// sameBytes compares a record with its event byte for byte. A stand-in for an event that
// could not be published must be empty.
func (t *topicPass) sameBytes(where offset, r *kgo.Record, s *source) {
	t.bytes.n++
	tenant := tenantText(s.tenant)
	id, standIn := header(r, "mp-event-id"), header(r, "mp-withheld") != ""
	t.bytes.expect(id == s.id.String() && string(r.Key) == tenant && header(r, "mp-tenant") == tenant && header(r, "mp-previous") == strconv.FormatInt(s.previous, 10),
		"%s has the key %.60q and event %s after %s; %s is %s of %s after %d", where, r.Key, id, header(r, "mp-previous"), t.at(s.position), s.id, tenant, s.previous)
	if standIn {
		t.bytes.add(1, "stand-ins")
		t.bytes.expect(t.standIns[s.position] && len(r.Value) == 0, "%s stands in for %s, which was not withheld", where, t.at(s.position))
		return
	}
	expected, err := wire(t.p, s)
	if err != nil {
		t.bytes.fault("%s cannot be encoded: %v", t.at(s.position), err)
		return
	}
	if of, err := s.termOf(); err == nil {
		name := of.Type + ".v" + strconv.Itoa(of.Version)
		t.bytes.expect(header(r, "mp-subject") == name, "%s has the subject %.100q, %s is %s", where, header(r, "mp-subject"), t.at(s.position), name)
	}
	if !bytes.Equal(expected, r.Value) {
		t.bytes.fault("%s differs from %s in the log%s", where, t.at(s.position), difference(expected, r.Value))
	}
}

// difference shows the first difference of two texts.
func difference(want, got []byte) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	show := func(b []byte) []byte { return b[min(max(i-20, 0), len(b)):min(i+40, len(b))] }
	return fmt.Sprintf(": …%s… instead of …%s…", show(got), show(want))
}
