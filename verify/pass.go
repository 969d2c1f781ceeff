package verify

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
	headSQL = `SELECT i.log_id, h.position, h.topic_positions, h.epoch, h.recorded_at, h.accepted, h.validated, h.rejected, h.parked,
		c.position, c.furthest, c.fence
 FROM log_heads h JOIN relay_cursors c USING (partition) CROSS JOIN log_identity i WHERE h.partition = $1`
	epochsSQL      = `SELECT epoch, from_position FROM log_epochs WHERE partition = $1 ORDER BY epoch`
	checkpointsSQL = `SELECT consumer, generation, position, epoch, joined FROM consumer_checkpoints WHERE partition = $1 ORDER BY consumer,
		generation`
	withheldSQL = `SELECT position, late FROM withheld_records WHERE partition = $1`
	servicesSQL = `SELECT id, actor_id FROM log_origins WHERE actor_type = 'service'`
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
		{checkpointsSQL, []any{&c.consumer, &c.generation, &c.position, &c.epoch, &c.joined}, func() {
			s.checkpoints = append(s.checkpoints, c)
		}},
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
	totals       runningTotals
	accounts     accounts
	crossings    crossings
	targets      map[int64]*target // corrected usage, by its position
	periods      periods
	ending       offboardings
	erased       erasures
	hooks        hooks
	pushEnds     pushEnds
	catalogue    map[catalogueRow]members // of the log
	letterStates letterStates
	refused      refusedUsage
	conflicts    []conflict
	content      content // of the present row, to reuse the memory
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
		if x.totals, err = readRunningTotals(ctx, tx, p); err != nil {
			return err
		}
		if x.figures.hours.groups, err = readSeriesGroups(ctx, tx, p); err != nil {
			return err
		}
		if x.accounts, err = readDiscards(ctx, tx, p, v.Now()); err != nil {
			return err
		}
		if x.crossings, err = readCrossings(ctx, tx, p, x.checkpointOf(entitlements)); err != nil {
			return err
		}
		if x.periods, err = readPeriods(ctx, tx, p); err != nil {
			return err
		}
		if x.ending, err = readOffboardings(ctx, tx, p); err != nil {
			return err
		}
		if x.erased, err = readErasures(ctx, tx, p); err != nil {
			return err
		}
		if err := x.read(ctx, tx); err != nil {
			return err
		}
		x.ends()
		if err := x.compare(ctx, tx); err != nil {
			return err
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
	for _, t := range v.of(perTopic) {
		t.incomplete(err)
	}
}

func (x *pass) begin() {
	x.targets, x.periods, x.crossings = map[int64]*target{}, newPeriods(), newCrossings(x.checkpointOf(entitlements))
	x.ending, x.hooks, x.pushEnds, x.catalogue = newOffboardings(), newHooks(), newPushEnds(), map[catalogueRow]members{}
	x.verdict = newVerdicts(x.checkpointOf(validator))
	x.figures = newFigureSums(x.checkpointOf(aggregator), x.checkpointOf(entitlements), x.checkpointOf(series))
	x.letterStates = newLetterStates(x.checkpointOf(letterReader))
	x.refused = newRefusedUsage(x.checkpointOf(refusalsOf))
}

const passSQL = `SELECT ` + rowColumns + ` FROM event_log_rows WHERE partition = $1 ORDER BY position`

// Without statistics of partitions the server would sort the partition, on disk if it is large.
const (
	byKey    = `SET LOCAL enable_sort = off`
	asBefore = `SET LOCAL enable_sort TO DEFAULT`
)

func (x *pass) read(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, byKey); err != nil {
		return fmt.Errorf("prepare to read the log: %w", err)
	}
	if err := x.readRows(ctx, tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, asBefore)
	return err
}

func (x *pass) readRows(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, passSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, x.p)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	defer rows.Close()
	var r row
	for rows.Next() {
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

// add passes a row to the checks.
func (x *pass) add(r *row) {
	var err error
	x.content, err = r.decode()
	for _, c := range x.all {
		if c.row != nil {
			c.row(x, r, &x.content, err)
		}
	}
	if r.topic >= 1 && r.topic < maxTopic {
		x.topicEnd[r.topic] = r.position
		x.onTopic[r.topic].set(r.position, x.head)
	}
	x.last = row{position: r.position, recorded: r.recorded}
}

// ends passes the end of the partition to the checks.
func (x *pass) ends() {
	for _, c := range x.all {
		if c.end != nil {
			c.end(x)
		}
	}
}

// compare compares the rows with the tables.
func (x *pass) compare(ctx context.Context, tx pgx.Tx) error {
	if err := x.settleFailed(ctx, tx); err != nil {
		return err
	}
	for _, c := range x.all {
		if c.compare != nil {
			if err := c.compare(x, ctx, tx); err != nil {
				return err
			}
		}
	}
	return nil
}

// place names an event. It is formatted only if a fault reports it.
type place struct {
	partition int16
	position  int64
}

func (p place) String() string { return fmt.Sprintf("%d-%d", p.partition, p.position) }

func (x *pass) at(position int64) place { return place{x.p, position} }
