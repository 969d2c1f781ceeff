package simulation

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// The statements of the writers and the consumers, as the simulated database executes
// them. If a wrong comparison in a statement would cost money, the simulation reads the
// comparison from the text, so that a statement without it behaves as on PostgreSQL.

// simRows are the answer to a query.
type simRows struct {
	list [][]any
	raw  [][][]byte
	at   int
	err  error
	tag  string

	columns []pgconn.FieldDescription // of rows that are read by their names
}

func simAnswer(list ...[]any) *simRows {
	return &simRows{list: list, tag: "SELECT " + strconv.Itoa(len(list))}
}

// named names the columns of rows that are read by their names.
func (r *simRows) named(columns ...string) *simRows {
	for _, column := range columns {
		r.columns = append(r.columns, pgconn.FieldDescription{Name: column})
	}
	return r
}

func (r *simRows) Close()                                       {}
func (r *simRows) Err() error                                   { return r.err }
func (r *simRows) CommandTag() pgconn.CommandTag                { return pgconn.NewCommandTag(r.tag) }
func (r *simRows) FieldDescriptions() []pgconn.FieldDescription { return r.columns }
func (r *simRows) Conn() *pgx.Conn                              { return nil }
func (r *simRows) Values() ([]any, error)                       { return r.list[r.at-1], nil }
func (r *simRows) RawValues() [][]byte {
	if r.raw == nil {
		return nil
	}
	return r.raw[r.at-1]
}

func (r *simRows) TypeMap() *pgtype.Map { return nil }

func (r *simRows) Next() bool {
	r.at++
	return r.err == nil && r.at <= max(len(r.list), len(r.raw))
}

func (r *simRows) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	if r.at == 0 && !r.Next() { // as a Row
		return pgx.ErrNoRows
	}
	if row, whole := dest[0].(pgx.RowScanner); whole {
		return row.ScanRow(r)
	}
	for i, d := range dest {
		v := reflect.ValueOf(d).Elem()
		if value := r.list[r.at-1][i]; value == nil {
			v.SetZero()
		} else {
			v.Set(reflect.ValueOf(value).Convert(v.Type()))
		}
	}
	return nil
}

// do is do for a statement of this transaction.
func (tx *simTx) do(what string, k operationKind, locks []rowLock, effect func() error) error {
	if err := tx.usable(); err != nil {
		return err
	}
	return tx.p.do(&operation{what: what, kind: k, tx: tx.root, locks: locks, effect: func(opOutcome) error {
		if err := tx.usable(); err != nil {
			return err
		}
		if effect == nil {
			return nil
		}
		return effect()
	}})
}

func locksOf(table string, partitions []int16) (list []rowLock) {
	for _, p := range partitions {
		list = append(list, rowLock{table, p})
	}
	return list
}

// query runs a statement of a transaction. A statement that waits for no lock and changes
// only the transaction's own data is no step of its own.
func (tx *simTx) query(sql string, args []any) *simRows {
	db, none := tx.p.s.db, &simRows{}
	var out *simRows
	fill := func(f func() *simRows) func() error { return func() error { out = f(); return out.err } }
	var err error
	switch text := strings.TrimSpace(sql); {
	case strings.HasPrefix(text, "SET LOCAL"), strings.HasPrefix(text, "SELECT set_config("):
		return none
	case text == "begin":
		tx.p.s.mu.Lock()
		tx.begin()
		tx.p.s.mu.Unlock()
		return none
	case text == "rollback":
		tx.p.s.mu.Lock()
		tx.end()
		tx.p.s.mu.Unlock()
		return none
	case text == "ROLLBACK TO SAVEPOINT append":
		tx.root.w, tx.root.aborted = tx.root.saved.clone(), false
		return none
	case text == "RELEASE SAVEPOINT append":
		return none
	case strings.HasPrefix(text, movesHeads):
		return tx.updateHeads(args)
	case strings.HasPrefix(text, writesCorrections), strings.HasPrefix(text, "SELECT k.tenant_id, k.dedupe_key, l.subject"),
		strings.HasPrefix(text, "SELECT g.partition, g.before"):
		return tx.correctionQuery(text, args)
	case strings.HasPrefix(text, addsAccounts), strings.HasPrefix(text, writesReservations), readsAccounts(text):
		return tx.limitQuery(text, args)
	case strings.HasPrefix(text, "SELECT partition, position, epoch, topic_positions") && strings.HasSuffix(text, "SKIP LOCKED"):
		err = tx.do(fmt.Sprint("lock free heads ", args[0]), kindStep, nil, fill(func() *simRows {
			free := slices.DeleteFunc(slices.Clone(args[0].([]int16)), func(p int16) bool {
				return !db.free(tx, locksOf("heads", []int16{p}))
			})
			if len(free) < len(args[0].([]int16)) {
				tx.p.s.count("head left to others")
			}
			db.take(tx, locksOf("heads", free))
			return tx.headRows(free)
		}))
	case strings.HasPrefix(text, "SELECT partition, position, epoch, topic_positions"),
		strings.HasPrefix(text, "SELECT FROM log_heads WHERE partition = ANY"):
		partitions := args[0].([]int16)
		err = tx.do(fmt.Sprint("lock heads ", partitions), kindStep, locksOf("heads", partitions), fill(func() *simRows {
			return tx.headRows(partitions)
		}))
	case strings.HasPrefix(text, "SELECT k.tenant_id, k.dedupe_key"):
		err = tx.do("probe", kindStep, nil, fill(func() *simRows { return tx.probe(text, args) }))
	case readsStretch(text), readsStretches(text):
		err = tx.do("read the log", kindStep, nil, fill(func() *simRows { return db.read(text, args) }))
	default:
		return tx.consumerQuery(text, args)
	}
	if err != nil {
		return &simRows{err: err}
	}
	return out
}

func (tx *simTx) headRows(partitions []int16) *simRows {
	out := simAnswer()
	for _, p := range partitions {
		h := tx.head(p)
		out.list = append(out.list, []any{p, h.position, h.epoch, slices.Clone(h.topics[:]), h.recorded, h.life == tx.p.s.life})
	}
	return out
}

// movesHeads begins the statement that moves the heads.
const movesHeads = "UPDATE log_heads h SET position"

func (tx *simTx) updateHeads(args []any) *simRows {
	if err := tx.usable(); err != nil {
		return &simRows{err: err}
	}
	for i, p := range args[0].([]int16) {
		was := tx.head(p)
		h := simHead{position: args[1].([]int64)[i], epoch: was.epoch, life: was.life, recorded: args[3].([]time.Time)[i],
			counts: was.counts}
		for t, text := range strings.Split(strings.Trim(args[2].([]string)[i], "{}"), ",") {
			h.topics[t], _ = strconv.ParseInt(text, 10, 64)
		}
		for j, n := range []*int64{&h.counts.Accepted, &h.counts.Validated, &h.counts.Rejected, &h.counts.Parked} {
			*n += args[4+j].([]int64)[i]
		}
		tx.root.w.heads[p] = h
	}
	return &simRows{tag: "UPDATE " + strconv.Itoa(len(args[0].([]int16)))}
}

// probe makes the comparisons that the statement's text has.
func (tx *simTx) probe(text string, args []any) *simRows {
	out, db := simAnswer(), tx.p.s.db
	for i, p := range args[0].([]int16) {
		k := simKey{args[1].([]uuid.UUID)[i], args[2].([]string)[i]}
		for _, rows := range [][]simRow{db.rows[p], tx.root.w.rows} {
			for j := range rows {
				r := &rows[j]
				if r.at.Partition == p && r.key.key == k.key &&
					(r.key.tenant == k.tenant || !strings.Contains(text, "l.tenant_id = k.tenant_id")) {
					out.list = append(out.list, []any{k.tenant, k.key, p, r.at.Number, uuid.UUID(r.values[colEventID]), r.hash()})
				}
			}
		}
	}
	return out
}

// readsStretch and readsStretches know the reads of the log, of one stretch and of several.
func readsStretch(text string) bool {
	return strings.HasPrefix(text, "SELECT l.position, l.previous_position") && strings.HasSuffix(text, "ORDER BY l.position LIMIT $5")
}

func readsStretches(text string) bool {
	return strings.HasPrefix(text, "SELECT s.partition, l.* FROM unnest(")
}

func (db *simDB) read(text string, args []any) *simRows {
	out := &simRows{}
	if readsStretch(text) {
		topic := events.Topic(args[4].(int16))
		out.raw = db.stretch(args[1].(int16), args[2].(int64), args[3].(int64), args[5].(int), func(r *simRow) bool {
			return topic == 0 || r.topic == topic
		})
		return out
	}
	wanted := func(*simRow) bool { return true }
	if strings.Contains(text, "l.topic = $5") {
		topic := events.Topic(args[5].(int16))
		wanted = func(r *simRow) bool { return r.topic == topic }
	}
	for i, p := range args[1].([]int16) {
		for _, v := range db.stretch(p, args[2].([]int64)[i], args[3].([]int64)[i], args[4].(int), wanted) {
			out.raw = append(out.raw, append([][]byte{{byte(p >> 8), byte(p)}}, v...))
		}
	}
	return out
}

// Query, Exec, QueryRow and SendBatch make it a pgx.Tx and a writer's session.
func (tx *simTx) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r := tx.query(sql, args)
	return r, r.err
}

func (tx *simTx) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	return tx.query(sql, args)
}

func (tx *simTx) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r := tx.query(sql, args)
	return r.CommandTag(), r.err
}

func (tx *simTx) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	return &simBatch{tx: tx, queue: b.QueuedQueries}
}

type simBatch struct {
	tx    *simTx
	queue []*pgx.QueuedQuery
	err   error
}

func (b *simBatch) next() *simRows {
	if b.err != nil {
		return &simRows{err: b.err}
	}
	q := b.queue[0]
	b.queue = b.queue[1:]
	r := b.tx.query(q.SQL, q.Arguments)
	b.err = r.err
	return r
}

func (b *simBatch) Exec() (pgconn.CommandTag, error) { r := b.next(); return r.CommandTag(), r.err }
func (b *simBatch) Query() (pgx.Rows, error)         { r := b.next(); return r, r.err }
func (b *simBatch) Tx() pgx.Tx                       { return b.tx }
func (b *simBatch) QueryRow() pgx.Row                { return b.next() }
func (b *simBatch) Close() error {
	for len(b.queue) > 0 && b.err == nil {
		b.next()
	}
	return b.err
}

// Begin sets a savepoint.
func (tx *simTx) Begin(context.Context) (pgx.Tx, error) {
	if err := tx.usable(); err != nil {
		return nil, err
	}
	tx.p.s.count("savepoint")
	saved := tx.root.w.clone()
	return &simTx{p: tx.p, root: tx.root, open: true, saved: &saved}, nil
}

// Commit commits, or releases a savepoint.
func (tx *simTx) Commit(context.Context) error {
	if tx != tx.root {
		tx.open = false
		return tx.usable()
	}
	if err := tx.usable(); err != nil && err != errAborted {
		return err
	}
	return tx.p.do(&operation{what: "commit", kind: kindCommit, tx: tx, effect: tx.commit})
}

// Rollback goes back to the savepoint, or ends the transaction.
func (tx *simTx) Rollback(context.Context) error {
	if !tx.open {
		return pgx.ErrTxClosed
	}
	tx.p.s.mu.Lock()
	defer tx.p.s.mu.Unlock()
	if tx == tx.root {
		tx.end()
		return nil
	}
	if tx.open = false; tx.root.gone == nil {
		tx.root.w, tx.root.aborted = tx.saved.clone(), false
	}
	return nil
}

func (tx *simTx) Conn() *pgx.Conn                { return nil }
func (tx *simTx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }
func (tx *simTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errCut
}

func (tx *simTx) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	return 0, errCut
}

// Finish, Closed and Release make it a writer's session.
func (tx *simTx) Finish(_ context.Context, rows *server.Rows, moves []server.Move) error {
	if err := tx.usable(); err != nil {
		return err
	}
	if rows.Len() == 0 {
		return postgres.ClassifyCommit(tx.Commit(context.Background()))
	}
	err := tx.p.do(&operation{what: fmt.Sprint("append ", rows.Len(), " and commit"), kind: kindCommit, tx: tx,
		effect: func(f opOutcome) error {
			if err := tx.copyRows(rows); err != nil {
				return err
			}
			for _, m := range moves {
				switch {
				case strings.HasPrefix(m.SQL, movesHeads):
					if r := tx.updateHeads(m.Args); r.err != nil {
						return r.err
					}
				case strings.HasPrefix(m.SQL, addsAccounts), strings.HasPrefix(m.SQL, writesReservations):
					tx.limitQuery(m.SQL, m.Args)
				case strings.HasPrefix(m.SQL, writesCorrections):
					tx.writeCorrections(m.Args)
				default:
					tx.moveCheckpoints(m.SQL, m.Args)
				}
			}
			return tx.commit(f)
		}})
	return postgres.ClassifyCommit(err)
}

func (tx *simTx) Closed() bool { return tx.gone != nil }

func (tx *simTx) Release() {
	tx.p.s.mu.Lock()
	defer tx.p.s.mu.Unlock()
	if tx.open {
		tx.end()
	}
}
