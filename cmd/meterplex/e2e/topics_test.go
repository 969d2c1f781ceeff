package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/must"
)

// topics are the registry's names in the order of their numbers, without usage.commands, whose records are not of the log.
func topics() []string {
	return []string{"usage.raw", "usage.validated", "usage.dead-letter", "usage.duplicates",
		"meterplex.commands", "meterplex.catalogue", "meterplex.billing", "meterplex.notifications", "usage.reservations"}
}

// groups are the consumers of topics.
func groups() map[string]string {
	return map[string]string{"meterplex-usage-validator": "usage.raw", "meterplex-usage-aggregator": "usage.validated",
		"meterplex-dead-letter-handler": "usage.dead-letter", "meterplex-command-handler": "meterplex.commands"}
}

func (w *deployment) kafka(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.brokers().Brokers()...))...)
	must.OK(w.t, err)
	return c
}

// topicNames are the names of the test's topics.
func (w *deployment) topicNames() []string {
	var names []string
	for _, t := range topics() {
		names = append(names, w.prefix+t)
	}
	return names
}

// topicPosition identifies an event by topic number and position.
type topicPosition struct{ topic, position string }

// checkTopics checks that each event of the log is on its topic, by id and tenant, that
// repetitions are byte for byte equal, and that first occurrences follow the event before
// them. meterplex verify checks that the bytes are the log's.
func (w *deployment) checkTopics() {
	w.t.Helper()
	seen := w.published()
	found, err := w.sql.Query(w.t.Context(), `SELECT l.topic::text, l.partition || '-' || l.position, l.event_id::text, l.tenant_id::text, l.position <= c.position, l.partition, l.position
FROM event_log_rows l JOIN relay_cursors c USING (partition)`)
	must.OK(w.t, err)
	var at topicPosition
	var id, tenant string
	var relayed bool
	var partition int16
	var n int64
	faults := 0
	_, err = pgx.ForEachRow(found, []any{&at.topic, &at.position, &id, &tenant, &relayed, &partition, &n}, func() error {
		r := seen[at]
		delete(seen, at)
		switch {
		case faults > 10 || r == nil && (!relayed || n <= w.goneUpTo[partition]):
			return nil
		case r == nil:
			w.t.Errorf("%s of the log is not on topic %s", at.position, at.topic)
		case r.id != id || r.tenant != tenant && r.tenant != "platform":
			w.t.Errorf("%s of the log is %s of %s, on topic %s it is %s of %s", at.position, id, tenant, at.topic, r.id, r.tenant)
		default:
			return nil
		}
		faults++
		return nil
	})
	must.OK(w.t, err)
	for at := range seen {
		w.t.Errorf("%s on topic %s is not in the log", at.position, at.topic)
	}
}

// loss bounds what the topics lost, by partition: all records relayed before the loss, and
// possibly more, up to the positions recorded at its end.
type loss struct{ relayed, recorded map[int16]int64 }

// excuses reports whether an event may be on a topic without the event before it: the
// relay continues behind the records that are lost.
func (l loss) excuses(partition int16, n, previous int64) bool {
	return n > l.relayed[partition] && previous <= l.recorded[partition]
}

// beforeLoss must be called before the broker loses its records.
func (w *deployment) beforeLoss() {
	w.t.Helper()
	w.loss.relayed = w.positions(`SELECT partition, position FROM relay_cursors`)
}

// afterLoss notes that every event recorded so far may be missing on the topics: the
// broker held it, or acknowledged it in its last moment.
func (w *deployment) afterLoss() {
	w.t.Helper()
	w.loss.recorded = w.positions(`SELECT partition, position FROM log_heads`)
	w.goneUpTo, w.refilled = w.loss.recorded, false
}

// afterRefill notes that the relay was rewound to send all records again: no record may
// be missing on the topics, and first occurrences may be out of order.
func (w *deployment) afterRefill() { w.goneUpTo, w.refilled = nil, true }

func (w *deployment) positions(sql string) map[int16]int64 {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), sql)
	must.OK(w.t, err)
	all := map[int16]int64{}
	var partition int16
	var position int64
	if _, err := pgx.ForEachRow(found, []any{&partition, &position}, func() error {
		all[partition] = position
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return all
}

// firstCopy is the first occurrence of a record.
type firstCopy struct {
	sum        [sha256.Size]byte // of key and value
	id, tenant string
}

// published reads all topics from beginning to end.
func (w *deployment) published() map[topicPosition]*firstCopy {
	w.t.Helper()
	b := &topicReader{w: w, seen: map[topicPosition]*firstCopy{}, last: map[string]int64{}, outside: map[topicPosition][sha256.Size]byte{}}
	w.eachRecord(b.read)
	w.t.Logf("%d records on the topics, %d of them repetitions; and %d of lost events", len(b.seen)+b.repeated, b.repeated, b.ghosts)
	return b.seen
}

// eachRecord reads all topics from beginning to end.
func (w *deployment) eachRecord(take func(*kgo.Record)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	client := w.kafka(kgo.ConsumeTopics(w.topicNames()...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	var ends kadm.ListedOffsets
	within(w.t, "the topics' end offsets are known", func(ctx context.Context) (bool, string) {
		var err error
		ends, err = kadm.NewClient(client).ListEndOffsets(ctx, w.topicNames()...)
		err = errors.Join(err, ends.Error())
		return err == nil, fmt.Sprint(err)
	})
	left := map[string]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Topic+"/"+strconv.Itoa(int(o.Partition))] = o.Offset
		}
	})
	for len(left) > 0 {
		fetched := client.PollFetches(ctx)
		if ctx.Err() != nil {
			w.t.Fatalf("the topics cannot be read to their ends: %v", left)
		}
		fetched.EachRecord(func(r *kgo.Record) {
			take(r)
			if at := r.Topic + "/" + strconv.Itoa(int(r.Partition)); r.Offset+1 >= left[at] {
				delete(left, at)
			}
		})
	}
}

// topicReader is the state of reading the topics.
type topicReader struct {
	w        *deployment
	seen     map[topicPosition]*firstCopy
	last     map[string]int64 // greatest position, by topic and partition
	repeated int
	ghosts   int                                 // records of other histories
	outside  map[topicPosition][sha256.Size]byte // records published again for external readers before the first occurrence
}

func (b *topicReader) read(r *kgo.Record) {
	header := map[string]string{}
	for _, h := range r.Headers {
		header[h.Key] = string(h.Value)
	}
	if b.w.lost[occurrence{header["mp-position"], header["mp-epoch"], header["mp-event-id"]}] {
		b.ghosts++
		return
	}
	name := strings.TrimPrefix(r.Topic, b.w.prefix)
	at := topicPosition{strconv.Itoa(number(name)), header["mp-position"]}
	partition, position, _ := strings.Cut(at.position, "-")
	n, err := strconv.ParseInt(position, 10, 64)
	if err != nil || partition != strconv.Itoa(int(r.Partition)) {
		b.w.t.Errorf("offset %d of %s/%d has the position %q", r.Offset, name, r.Partition, at.position)
		return
	}
	if first := b.seen[at]; first != nil {
		b.repeated++
		if first.sum != sumOf(r) {
			b.w.t.Errorf("%s is on %s twice with different bytes; the second is\n%s", at.position, name, r.Value)
		}
		return
	}
	if sum, early := b.outside[at]; early && sum != sumOf(r) {
		b.w.t.Errorf("%s is on %s twice with different bytes; the second is\n%s", at.position, name, r.Value)
	}
	if header["mp-replay"] != "" { // it has no place in the order
		b.outside[at] = sumOf(r)
		return
	}
	var e struct{ EventID, TenantID, Position string }
	if err := json.Unmarshal(r.Value, &e); err != nil || e.Position != at.position || e.EventID != header["mp-event-id"] || string(r.Key) != e.TenantID {
		b.w.t.Errorf("%s on %s: key %s, headers %v and value disagree: %s %v", at.position, name, r.Key, header, r.Value, err)
	}
	b.seen[at] = &firstCopy{sum: sumOf(r), id: e.EventID, tenant: e.TenantID}
	b.inOrder(at, name, int16(r.Partition), n, header["mp-previous"])
}

// inOrder checks that a first occurrence follows the event before it on its topic.
func (b *topicReader) inOrder(at topicPosition, name string, partition int16, n int64, before string) {
	previous, err := strconv.ParseInt(before, 10, 64)
	if err != nil || previous >= n {
		b.w.t.Errorf("%s on %s has the previous position %q", at.position, name, before)
		return
	}
	came := b.seen[topicPosition{at.topic, fmt.Sprint(partition, "-", previous)}] != nil
	if previous > 0 && !came && !b.w.loss.excuses(partition, n, previous) {
		b.w.t.Errorf("%s is first on %s before its predecessor %d", at.position, name, previous)
	}
	where := fmt.Sprint(name, "/", partition)
	if n <= b.last[where] && !b.w.refilled {
		b.w.t.Errorf("%s is first on %s behind %d", at.position, name, b.last[where])
	}
	b.last[where] = n
}

func sumOf(r *kgo.Record) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat(r.Key, []byte{0}, r.Value))
}

func number(name string) int {
	for i, t := range topics() {
		if t == name && i < 8 {
			return i + 1
		} else if t == name {
			return i + 2 // usage.commands is number 9
		}
	}
	return 0
}
