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

// topicPass is a reading of one partition of all topics.
type topicPass struct {
	*pass
	find    func(ctx context.Context, which []int64) (map[int64]*source, error)
	held    [maxTopic]bits
	firstOf [maxTopic]int64 // the first position that is there
	next    [maxTopic]int64 // the offset that is due
	resumed [maxTopic]int64 // the offset behind the last gap: the broker may have deleted what was read before
	since   [maxTopic]int64 // the first position from there
	last    [maxTopic]map[uuid.UUID]int64
	ahead   [maxTopic]map[int64]int64 // what came before the one before it, by that one
	early   [maxTopic]map[int64]int64 // and has to come again, since that one came later
	waiting []*kgo.Record
	numbers []int16 // of the waiting records' topics
}

// compareTopics reads the topics whole and compares them with the log, as far as
// the relay had come before it was asked where they end.
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

// compareAll asks a second time where topics begin: what the broker deleted for its
// age while they were read is not missing.
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
			t.topics.cannot(fmt.Errorf("the broker deleted all that %s held of partition %d while it was read", name, t.p))
			continue
		}
		t.whole(name, topic, s, before.position)
		t.again(name, topic, before)
	}
	return nil
}

// whole: each event of the topic up to the cursor is on it, but for those that the
// broker deleted for their age.
func (t *topicPass) whole(name string, topic int16, s span, cursor int64) {
	from := int64(0)
	if s.start > 0 {
		from = cursor // all of it is deleted
		first := t.firstOf[topic]
		switch {
		case s.start >= t.next[topic]: // none that was read is there any more
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
	t.topics.add(deleted, "deleted by the broker for their age, and not asked for")
	t.topics.expect(missing == 0, "%d events of partition %d are not on %s, the first is %s: docs/runbooks/kafka-data-lost.md", missing, t.p, name, t.at(example))
}

const eventsSQL = `SELECT ` + rowColumns + `, o.actor_type, o.actor_id, o.service, o.instance, o.commit, o.vocabulary, o.residency
 FROM event_log_rows l JOIN log_origins o ON o.id = l.origin WHERE l.partition = $1 AND l.position = ANY ($2::bigint[])`

// source is an event with what its record says besides.
type source struct {
	row
	actorType, actor, service, instance, commit string
	vocabularyHash, residency                   string
	vocabulary                                  *vocabulary // nil: the hash is not in log_vocabularies
}

// compare looks the waiting records' events up and compares them.
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
		t.take(r, t.numbers[i], wanted)
	}
	t.waiting, t.numbers = t.waiting[:0], t.numbers[:0]
	t.tell("partition %d: %d records compared", t.p, t.topics.n)
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

// offset names a record, where something is told of it.
type offset struct{ *kgo.Record }

func (o offset) String() string {
	return fmt.Sprintf("offset %d of %s/%d", o.Offset, o.Topic, o.Partition)
}

// take compares a record with its event.
func (t *topicPass) take(r *kgo.Record, topic int16, wanted map[int64]*source) {
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
		t.topics.add(1, "that are no event of any log")
		return
	case header(r, "mp-log") != "" && header(r, "mp-log") != t.logID.String():
		t.topics.add(1, "of another database's log")
		return
	case int32(epoch) != t.owner(n):
		t.topics.add(1, "ghosts: events that the database lost in a failover or restore; consumers drop them")
		return
	case n > t.head:
		t.topics.fault("%s is event %s, the head is at %d", where, t.at(n), t.head)
		return
	case !t.onTopic[topic].has(n) || wanted[n] == nil:
		t.topics.fault("%s is event %s, which the log does not have on this topic", where, t.at(n))
		return
	}
	s := wanted[n]
	t.sameBytes(where, r, s)
	if header(r, "mp-replay") != "" {
		t.topics.add(1, "published again for readers outside")
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
	t.inTurn(where, topic, n, s)
}

// inTurn: of each tenant, what comes for the first time comes in the log's order.
// What the relay was told to publish again may be new to a topic that lost it: it
// goes back then and publishes all from there, each event behind the one before it.
func (t *topicPass) inTurn(where offset, topic int16, n int64, s *source) {
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
		t.first.fault("%s is event %s, for the first time, behind %s of the same tenant", where, t.at(n), t.at(last))
	}
}

// again: what came before the one before it has come a second time behind that one,
// or the relay did not publish in order after the rewind.
func (t *topicPass) again(name string, topic int16, before lease) {
	for n, previous := range t.early[topic] {
		switch {
		case n > t.furthest || n > before.position: // told by its tenant's order, or not published again yet
		case before.fence != t.fence:
			t.first.cannot(fmt.Errorf("the relay of partition %d went back, or changed, meanwhile", t.p))
		default:
			t.first.fault("%s has event %s for the first time before %s, which precedes it, and not again behind", name, t.at(n), t.at(previous))
		}
	}
}

// sameBytes: the record says what the event says, to the byte; a stand-in for one
// that could not be published says nothing.
func (t *topicPass) sameBytes(where offset, r *kgo.Record, s *source) {
	t.bytes.n++
	tenant := tenantText(s.tenant)
	id, standIn := header(r, "mp-event-id"), header(r, "mp-withheld") != ""
	t.bytes.expect(id == s.id.String() && string(r.Key) == tenant && header(r, "mp-tenant") == tenant && header(r, "mp-previous") == strconv.FormatInt(s.previous, 10),
		"%s is keyed %.60q and says event %s after %s; %s is %s of %s after %d", where, r.Key, id, header(r, "mp-previous"), t.at(s.position), s.id, tenant, s.previous)
	if standIn {
		t.bytes.add(1, "stand-ins")
		t.bytes.expect(t.standIns[s.position] && len(r.Value) == 0, "%s stands in for %s, which was not withheld", where, t.at(s.position))
		return
	}
	expected, err := wire(t.p, s)
	if err != nil {
		t.bytes.fault("%s cannot be put together: %v", t.at(s.position), err)
		return
	}
	if of, err := s.termOf(); err == nil {
		name := of.Type + ".v" + strconv.Itoa(of.Version)
		t.bytes.expect(header(r, "mp-subject") == name, "%s has the subject %.100q, %s is %s", where, header(r, "mp-subject"), t.at(s.position), name)
	}
	if !bytes.Equal(expected, r.Value) {
		t.bytes.fault("%s is not %s as the log has it%s", where, t.at(s.position), difference(expected, r.Value))
	}
}

// difference shows where two texts part.
func difference(want, got []byte) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	show := func(b []byte) []byte { return b[min(max(i-20, 0), len(b)):min(i+40, len(b))] }
	return fmt.Sprintf(": …%s… instead of …%s…", show(got), show(want))
}
