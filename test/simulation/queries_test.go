package simulation

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// consumerQuery executes the statements of consumers, and those of the relay that are
// part of a transaction.
func (tx *simTx) consumerQuery(text string, args []any) *simRows {
	var out *simRows
	var err error
	fill := func(f func() *simRows) func() error { return func() error { out = f(); return out.err } }
	for _, more := range []func(string, []any) *simRows{tx.lifeQuery, tx.letterQuery, tx.rebuildQuery, tx.rebuildChange, tx.flipQuery,
		tx.historyQuery, tx.keyQuery, tx.p.s.db.originQuery} {
		if out := more(text, args); out != nil {
			return out
		}
	}
	switch {
	case strings.Contains(text, "FROM consumer_checkpoints c JOIN log_heads h"):
		name, partitions := args[0].(string), args[1].([]int16)
		began := tx.p.s.db.joined(name, partitions) // as the statement sees it, however long it waits
		var locks []rowLock
		if strings.Contains(text, "FOR UPDATE OF c") {
			locks = locksOf(name, partitions)
		}
		err = tx.do(fmt.Sprint("lock checkpoints ", partitions), kindStep, locks, fill(func() *simRows {
			return tx.checkpoints(name, began, partitions, args[2].(int))
		}))
	case strings.HasPrefix(text, "SELECT partition, position FROM consumer_checkpoints"):
		err = tx.do(fmt.Sprint("lock free checkpoints ", args[1]), kindStep, nil, fill(func() *simRows {
			return tx.freeCheckpoints(text, args[0].(string), args[1].([]int16))
		}))
	case strings.HasPrefix(text, "UPDATE consumer_checkpoints c SET position"):
		err = tx.do("move checkpoints", kindStep, locksOf(args[0].(string), args[1].([]int16)), fill(func() *simRows {
			return tx.moveCheckpoints(text, args)
		}))
	case strings.HasSuffix(text, "FROM tenants WHERE id = $1"):
		return simTenant(args[0].(uuid.UUID))
	case strings.HasPrefix(text, "SELECT tenant_id, position, period_key, snapshot, change FROM period_changes"),
		strings.Contains(text, "FROM offboardings WHERE tenant_id = $1"):
		return simAnswer() // no period is closed, and no tenant offboarded
	case strings.HasPrefix(text, "INSERT INTO sagas"): // that no one runs
		return simAnswer([]any{args[0], args[1], args[2], args[3], args[4], domain.SagaRunning, 0, time.Now(), (*time.Time)(nil),
			[]string(nil), args[6], "", 0, "", "", "", time.Now(), (*time.Time)(nil)})
	case strings.HasPrefix(text, savesHistory):
		return tx.saveHistory(args)
	case strings.HasPrefix(text, "INSERT INTO subscriptions"):
		return simAnswer() // no one reads them
	case strings.Contains(text, "FROM subscription_history"):
		return tx.p.s.db.histories(args[0].([]uuid.UUID))
	case strings.Contains(text, "INSERT INTO usage_aggregates AS a"):
		err = tx.do("add to aggregates", kindStep, nil, fill(func() *simRows { return tx.addAggregates(args) }))
	case strings.HasPrefix(text, "SELECT FROM relay_cursors"):
		at := args[0].(int16)
		err = tx.do("hold a cursor", kindStep, locksIn(text, "cursors", at), fill(func() *simRows {
			return tx.holdCursor(text, at, args[1].(int64), args[2].(int64))
		}))
	case strings.HasPrefix(text, "INSERT INTO withheld_records"):
		return tx.withhold(events.Position{Partition: args[0].(int16), Number: args[1].(int64)}, args[4].(*uuid.UUID) == nil)
	case strings.HasPrefix(text, "SELECT topic FROM event_log_rows"):
		return tx.topicOf(text, args)
	case strings.HasPrefix(text, "SELECT position FROM consumer_checkpoints"):
		k := ckptKey{args[0].(string), args[1].(int16)}
		err = tx.do(fmt.Sprint("hold the checkpoint of ", k), kindStep, locksIn(text, k.consumer, k.partition), fill(func() *simRows {
			return simAnswer([]any{tx.p.s.db.ckpt[k]})
		}))
	case strings.Contains(text, "JOIN withheld_records w ON w.partition = c.partition AND w.position > c.position"):
		return tx.withheldBeyond(text, args[0].(string), args[1].([]int16), events.Topic(args[2].(int)))
	default:
		panic("the simulation does not know the statement " + text)
	}
	if err != nil {
		return &simRows{err: err}
	}
	return out
}

// locksIn returns the locks of a statement about a row.
func locksIn(text, table string, partition int16) []rowLock {
	if !strings.Contains(text, "FOR UPDATE") {
		return nil
	}
	return locksOf(table, []int16{partition})
}

// topicOf makes the comparisons that the statement's text has.
func (tx *simTx) topicOf(text string, args []any) *simRows {
	rows, n := tx.p.s.db.rows[args[0].(int16)], args[1].(int64)
	if n > int64(len(rows)) || strings.Contains(text, "event_id = $3") && rows[n-1].id() != fmt.Sprint(args[2]) {
		return simAnswer()
	}
	return simAnswer([]any{rows[n-1].topic})
}

// holdCursor makes the comparisons that the statement's text has.
func (tx *simTx) holdCursor(text string, partition int16, fence, position int64) *simRows {
	c := tx.p.s.db.cursors[partition]
	if strings.Contains(text, "is_server_life") && tx.p.s.db.heads[partition].life != tx.p.s.life {
		return &simRows{tag: "SELECT 0"}
	}
	if strings.Contains(text, "fence = $2") && c.fence != fence || strings.Contains(text, "position = $3") && c.position != position {
		return &simRows{tag: "SELECT 0"}
	}
	if c.fence != fence {
		tx.p.s.fail("a relay without the lease withholds what is behind %d of partition %d", position, partition)
	}
	return &simRows{tag: "SELECT 1"}
}

func (tx *simTx) checkpoints(name string, joined [][]int, partitions []int16, topic int) *simRows {
	out, db := simAnswer(), tx.p.s.db
	for i, p := range partitions {
		for _, g := range joined[i] {
			serves := name != events.GroupAggregator || g == db.serving
			out.list = append(out.list, []any{p, g, serves, db.ckpt[ckptKey{name, p}], db.heads[p].epoch, db.heads[p].life == db.s.life,
				db.heads[p].topics[topic-1]})
		}
	}
	return out
}

func (tx *simTx) withhold(at events.Position, late bool) *simRows {
	if _, ok := tx.p.s.db.withheld[at]; ok {
		return &simRows{tag: "INSERT 0 0"}
	}
	tx.p.s.count("withheld")
	if late {
		tx.p.s.count("withheld late")
	}
	tx.root.w.withheld[at] = late
	return &simRows{tag: "INSERT 0 1"}
}

func (tx *simTx) withheldBeyond(text, name string, partitions []int16, topic events.Topic) *simRows {
	out, db := simAnswer(), tx.p.s.db
	for at, late := range db.withheld {
		if slices.Contains(partitions, at.Partition) && at.Number > db.ckpt[ckptKey{name, at.Partition}] &&
			!(late && strings.Contains(text, "NOT w.late")) && db.rows[at.Partition][at.Number-1].topic == topic {
			out.list = append(out.list, []any{at.Partition, at.Number})
		}
	}
	return out
}

func (tx *simTx) moveCheckpoints(text string, args []any) *simRows {
	n, compares := 0, strings.Contains(text, "c.position = n.was")
	for i, p := range args[1].([]int16) {
		k := ckptKey{args[0].(string), p}
		if !compares || tx.p.s.db.ckpt[k] == args[2].([]int64)[i] {
			tx.root.w.ckpt[k] = args[3].([]int64)[i]
			n += len(tx.p.s.db.joined(k.consumer, []int16{p})[0])
		}
	}
	return &simRows{tag: "UPDATE " + strconv.Itoa(n)}
}

func (db *simDB) histories(tenants []uuid.UUID) *simRows {
	out := simAnswer()
	for _, t := range tenants {
		for _, e := range db.history(t) {
			out.list = append(out.list, []any{t, e.FromPosition, "subscription", &e.EffectiveFrom, textOf(e.Subscription), nil, nil,
				nil, nil})
		}
		out.list = append(out.list, thresholdRows(t)...)
	}
	return out
}

// addAggregates takes the sums; one feature's are more than the column holds.
func (tx *simTx) addAggregates(args []any) *simRows {
	for i, feature := range args[3].([]string) {
		if feature == featureRefused {
			tx.root.aborted = true
			tx.p.s.count("sum refused by the database")
			return &simRows{err: &pgconn.PgError{Code: "22003", Message: "simulated: numeric field overflow"}}
		}
		tx.addUsage(aggKey{args[0].(int), args[2].([]uuid.UUID)[i], feature, args[4].([]string)[i]}, args[6].([]string)[i],
			args[7].([]int64)[i], args[8].([]int64)[i])
	}
	return &simRows{}
}

// simPool is the pool of a process of the simulation.
type simPool struct{ p *proc }

func (o simPool) Begin(context.Context) (pgx.Tx, error) {
	o.p.s.mu.Lock()
	defer o.p.s.mu.Unlock()
	if o.p.dead.Load() {
		return nil, errDead
	}
	tx := newSimTx(o.p)
	tx.begin()
	return tx, nil
}

// Session gives a writer a connection, in no transaction yet.
func (o simPool) Session(context.Context) (server.Session, error) {
	o.p.s.mu.Lock()
	defer o.p.s.mu.Unlock()
	if o.p.dead.Load() {
		return nil, errDead
	}
	return newSimTx(o.p), nil
}

// Copy implements server.Database.
func (o simPool) Copy(_ context.Context, tx pgx.Tx, rows *server.Rows) error {
	into := tx.(*simTx)
	saved := into.root.w.clone()
	into.root.saved = &saved
	return into.copyRows(rows)
}

func (o simPool) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r := o.query(sql, args)
	return r, r.err
}

func (o simPool) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	return o.query(sql, args)
}

func (o simPool) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r := o.query(sql, args)
	return r.CommandTag(), r.err
}

// query executes a statement outside of a transaction. A statement that only reads is no
// step of its own, except a read of the log, which may be unavailable.
func (o simPool) query(sql string, args []any) *simRows {
	s := o.p.s
	var out *simRows
	text := strings.TrimSpace(sql)
	if readsStretch(text) || readsStretches(text) {
		err := o.p.do(&operation{what: "read the log", kind: kindAuto, effect: func(opOutcome) error {
			out = s.db.read(text, args)
			return nil
		}})
		return orFailed(out, err)
	}
	effect, locks := s.db.relayQuery(text, args)
	if effect == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.p.dead.Load() {
			return &simRows{err: errDead}
		}
		return s.db.readDirectly(o.p, text, args)
	}
	what, _, _ := strings.Cut(text, "\n")
	err := o.p.do(&operation{what: what, kind: kindAuto, locks: locks, effect: func(opOutcome) error { out = effect(); return nil }})
	return orFailed(out, err)
}

func orFailed(out *simRows, err error) *simRows {
	if err != nil {
		return &simRows{err: err}
	}
	return out
}

// readDirectly executes reads outside of transactions, and the relays' heartbeats.
func (db *simDB) readDirectly(p *proc, text string, args []any) *simRows {
	now, out := time.Now(), simAnswer()
	for _, more := range []func(string, []any) *simRows{db.readRebuilds, db.originQuery} {
		if out := more(text, args); out != nil {
			return out
		}
	}
	switch {
	case strings.Contains(text, "FROM (SELECT DISTINCT partition, position FROM consumer_checkpoints"):
		for _, i := range db.s.plan.partitions {
			at, source := db.ckpt[ckptKey{args[0].(string), i}], db.heads[i].topics[args[1].(int)-1]
			if at < source {
				out.list = append(out.list, []any{i, at, source})
			}
		}
	case strings.Contains(text, "INSERT INTO relay_instances"):
		live := 1
		for name, seen := range db.relays {
			if name != args[0] && now.Sub(seen) < args[1].(time.Duration) {
				live++
			}
		}
		db.relays[args[0].(string)] = now
		out.list = append(out.list, []any{live})
	case strings.HasPrefix(text, "SELECT coalesce(sum(h.position"):
		out.list = append(out.list, []any{int64(0), 0.0})
	case strings.HasPrefix(text, "SELECT h.partition, h.position, c.owner IS NULL"):
		for _, i := range db.s.plan.partitions {
			c := db.cursors[i]
			out.list = append(out.list, []any{i, db.heads[i].position, c.owner == "" || c.until.Before(now), db.heads[i].epoch,
				db.heads[i].life == db.s.life})
		}
	case strings.Contains(text, "SET attempts = attempts + 1"):
	case strings.HasPrefix(text, "SELECT h.partition FROM log_heads h CROSS JOIN server_life()"):
		for _, i := range db.s.plan.partitions {
			if db.heads[i].life != db.s.life {
				out.list = append(out.list, []any{i})
			}
		}
	default:
		panic("the simulation does not know the statement " + text + " of " + p.name)
	}
	return out
}

// positions describes all positions.
func (s *sim) positions() string {
	text := ""
	for _, p := range s.plan.partitions {
		text += fmt.Sprintf(" partition %d: head %d, cursor %d, validator %d, aggregator %d;", p, s.db.heads[p].position,
			s.db.cursors[p].position,
			s.db.ckpt[ckptKey{events.GroupValidator, p}], s.db.ckpt[ckptKey{events.GroupAggregator, p}])
	}
	for _, a := range s.asks {
		text += " " + a.p.name + " " + a.what + ";"
	}
	return fmt.Sprint(text, s.model.open, " clients are not done")
}

// simTenant returns the row of a tenant.
func simTenant(id uuid.UUID) *simRows {
	out, row := simAnswer(), []any{}
	for column, value := range map[string]any{"id": id, "name": "T", "class": "small", "status": domain.TenantActive,
		"mode":           domain.ModeLive,
		"data_residency": events.ResidencyUnspecified, "created_at": time.Unix(0, 0), "external_ids": nil, "metadata": nil,
		"late_usage":        events.LateUsageReject,
		"close_after_hours": nil, "billing": nil, "erased_at": nil} {
		out.columns, row = append(out.columns, pgconn.FieldDescription{Name: column}), append(row, value)
	}
	out.list = append(out.list, row)
	return out
}
