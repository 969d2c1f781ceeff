package simulation

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
)

// Operations on a running service: the relay is rewound, and the database is restored
// from an older backup, after which the broker has records of a lost history.

// simTables are the contents of a backup.
type simTables struct {
	rows     [events.Partitions][]simRow
	keys     map[simKey]*simRow
	ended    map[uuid.UUID]bool // API keys
	heads    [events.Partitions]simHead
	epochs   [events.Partitions][]simEpoch
	ckpt     map[ckptKey]int64
	cursors  [events.Partitions]simCursor
	aggs     map[aggKey]simAgg
	accounts map[domain.AccountKey]simAccount
	reserved map[domain.ReservationKey]events.ReservationState
	limits   []limitChange
	changes  []simChange
	withheld map[events.Position]bool // as in writes
	relays   map[string]time.Time
	gens     []simGen // from the second on
	serving  int
	rebuilds []domain.Rebuild
	flips    int
}

type simEpoch struct {
	epoch int32
	from  int64
}

func newSimTables() simTables {
	t := simTables{
		keys: map[simKey]*simRow{}, ended: map[uuid.UUID]bool{}, ckpt: map[ckptKey]int64{}, aggs: map[aggKey]simAgg{},
		accounts: map[domain.AccountKey]simAccount{}, reserved: map[domain.ReservationKey]events.ReservationState{},
		withheld: map[events.Position]bool{},
		relays:   map[string]time.Time{}, serving: 1,
	}
	for p := range t.epochs {
		t.epochs[p], t.heads[p].epoch = []simEpoch{{1, 1}}, 1
	}
	return t
}

func (t *simTables) clone() simTables {
	c := *t
	for p := range c.rows {
		c.rows[p], c.epochs[p] = slices.Clip(c.rows[p]), slices.Clip(c.epochs[p])
	}
	c.keys, c.ckpt, c.aggs = maps.Clone(t.keys), maps.Clone(t.ckpt), maps.Clone(t.aggs)
	c.accounts, c.reserved, c.changes = maps.Clone(t.accounts), maps.Clone(t.reserved), slices.Clip(t.changes)
	c.limits, c.ended = slices.Clip(t.limits), maps.Clone(t.ended)
	c.withheld, c.relays, c.rebuilds = maps.Clone(t.withheld), maps.Clone(t.relays), slices.Clone(t.rebuilds)
	c.gens = nil
	for _, g := range t.gens {
		c.gens = append(c.gens, maps.Clone(g))
	}
	return c
}

// owner is the epoch that a position belongs to.
func (t *simTables) owner(at events.Position) (epoch int32) {
	for _, e := range t.epochs[at.Partition] {
		if e.from <= at.Number {
			epoch = e.epoch
		}
	}
	return epoch
}

// restore ends every process and puts one of the backups in the place of the database, on a
// server in another life.
func (s *sim) restore(p *proc) bool {
	err := p.do(&operation{what: "restore", effect: func(opOutcome) error {
		for _, o := range slices.Clone(s.procs) {
			if o.start != nil && o != p {
				s.stopped = append(s.stopped, o.start)
				o.start = nil
				s.kill(o)
			}
		}
		s.asks = slices.DeleteFunc(s.asks, func(a *operation) bool { // pending starts go on after the restore
			if a.starts != nil {
				s.stopped = append(s.stopped, a.starts)
			}
			return a.starts != nil
		})
		s.count("restored")
		s.setBack()
		return nil
	}})
	return err == nil && p.do(&operation{what: "start all", effect: func(opOutcome) error {
		for i, start := range s.stopped {
			s.begin(strconv.Itoa(i), start)
		}
		s.stopped = nil
		return nil
	}}) == nil
}

// failover puts a backup in the place of the database beneath running processes: a standby is
// promoted that lacks the newest events. Only their connections are lost.
func (s *sim) failover(p *proc) bool {
	return p.do(&operation{what: "fail over", effect: func(opOutcome) error {
		s.count("failed over")
		s.setBack()
		return nil
	}}) == nil
}

// setBack puts one of the backups in the place of the database.
func (s *sim) setBack() {
	s.life++
	s.pipe.remember()
	for _, o := range s.procs {
		for _, tx := range slices.Clone(o.open) {
			tx.lose()
		}
	}
	s.db.simTables, s.db.locks = s.backups[s.rng.IntN(len(s.backups))].clone(), map[rowLock]*simTx{}
	s.pipe.restored()
	s.model.denials = nil // they are about events that may be lost
	maps.DeleteFunc(s.model.accepted, func(k simKey, _ usageItem) bool { return s.db.keys[k] == nil })
}

// restored finds how far the topics hold the present log.
func (b *simPipe) restored() {
	clear(b.last)
	clear(b.due)
	for p := range b.s.db.rows {
		for i := range b.s.db.rows[p] {
			if r := &b.s.db.rows[p][i]; b.stored[r.id()] {
				b.last[topicPart{r.topic, int16(p)}] = r.at.Number
			}
		}
	}
}

// rewind rewinds the relay to the start or to a position.
func (s *sim) rewind(p *proc) bool {
	in := repair.Rewind{Reason: "simulated", To: repair.RewindToStart}
	err := p.do(&operation{what: "choose where the relay goes back", effect: func(opOutcome) error {
		s.again = map[int16]int64{}
		at := s.plan.partitions[s.rng.IntN(len(s.plan.partitions))]
		if stands := s.db.cursors[at].position; stands > 0 && s.rng.IntN(2) == 0 {
			from := events.Position{Partition: at, Number: 1 + s.rng.Int64N(stands)}
			in.To, in.Positions = "", []events.Position{from}
			s.again[at] = from.Number
			return nil
		}
		for _, at := range s.plan.partitions {
			s.again[at] = 1
		}
		return nil
	}})
	if err != nil {
		return false
	}
	r := &repair.Replays{Store: &repairs.Replays{Store: s.storeOf(p)}, Now: s.now, NewID: p.newID}
	_, err = r.Rewind(p.ctx, commands.Request{By: commands.Caller{}}, in)
	return s.decided("relay sent back", err)
}

// historyQuery takes the statements of a rewind, and those of a start on a database
// that was restored.
func (tx *simTx) historyQuery(text string, args []any) *simRows {
	db, s := tx.p.s.db, tx.p.s
	switch {
	case strings.HasPrefix(text, "SELECT FROM relay_cursors ORDER BY partition"):
		return orFailed(&simRows{}, tx.do("lock all cursors", kindStep, locksOf("cursors", s.plan.partitions), nil))
	case strings.HasPrefix(text, "SELECT partition, position FROM relay_cursors"):
		out := simAnswer()
		for p := range int16(events.Partitions) {
			out.list = append(out.list, []any{p, db.cursors[p].position})
		}
		return out
	case strings.HasPrefix(text, "SELECT partition, recorded_until(partition, $1, false)"):
		out := simAnswer()
		for p := range int16(events.Partitions) {
			out.list = append(out.list, []any{p, int64(0)}) // of the start; other times are not asked for
		}
		return out
	case strings.HasPrefix(text, "INSERT INTO replays"), strings.HasPrefix(text, "INSERT INTO replay_units"):
		return &simRows{}
	case strings.HasPrefix(text, "UPDATE relay_cursors c SET furthest"):
		return tx.rewindRelay(text, args)
	case text == readEpochsText:
		out := simAnswer()
		for p := range db.epochs {
			for _, e := range db.epochs[p] {
				out.list = append(out.list, []any{int16(p), e.epoch, e.from})
			}
		}
		return out
	}
	return nil
}

const readEpochsText = `SELECT partition, epoch, from_position FROM log_epochs ORDER BY partition, epoch`

// rewindRelay makes the comparisons that the statement's text has. Records after the new
// position count as not published.
func (tx *simTx) rewindRelay(text string, args []any) *simRows {
	db, n := tx.p.s.db, 0
	for i, p := range args[0].([]int16) {
		c, was, becomes := &db.cursors[p], args[1].([]int64)[i], args[2].([]int64)[i]
		if strings.Contains(text, "c.position = n.was") && c.position != was {
			continue
		}
		n++
		from := tx.p.s.again[p] // it may be decided again before a commit that was not answered happens
		tx.later(func(*simTx) {
			for at := from; at > 0 && at <= c.position; at++ {
				tx.p.s.pipe.due[db.rows[p][at-1].id()] = true
			}
			c.position = becomes
			if strings.Contains(text, "fence = c.fence + 1") {
				c.fence++
			}
			if strings.Contains(text, "owner = NULL") {
				c.owner = ""
			}
		})
	}
	return &simRows{tag: "UPDATE " + strconv.Itoa(n)}
}

// operate runs an operator's tasks, one after the other, each until it is done.
func (s *sim) operate() {
	p := s.newProc("operator")
	p.start = s.operate
	p.run(func() {
		for len(s.tasks) > 0 {
			pause := time.Duration(0)
			if p.do(&operation{what: "plan", effect: func(opOutcome) error {
				pause = time.Duration(s.rng.IntN(4000)) * time.Millisecond
				return nil
			}}) != nil {
				return
			}
			if p.idle("think", pause, never); p.dead.Load() {
				return
			}
			if s.tasks[0](s, p) {
				_ = p.do(&operation{what: "decided", effect: func(opOutcome) error { s.tasks = s.tasks[1:]; return nil }})
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; p.start = nil; return nil }})
	})
}

// newTasks draws the operator's tasks of a run.
func (s *sim) newTasks() (list []func(*sim, *proc) bool) {
	for range s.w.retries * (1 + s.rng.IntN(6)) {
		list = append(list, (*sim).retry)
	}
	for range s.w.rewinds * (1 + s.rng.IntN(2)) {
		list = append(list, (*sim).rewind)
	}
	for range s.w.restores * (1 + s.rng.IntN(2)) {
		list = append(list, (*sim).restore)
	}
	for range s.w.failovers * (1 + s.rng.IntN(2)) {
		list = append(list, (*sim).failover)
	}
	s.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for range s.w.rebuilds * (1 + s.rng.IntN(2)) {
		at := s.rng.IntN(len(list) + 1)
		list = slices.Insert(list, at, (*sim).rebuild)
		list = slices.Insert(list, at+1+s.rng.IntN(len(list)-at), (*sim).promote)
	}
	return list
}

// now is a clock of the service.
func (s *sim) now() time.Time { return time.Now() }
