package verify

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// stand is where everything stands in a partition, in the pass's own snapshot.
type stand struct {
	logID       uuid.UUID
	head        int64
	lastOf      []int64
	epoch       int32
	recordedAt  time.Time
	counts      counts
	cursor      int64 // the relay's
	furthest    int64
	fence       int64
	epochs      []epochSpan
	checkpoints []checkpoint
	withheld    map[int64]bool   // from its consumer, too
	standIns    map[int64]bool   // all that only a stand-in was published for
	services    map[int32]string // what origins of services are called
}

type counts struct{ accepted, validated, rejected, parked int64 }

type epochSpan struct {
	epoch int32
	from  int64
}

type checkpoint struct {
	consumer   string
	generation int
	position   int64
	epoch      int32
	joined     bool
}

const (
	headSQL = `SELECT i.log_id, h.position, h.topic_positions, h.epoch, h.recorded_at, h.accepted, h.validated, h.rejected, h.parked, c.position, c.furthest, c.fence
 FROM log_heads h JOIN relay_cursors c USING (partition) CROSS JOIN log_identity i WHERE h.partition = $1`
	epochsSQL      = `SELECT epoch, from_position FROM log_epochs WHERE partition = $1 ORDER BY epoch`
	checkpointsSQL = `SELECT consumer, generation, position, epoch, joined FROM consumer_checkpoints WHERE partition = $1 ORDER BY consumer, generation`
	withheldSQL    = `SELECT position, late FROM withheld_records WHERE partition = $1`
	servicesSQL    = `SELECT id, actor_id FROM log_origins WHERE actor_type = 'service'`
)

func readStand(ctx context.Context, tx pgx.Tx, p int16) (*stand, error) {
	s := &stand{withheld: map[int64]bool{}, standIns: map[int64]bool{}, services: map[int32]string{}}
	err := tx.QueryRow(ctx, headSQL, p).Scan(&s.logID, &s.head, &s.lastOf, &s.epoch, &s.recordedAt, &s.counts.accepted, &s.counts.validated,
		&s.counts.rejected, &s.counts.parked, &s.cursor, &s.furthest, &s.fence)
	if err != nil {
		return nil, fmt.Errorf("read the head: %w", err)
	}
	var e epochSpan
	var c checkpoint
	var n int64
	var late bool
	var origin int32
	var name string
	for _, q := range []struct {
		sql  string
		into []any
		keep func()
	}{
		{epochsSQL, []any{&e.epoch, &e.from}, func() { s.epochs = append(s.epochs, e) }},
		{checkpointsSQL, []any{&c.consumer, &c.generation, &c.position, &c.epoch, &c.joined}, func() { s.checkpoints = append(s.checkpoints, c) }},
		// Which of them its consumer never had is said here once more, apart from the folds.
		{withheldSQL, []any{&n, &late}, func() {
			if s.standIns[n] = true; !late {
				s.withheld[n] = true
			}
		}},
		{servicesSQL, []any{&origin, &name}, func() { s.services[origin] = name }},
	} {
		args := []any{p}
		if q.sql == servicesSQL {
			args = nil
		}
		if err := each(ctx, tx, q.sql, args, q.into, func() error { q.keep(); return nil }); err != nil {
			return nil, fmt.Errorf("read where consumers stand: %w", err)
		}
	}
	return s, nil
}

// owner is the epoch that a position belongs to.
func (s *stand) owner(position int64) (epoch int32) {
	for _, e := range s.epochs {
		if e.from <= position {
			epoch = e.epoch
		}
	}
	return epoch
}

// standing is where a consumer's generations stand that are fed together.
func (s *stand) standing(consumer string) int64 {
	for _, c := range s.checkpoints {
		if c.consumer == consumer && c.joined {
			return c.position
		}
	}
	return 0
}

// pass is one reading of a partition, from its first event to its last.
type pass struct {
	*verifier
	*stand
	p        int16
	last     row // of which only numbers are kept
	rows     int64
	onTopic  [maxTopic]bits // which positions are on a topic
	topicEnd [maxTopic]int64
	keys     []uint64
	seed     maphash.Seed
	verdict  verdicts
	money    money
	fates    fates
	clashes  []clash
}

// partition makes every check of one partition. What the topics end at is asked
// before the snapshot: what is on them then, the snapshot has.
func (v *verifier) partition(ctx context.Context, p int16, before *look) error {
	var ends map[string]span
	if v.broker != nil {
		var err error
		if ends, err = v.broker.ends(ctx, p); err != nil {
			v.noTopics(err)
		}
	}
	return v.snapshot(ctx, func(tx pgx.Tx) error {
		s, err := readStand(ctx, tx, p)
		if err != nil {
			return err
		}
		x := &pass{verifier: v, stand: s, p: p, seed: maphash.MakeSeed()}
		x.begin()
		if err := x.read(ctx, tx); err != nil {
			return err
		}
		x.ends()
		for _, check := range []func(context.Context, pgx.Tx) error{x.twins, x.settleFailed, x.compareUsage, x.compareUsed, x.compareLetters, x.compareClashes} {
			if err := check(ctx, tx); err != nil {
				return err
			}
		}
		if v.broker == nil {
			return nil
		}
		if err := x.compareTopics(ctx, tx, ends, before.cursors[p]); err != nil {
			v.noTopics(err)
		}
		return ctx.Err()
	})
}

func (v *verifier) noTopics(err error) {
	for _, t := range []*tally{v.topics, v.bytes, v.first} {
		t.cannot(err)
	}
}

func (x *pass) begin() {
	x.verdict = newVerdicts(x.standing(events.GroupValidator))
	x.money = newMoney(x.standing(events.GroupAggregator), x.standing(events.GroupEntitlements))
	x.fates = newFates(x.standing(events.GroupDeadLetter))
}

const passSQL = `SELECT ` + rowColumns + ` FROM event_log_rows WHERE partition = $1 ORDER BY position`

func (x *pass) read(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, passSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, x.p)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := r.read(rows.RawValues()); err != nil {
			return err
		}
		x.take(&r)
		if x.rows++; x.rows%10_000 == 0 {
			x.tell("partition %d: %d of %d events read", x.p, x.rows, x.head)
		}
	}
	return rows.Err()
}

func (x *pass) take(r *row) {
	x.inOrder(r)
	x.atHome(r)
	x.keys = append(x.keys, x.keyOf(r))
	s, err := r.says()
	switch r.subject {
	case recorded:
		x.hash(r, err)
	case conflicted:
		x.clash(r, &s)
	}
	x.verdict.take(x, r, &s, err)
	x.money.take(x, r, &s, err)
	x.fates.take(x, r, &s, err)
	x.last = row{position: r.position, recorded: r.recorded}
}

// place names an event; it is written out where something is told of it alone.
type place struct {
	partition int16
	position  int64
}

func (p place) String() string { return fmt.Sprintf("%d-%d", p.partition, p.position) }

func (x *pass) at(position int64) place { return place{x.p, position} }

// inOrder looks at the row's place behind the one before it.
func (x *pass) inOrder(r *row) {
	x.dense.n++
	x.dense.expect(r.position == x.last.position+1, "%s follows %d", x.at(r.position), x.last.position)
	x.order.n++
	x.order.expect(r.recorded >= x.last.recorded, "%s was recorded at %s, before the one before it", x.at(r.position), moment(r.recorded))
	if r.topic < 1 || r.topic >= maxTopic {
		x.home.fault("%s is on topic %d, which is none", x.at(r.position), r.topic)
		return
	}
	x.order.expect(r.previous == x.topicEnd[r.topic], "%s says that %d is before it on its topic, it is %d", x.at(r.position), r.previous, x.topicEnd[r.topic])
	x.order.expect(r.epoch == x.owner(r.position), "%s is of epoch %d, its position of %d", x.at(r.position), r.epoch, x.owner(r.position))
	x.topicEnd[r.topic] = r.position
	x.onTopic[r.topic].set(r.position, x.head)
}

func (x *pass) atHome(r *row) {
	x.home.n++
	x.home.expect(partitionOf(r.tenant) == x.p, "%s is of tenant %s, who lives in partition %d", x.at(r.position), r.tenant, partitionOf(r.tenant))
	info, known := events.Subject(r.subject).Info()
	if !known {
		x.home.add(1, "of subjects that this program does not know")
		return
	}
	x.home.expect(int16(info.Topic) == r.topic, "%s, %s, is on topic %d", x.at(r.position), info.Name(), r.topic)
}

// ends compares what was read with the head, and every checkpoint with both.
func (x *pass) ends() {
	x.heads.n++
	x.dense.expect(x.last.position == x.head, "the head of partition %d is at %d, the last event at %d", x.p, x.head, x.last.position)
	for t := 1; t <= len(x.lastOf) && t < maxTopic; t++ {
		x.order.expect(x.lastOf[t-1] == x.topicEnd[t], "the head of partition %d says that topic %d ends at %d, it ends at %d", x.p, t, x.lastOf[t-1], x.topicEnd[t])
	}
	if x.rows > 0 {
		x.order.expect(!x.recordedAt.Before(moment(x.last.recorded)), "the head of partition %d was moved at %s, before its last event was recorded", x.p, x.recordedAt)
	}
	x.order.expect(x.epoch == x.owner(x.head+1), "the head of partition %d is of epoch %d, not of %d", x.p, x.epoch, x.owner(x.head+1))
	x.heads.expect(x.counts == x.fates.counts, "partition %d: the head says accepted %d, validated %d, rejected %d, parked %d; the rows say %d, %d, %d, %d", x.p,
		x.counts.accepted, x.counts.validated, x.counts.rejected, x.counts.parked,
		x.fates.counts.accepted, x.fates.counts.validated, x.fates.counts.rejected, x.fates.counts.parked)
	x.verdict.end(x)
	x.below.expect(x.cursor <= x.head && x.furthest <= x.head, "the relay's cursor of partition %d is at %d (furthest %d), the head at %d", x.p, x.cursor, x.furthest, x.head)
	source := map[string]int16{}
	for _, t := range events.Topics() {
		if t.Consumer != "" && !t.Topic.Outside() {
			source[t.Consumer] = int16(t.Topic)
		}
	}
	for _, c := range x.checkpoints {
		x.below.n++
		name := fmt.Sprintf("the checkpoint of %s, generation %d, in partition %d", c.consumer, c.generation, x.p)
		topic, ofTopic := source[c.consumer]
		switch {
		case c.position > x.head:
			x.below.fault("%s is at %d, the head at %d", name, c.position, x.head)
		case ofTopic && c.position != 0 && !x.onTopic[topic].has(c.position):
			x.below.fault("%s is at %d, where no event of its topic is", name, c.position)
		case c.joined && c.position != x.standing(c.consumer):
			x.below.fault("%s is at %d, another one's at %d", name, c.position, x.standing(c.consumer))
		case c.position > 0 && c.joined && c.epoch != x.owner(c.position):
			x.below.fault("%s is of epoch %d, its position of %d", name, c.epoch, x.owner(c.position))
		}
	}
}

func (x *pass) keyOf(r *row) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	_, _ = h.Write(r.tenant[:])
	_, _ = h.Write(r.key)
	return h.Sum64()
}

const twinsSQL = `SELECT position, tenant_id, dedupe_key, l.payload_hash FROM event_log_rows l WHERE partition = $1 ORDER BY position`

// twins finds keys that are there twice, without the index that forbids it: by a
// hash of each, and where two are the same, by the keys themselves.
func (x *pass) twins(ctx context.Context, tx pgx.Tx) error {
	x.unique.n += int64(len(x.keys))
	slices.Sort(x.keys)
	suspects := map[uint64]bool{}
	for i := 1; i < len(x.keys); i++ {
		if x.keys[i] == x.keys[i-1] {
			suspects[x.keys[i]] = true
		}
	}
	x.keys = nil
	if len(suspects) == 0 {
		return nil
	}
	type name struct {
		tenant uuid.UUID
		key    string
	}
	type found struct {
		position int64
		hash     []byte
	}
	seen := map[name]found{}
	var r row
	return each(ctx, tx, twinsSQL, []any{x.p}, []any{&r.position, &r.tenant, &r.key, &r.hash}, func() error {
		if !suspects[x.keyOf(&r)] {
			return nil
		}
		k := name{r.tenant, string(r.key)}
		if first, twice := seen[k]; twice {
			what := "with the same payload"
			if string(first.hash) != string(r.hash) {
				what = "with another payload"
			}
			x.unique.fault("tenant %s has %.80q at %s and again at %s, %s", r.tenant, r.key, x.at(first.position), x.at(r.position), what)
			return nil
		}
		seen[k] = found{r.position, slices.Clone(r.hash)}
		return nil
	})
}
