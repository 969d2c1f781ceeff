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

// state is the state of a partition in the snapshot of the pass.
type state struct {
	logID       uuid.UUID
	head        int64
	lastOf      []int64
	epoch       int32
	recordedAt  time.Time
	counts      counts
	cursor      int64 // of the relay
	furthest    int64
	fence       int64
	epochs      []epochSpan
	checkpoints []checkpoint
	withheld    map[int64]bool   // stand-ins that the consumer read in place of the event
	standIns    map[int64]bool   // all events with a stand-in on the topic
	services    map[int32]string // names of services by origin
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

func readState(ctx context.Context, tx pgx.Tx, p int16) (*state, error) {
	s := &state{withheld: map[int64]bool{}, standIns: map[int64]bool{}, services: map[int32]string{}}
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
		// A late stand-in was published after the consumer had read the event from the log.
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
			return nil, fmt.Errorf("read the state of the consumers: %w", err)
		}
	}
	return s, nil
}

// owner returns the epoch that a position belongs to.
func (s *state) owner(position int64) (epoch int32) {
	for _, e := range s.epochs {
		if e.from <= position {
			epoch = e.epoch
		}
	}
	return epoch
}

// checkpointOf returns the common position of a consumer's joined generations.
func (s *state) checkpointOf(consumer string) int64 {
	for _, c := range s.checkpoints {
		if c.consumer == consumer && c.joined {
			return c.position
		}
	}
	return 0
}

// pass is one read of a partition, from its first event to its last.
type pass struct {
	*verifier
	*state
	p            int16
	last         row // only its numbers are set
	rows         int64
	onTopic      [maxTopic]bits // the positions on each topic
	topicEnd     [maxTopic]int64
	keys         []uint64
	seed         maphash.Seed
	verdict      verdicts
	figures      figureSums
	letterStates letterStates
	conflicts    []conflict
}

// partition runs every check of one partition. The topics' ends are read before the snapshot,
// so the snapshot has every event on the topics up to these ends.
func (v *verifier) partition(ctx context.Context, p int16, before *observation) error {
	var ends map[string]span
	if v.broker != nil {
		var err error
		if ends, err = v.broker.ends(ctx, p); err != nil {
			v.noTopics(err)
		}
	}
	return v.snapshot(ctx, func(tx pgx.Tx) error {
		s, err := readState(ctx, tx, p)
		if err != nil {
			return err
		}
		x := &pass{verifier: v, state: s, p: p, seed: maphash.MakeSeed()}
		x.begin()
		if err := x.read(ctx, tx); err != nil {
			return err
		}
		x.ends()
		for _, check := range []func(context.Context, pgx.Tx) error{x.duplicates, x.settleFailed, x.compareUsage, x.compareUsed, x.compareLetters, x.compareConflicts} {
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
		t.incomplete(err)
	}
}

func (x *pass) begin() {
	x.verdict = newVerdicts(x.checkpointOf(events.GroupValidator))
	x.figures = newFigureSums(x.checkpointOf(events.GroupAggregator), x.checkpointOf(events.GroupEntitlements))
	x.letterStates = newLetterStates(x.checkpointOf(events.GroupDeadLetter))
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
		x.add(&r)
		if x.rows++; x.rows%10_000 == 0 {
			x.progress("partition %d: %d of %d events read", x.p, x.rows, x.head)
		}
	}
	return rows.Err()
}

func (x *pass) add(r *row) {
	x.inOrder(r)
	x.inItsPartition(r)
	x.keys = append(x.keys, x.keyOf(r))
	s, err := r.decode()
	switch r.subject {
	case recorded:
		x.hash(r, err)
	case conflicted:
		x.addConflict(r, &s)
	}
	x.verdict.add(x, r, &s, err)
	x.figures.add(x, r, &s, err)
	x.letterStates.add(x, r, &s, err)
	x.last = row{position: r.position, recorded: r.recorded}
}

// place names an event. It is formatted only if a fault reports it.
type place struct {
	partition int16
	position  int64
}

func (p place) String() string { return fmt.Sprintf("%d-%d", p.partition, p.position) }

func (x *pass) at(position int64) place { return place{x.p, position} }

// inOrder checks a row against the row before it.
func (x *pass) inOrder(r *row) {
	x.dense.n++
	x.dense.expect(r.position == x.last.position+1, "%s follows %d", x.at(r.position), x.last.position)
	x.order.n++
	x.order.expect(r.recorded >= x.last.recorded, "%s was recorded at %s, earlier than its predecessor", x.at(r.position), moment(r.recorded))
	if r.topic < 1 || r.topic >= maxTopic {
		x.home.fault("%s is on topic %d, which does not exist", x.at(r.position), r.topic)
		return
	}
	x.order.expect(r.previous == x.topicEnd[r.topic], "%s has the previous position %d on its topic, want %d", x.at(r.position), r.previous, x.topicEnd[r.topic])
	x.order.expect(r.epoch == x.owner(r.position), "%s has epoch %d, its position belongs to %d", x.at(r.position), r.epoch, x.owner(r.position))
	x.topicEnd[r.topic] = r.position
	x.onTopic[r.topic].set(r.position, x.head)
}

func (x *pass) inItsPartition(r *row) {
	x.home.n++
	x.home.expect(partitionOf(r.tenant) == x.p, "%s is of tenant %s, which belongs to partition %d", x.at(r.position), r.tenant, partitionOf(r.tenant))
	info, known := events.Subject(r.subject).Info()
	if !known {
		x.home.add(1, "of unknown subjects")
		return
	}
	x.home.expect(int16(info.Topic) == r.topic, "%s, %s, is on topic %d", x.at(r.position), info.Name(), r.topic)
}

// ends compares the rows with the head, and every checkpoint with both.
func (x *pass) ends() {
	x.heads.n++
	x.dense.expect(x.last.position == x.head, "the head of partition %d is at %d, the last event at %d", x.p, x.head, x.last.position)
	for t := 1; t <= len(x.lastOf) && t < maxTopic; t++ {
		x.order.expect(x.lastOf[t-1] == x.topicEnd[t], "the head of partition %d has %[3]d as the end of topic %[2]d, the rows %[4]d", x.p, t, x.lastOf[t-1], x.topicEnd[t])
	}
	if x.rows > 0 {
		x.order.expect(!x.recordedAt.Before(moment(x.last.recorded)), "the head of partition %d was moved at %s, before its last event was recorded", x.p, x.recordedAt)
	}
	x.order.expect(x.epoch == x.owner(x.head+1), "the head of partition %d has epoch %d, want %d", x.p, x.epoch, x.owner(x.head+1))
	x.heads.expect(x.counts == x.letterStates.counts, "partition %d: the head has accepted %d, validated %d, rejected %d, parked %d; the rows have %d, %d, %d, %d", x.p,
		x.counts.accepted, x.counts.validated, x.counts.rejected, x.counts.parked,
		x.letterStates.counts.accepted, x.letterStates.counts.validated, x.letterStates.counts.rejected, x.letterStates.counts.parked)
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
			x.below.fault("%s is at %d, which is no event of its topic", name, c.position)
		case c.joined && c.position != x.checkpointOf(c.consumer):
			x.below.fault("%s is at %d, another generation's at %d", name, c.position, x.checkpointOf(c.consumer))
		case c.position > 0 && c.joined && c.epoch != x.owner(c.position):
			x.below.fault("%s has epoch %d, its position belongs to %d", name, c.epoch, x.owner(c.position))
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

const duplicatesSQL = `SELECT position, tenant_id, dedupe_key, l.payload_hash FROM event_log_rows l WHERE partition = $1 ORDER BY position`

// duplicates finds duplicate keys without the index that forbids them: first by a hash of each
// key, then by the keys with equal hashes.
func (x *pass) duplicates(ctx context.Context, tx pgx.Tx) error {
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
	return each(ctx, tx, duplicatesSQL, []any{x.p}, []any{&r.position, &r.tenant, &r.key, &r.hash}, func() error {
		if !suspects[x.keyOf(&r)] {
			return nil
		}
		k := name{r.tenant, string(r.key)}
		if first, twice := seen[k]; twice {
			what := "with the same payload"
			if string(first.hash) != string(r.hash) {
				what = "with another payload"
			}
			x.unique.fault("tenant %s has the key %.80q at %s and at %s, %s", r.tenant, r.key, x.at(first.position), x.at(r.position), what)
			return nil
		}
		seen[k] = found{r.position, slices.Clone(r.hash)}
		return nil
	})
}
