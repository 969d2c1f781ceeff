package simulation

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// Rebuilds of the aggregates beside live traffic: the rebuilder's loops and the
// decisions over rebuilds are the service's own; the tables of generations, units and
// rebuilds are simulated.

// simUnit is how far a generation is in a partition, until it is fed with the live one.
type simUnit struct {
	position int64
	joined   bool
}

// simGen is a generation beside the first one, which is joined everywhere and stays so.
type simGen map[int16]simUnit

// Config returns the pool's configuration, which bounds the seats of a rebuilder.
func (o simPool) Config() *pgxpool.Config { return &pgxpool.Config{MaxConns: 8} }

// startRebuilder starts a rebuilder of small chunks, now and then of all at once.
func (s *sim) startRebuilder(name string) {
	p := s.newProc(name)
	p.start = func() { s.startRebuilder(name) }
	rebuilder := &rebuild.Rebuilder{
		Pool: simPool{p}, Log: s.logOf(p), Projections: models.List(poisonedFolds(), p.newID), NewID: p.newID,
		Logger: slog.New(slog.DiscardHandler), Instance: name, Every: 500 * time.Millisecond, Chunk: 4, Join: 6,
	}
	p.run(func() { _ = rebuilder.Run(p.ctx) })
}

func (s *sim) rebuilds(p *proc) *repair.Rebuilds {
	return &repair.Rebuilds{Store: &repairs.Rebuilds{Store: s.storeOf(p)}, Now: s.now, NewID: p.newID,
		Projections: []repair.Projection{{Name: projections.ProjectionUsage, Consumer: events.GroupAggregator, Newest: usage.V1}}}
}

// rebuild starts a rebuild.
func (s *sim) rebuild(p *proc) bool {
	_, err := s.rebuilds(p).Start(p.ctx, commands.Request{By: commands.Caller{}},
		repair.StartRebuild{Projection: projections.ProjectionUsage, Workers: 1, Reason: "simulated"})
	return s.decided("rebuild", err)
}

// promote waits until the last rebuild is ready and promotes it, or abandons it while it
// is in progress.
func (s *sim) promote(p *proc) bool {
	var id uuid.UUID
	abandon := false
	err := p.do(&operation{what: "wait for the rebuild", until: time.Now().Add(time.Hour),
		ready: func() bool {
			n := len(s.db.rebuilds)
			return n == 0 || s.db.rebuilds[n-1].State != domain.RebuildFolding || s.seed%5 == 0
		},
		effect: func(opOutcome) error {
			if n := len(s.db.rebuilds); n > 0 {
				id, abandon = s.db.rebuilds[n-1].ID, s.db.rebuilds[n-1].State == domain.RebuildFolding
			}
			return nil
		}})
	if err != nil || id == uuid.Nil {
		return err == nil
	}
	if abandon {
		_, err = s.rebuilds(p).Abandon(p.ctx, commands.Request{By: commands.Caller{}}, id, "simulated")
		return s.decided("abandoned", err)
	}
	_, err = s.rebuilds(p).Promote(p.ctx, commands.Request{By: commands.Caller{}}, id, "simulated")
	return s.decided("promotion", err)
}

// joined lists the generations of a consumer that are fed, by partition.
func (db *simDB) joined(consumer string, partitions []int16) (list [][]int) {
	for _, p := range partitions {
		all := []int{1}
		for i, g := range db.gens {
			if consumer == events.GroupAggregator && g[p].joined {
				all = append(all, i+2)
			}
		}
		list = append(list, all)
	}
	return list
}

// sameGenerations checks that joined generations are the same, byte for byte.
func (db *simDB) sameGenerations() {
	for i := range db.gens {
		for k, a := range db.aggs {
			if !db.gens[i][events.PartitionOf(k.tenant)].joined || k.generation != 1 && k.generation != i+2 {
				continue
			}
			other := k
			if other.generation = 1; k.generation == 1 {
				other.generation = i + 2
			}
			if db.aggs[other] != a {
				db.s.fail("generation %d has %v of %s %s, and generation %d %v", k.generation, a, k.tenant, k.feature, other.generation,
					db.aggs[other])
			}
		}
	}
}

func (db *simDB) rebuildRows(with func(*domain.Rebuild) bool) *simRows {
	out := simAnswer().named("id", "projection", "consumer", "generation", "fold_version", "purpose", "repair", "tenant_id", "period_key",
		"reason", "state", "failure", "workers", "flip", "differs", "created_at", "ready_at", "ended_at")
	for i := range db.rebuilds {
		if r := &db.rebuilds[i]; with(r) {
			out.list = append(out.list, []any{r.ID, r.Projection, r.Consumer, r.Generation, r.FoldVersion, r.Purpose, r.Repair, r.TenantID,
				r.PeriodKey, r.Reason, r.State, r.Failure, r.Workers, r.Flip, r.Differs, r.CreatedAt, r.ReadyAt, r.EndedAt})
		}
	}
	return out
}

// readsRebuild knows the read of one rebuild.
func readsRebuild(text string) bool {
	return strings.HasPrefix(text, "SELECT id, projection, consumer, generation") && strings.HasSuffix(text, "WHERE id = $1")
}

// readRebuilds executes reads of rebuilds outside of transactions.
func (db *simDB) readRebuilds(text string, args []any) *simRows {
	switch {
	case readsRebuild(text):
		return db.rebuildRows(func(r *domain.Rebuild) bool { return r.ID == args[0] })
	case strings.HasPrefix(text, "SELECT id, projection, consumer, generation") && strings.HasSuffix(text, "ORDER BY created_at"):
		return db.rebuildRows(func(r *domain.Rebuild) bool { return r.State == domain.RebuildFolding })
	case strings.HasPrefix(text, "SELECT g.projection, g.generation"),
		strings.HasPrefix(text, "SELECT projection, generation FROM projection_generations"):
		return simAnswer() // no generation is dropped within a run
	}
	return nil
}

// later changes the database when the transaction commits.
func (tx *simTx) later(change func(*simTx)) *simRows {
	tx.root.w.more = append(tx.root.w.more, change)
	return &simRows{tag: "UPDATE 1"}
}

// rebuildQuery executes the statements of a rebuilder's chunk.
func (tx *simTx) rebuildQuery(text string, args []any) *simRows {
	db := tx.p.s.db
	step := func(what string, locks []rowLock, effect func() *simRows) *simRows {
		var out *simRows
		err := tx.do(what, kindStep, locks, func() error { out = effect(); return nil })
		return orFailed(out, err)
	}
	switch {
	case strings.HasPrefix(text, "SELECT generation, fold_version"):
		out := simAnswer()
		for n := range len(db.gens) + 1 {
			out.list = append(out.list, []any{n + 1, usage.V1, uuid.Nil, ""})
		}
		return out
	case strings.HasPrefix(text, "SELECT c.partition, c.position\nFROM projection_rebuilds r"):
		return step("claim a unit", nil, func() *simRows { return tx.claim(args[0].(uuid.UUID)) })
	case strings.HasPrefix(text, "SELECT position, epoch FROM consumer_checkpoints"):
		k := ckptKey{args[0].(string), args[1].(int16)}
		return step("read the live checkpoint", locksIn(text, k.consumer, k.partition), func() *simRows {
			return simAnswer([]any{db.ckpt[k], int32(1)})
		})
	case strings.HasPrefix(text, "WITH RECURSIVE chain"):
		return db.failed(args[0].(string), args[1].(int16), args[2].(int64))
	case strings.HasPrefix(text, "SELECT epoch, coalesce(timeline"):
		return simAnswer([]any{int32(1), int64(db.s.life), time.Unix(0, 0)})
	case strings.HasPrefix(text, "SELECT position FROM withheld_records"):
		out := simAnswer()
		for at, late := range db.withheld {
			if at.Partition == args[0].(int16) && at.Number > args[1].(int64) && at.Number <= args[2].(int64) && !late {
				out.list = append(out.list, []any{at.Number})
			}
		}
		return out
	case strings.HasPrefix(text, "SELECT l.position, l.tenant_id, l.subject"):
		return step("read verdicts", nil, func() *simRows { return db.verdicts(args[1].(int16), args[2].(int64), args[3].(int64)) })
	case strings.HasPrefix(text, "UPDATE consumer_checkpoints SET position"):
		return step("move a unit", nil, func() *simRows { return tx.moveUnit(args) })
	case strings.HasPrefix(text, "UPDATE rebuild_units"), strings.HasPrefix(text, "INSERT INTO rebuild_units"):
		return &simRows{tag: "UPDATE 1"} // only progress, which no code reads here
	}
	return nil
}

// claim claims the first free unit.
func (tx *simTx) claim(id uuid.UUID) *simRows {
	db := tx.p.s.db
	for i := range db.rebuilds {
		r := &db.rebuilds[i]
		if r.ID != id || r.State != domain.RebuildFolding {
			continue
		}
		for _, p := range tx.p.s.plan.partitions {
			lock := locksOf(fmt.Sprint("unit of ", r.Generation), []int16{p})
			if u := db.gens[r.Generation-2][p]; !u.joined && db.free(tx, lock) {
				db.take(tx, lock)
				return simAnswer([]any{p, u.position})
			}
		}
	}
	return simAnswer()
}

func (tx *simTx) moveUnit(args []any) *simRows {
	db, gen, p := tx.p.s.db, args[1].(int), args[2].(int16)
	to := simUnit{args[3].(int64), args[5].(bool)}
	return tx.later(func(by *simTx) {
		was := db.gens[gen-2][p]
		live := db.ckpt[ckptKey{events.GroupAggregator, p}]
		switch {
		case db.locks[rowLock{fmt.Sprint("unit of ", gen), p}] != by || was.joined:
			db.s.fail("generation %d was folded in partition %d by two", gen, p)
		case to.position < was.position, to.position > live, to.joined && to.position != live:
			db.s.fail("generation %d went from %v to %v in partition %d, where the live one stands at %d", gen, was, to, p, live)
		}
		db.gens[gen-2][p] = to
		db.s.count("chunk folded")
	})
}

// failed lists the dead letters of a partition beyond a position, each with its subject.
func (db *simDB) failed(consumer string, partition int16, beyond int64) *simRows {
	out := simAnswer()
	for i := range db.rows[partition] {
		r := &db.rows[partition][i]
		if r.topic != events.TopicUsageDeadLetter || r.at.Number <= beyond {
			continue
		}
		var source *int64
		by := actors[binary.BigEndian.Uint32(r.values[colOrigin])-1]
		if n := r.fields().SourcePosition; r.subject == events.AggregationFailed && by.ID == consumer {
			source = &n
		}
		out.list = append(out.list, []any{r.at.Number, source})
	}
	return out
}

func (db *simDB) verdicts(partition int16, after, upTo int64) *simRows {
	out := &simRows{}
	for _, r := range db.rows[partition][after:min(upTo, int64(len(db.rows[partition])))] {
		if v := r.values; r.topic == events.TopicUsageValidated {
			out.raw = append(out.raw, [][]byte{v[colPosition], v[colTenant], v[colSubject], v[colOccurred], v[colKey], v[colBody]})
		}
	}
	return out
}

// rebuildChange executes the statements that start or end a rebuild.
func (tx *simTx) rebuildChange(text string, args []any) *simRows {
	db := tx.p.s.db
	switch {
	case strings.HasPrefix(text, "SELECT FROM projection_pointers WHERE projection = $1 AND flip = 1"):
		return orFailed(&simRows{}, tx.do("hold the projection", kindStep, locksOf("projection", []int16{0}), nil))
	case readsRebuild(text):
		return db.readRebuilds(text, args)
	case strings.HasPrefix(text, "SELECT id, projection, consumer, generation") &&
		strings.Contains(text, "WHERE projection = $1 AND state IN"):
		return db.rebuildRows(func(r *domain.Rebuild) bool { return r.Open() })
	case strings.HasPrefix(text, "SELECT max(generation) + 1 FROM projection_generations"):
		return simAnswer([]any{len(db.gens) + 2})
	case strings.HasPrefix(text, "INSERT INTO projection_generations"):
		return tx.later(func(*simTx) { db.gens = append(db.gens, simGen{}) })
	case strings.HasPrefix(text, "INSERT INTO projection_rebuilds"):
		r := domain.Rebuild{
			ID: args[0].(uuid.UUID), Projection: args[1].(string), Consumer: args[2].(string), Generation: args[3].(int),
			FoldVersion: args[4].(string),
			Purpose:     args[5].(string), Reason: args[9].(string), State: args[10].(string), Workers: args[11].(int),
			CreatedAt: args[12].(time.Time),
		}
		return tx.later(func(*simTx) { db.rebuilds = append(db.rebuilds, r) })
	case strings.HasPrefix(text, "WITH live AS"):
		tx.later(func(*simTx) {
			for _, p := range tx.p.s.plan.partitions {
				db.gens[args[1].(int)-2][p] = simUnit{}
			}
		})
		return simAnswer()
	case strings.HasPrefix(text, "UPDATE projection_rebuilds r SET state = 'READY'"):
		return tx.markReady(args[0].(uuid.UUID))
	case strings.HasPrefix(text, "SELECT r.state, coalesce(g.broken, '')"):
		at := db.rebuildAt(args[0].(uuid.UUID))
		if at < 0 { // a failover lost it
			return simAnswer()
		}
		if len(tx.root.w.more) > 0 { // it is READY by this transaction
			return simAnswer([]any{domain.RebuildReady, ""})
		}
		return simAnswer([]any{db.rebuilds[at].State, ""})
	case strings.HasPrefix(text, "UPDATE projection_rebuilds SET state = $2"):
		return tx.later(func(*simTx) {
			r := &db.rebuilds[db.rebuildAt(args[0].(uuid.UUID))]
			r.State, r.Flip = args[1].(string), args[2].(int)
		})
	case strings.HasPrefix(text, "UPDATE projection_rebuilds SET state = 'FAILED'"),
		strings.HasPrefix(text, "UPDATE projection_generations SET broken"),
		strings.HasPrefix(text, "UPDATE consumer_checkpoints SET joined = false"):
		return tx.later(func(*simTx) { db.s.fail("a rebuild failed: %v", args) })
	}
	return nil
}

func (db *simDB) rebuildAt(id uuid.UUID) int {
	return slices.IndexFunc(db.rebuilds, func(r domain.Rebuild) bool { return r.ID == id })
}

func (tx *simTx) markReady(id uuid.UUID) *simRows {
	db := tx.p.s.db
	at := db.rebuildAt(id)
	if at < 0 { // a failover lost it
		return &simRows{tag: "UPDATE 0"}
	}
	for _, p := range tx.p.s.plan.partitions {
		if r := &db.rebuilds[at]; r.State != domain.RebuildFolding || !db.gens[r.Generation-2][p].joined {
			return &simRows{tag: "UPDATE 0"}
		}
	}
	return tx.later(func(*simTx) { db.rebuilds[at].State = domain.RebuildReady; db.s.count("rebuild ready") })
}

// flipQuery executes the statements of a flip.
func (tx *simTx) flipQuery(text string, args []any) *simRows {
	db := tx.p.s.db
	switch {
	case strings.HasPrefix(text, "SELECT FROM consumer_checkpoints WHERE consumer = $1 AND joined"):
		return orFailed(&simRows{}, tx.do("lock what is fed", kindStep, locksOf(args[0].(string), tx.p.s.plan.partitions), nil))
	case strings.HasPrefix(text, "SELECT g.generation, g.tenant_id, shown.live"):
		n, fed := args[2].(int), events.Partitions
		for _, p := range tx.p.s.plan.partitions {
			if !db.gens[n-2][p].joined {
				fed--
			}
		}
		return simAnswer([]any{n, uuid.Nil, false, "", false, fed})
	case strings.HasPrefix(text, "SELECT max(greatest(flip"):
		return simAnswer([]any{db.flips + 2})
	case strings.HasPrefix(text, "INSERT INTO projection_pointers"):
		return tx.later(func(*simTx) { db.flips++; db.serving = args[3].(int) })
	case strings.HasPrefix(text, "UPDATE projection_pointers p SET live"),
		strings.HasPrefix(text, "UPDATE consumer_checkpoints c SET serving"):
		return &simRows{tag: "UPDATE 1"}
	}
	return nil
}
