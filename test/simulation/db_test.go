package simulation

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// The simulated database and its transactions: locks are held until the end, uncommitted
// changes are invisible to others, keys are unique.

// Columns of a row of the log, in the order of copyRows.
const (
	colPosition = iota
	colPrevious
	colRecorded
	colOccurred
	colEventID
	colTenant
	colCorrelation
	colCausation
	colEpoch
	colOrigin
	colPartition
	colTopic
	colSubject
	colKey
	colHash
	colBody
	colReplay
)

// simKey is the unique key of an event in the log.
type simKey struct {
	tenant uuid.UUID
	key    string
}

// simRow is a row of the log as COPY brought it.
type simRow struct {
	values   [][]byte
	at       events.Position
	previous int64
	topic    events.Topic
	subject  events.Subject
	key      simKey
}

// copyBegins is the length of the signature, the flags and the header of a binary COPY.
const copyBegins = 11 + 4 + 4

// postgresEpoch is the zero of the server's timestamps, in Unix microseconds.
const postgresEpoch = 946684800_000_000

// parseCopy decodes the binary format of COPY.
func parseCopy(rows *server.Rows) []simRow {
	stream, _ := io.ReadAll(rows)
	stream = stream[copyBegins:]
	var list []simRow
	for {
		n := int16(binary.BigEndian.Uint16(stream))
		stream = stream[2:]
		if n < 0 {
			return list
		}
		r := simRow{values: make([][]byte, n)}
		for i := range r.values {
			size := int32(binary.BigEndian.Uint32(stream))
			if stream = stream[4:]; size >= 0 {
				r.values[i], stream = stream[:size:size], stream[size:]
			}
		}
		number := func(i int) int64 {
			return int64(binary.BigEndian.Uint64(append(make([]byte, 8-len(r.values[i]), 8), r.values[i]...)))
		}
		r.at = events.Position{Partition: int16(number(colPartition)), Number: number(colPosition)}
		r.previous, r.topic, r.subject = number(colPrevious), events.Topic(number(colTopic)), events.Subject(number(colSubject))
		r.key = simKey{uuid.UUID(r.values[colTenant]), string(r.values[colKey])}
		list = append(list, r)
	}
}

func (r *simRow) payload() []byte {
	at := time.UnixMicro(int64(binary.BigEndian.Uint64(r.values[colOccurred])) + postgresEpoch).UTC()
	return codec.WholePayload(r.subject, r.key.key, at, r.values[colBody])
}

// hash returns the same as the database's payload_hash.
func (r *simRow) hash() []byte {
	if r.values[colHash] != nil || r.subject != events.UsageRecorded {
		return r.values[colHash]
	}
	sum := sha256.Sum256(r.payload())
	return append([]byte{1}, sum[:]...)
}

type simHead struct {
	position int64
	epoch    int32
	life     int // of the server, in which the epoch began
	topics   [events.TopicCount - 1]int64
	recorded time.Time
	counts   events.Counts
}

type simCursor struct {
	owner           string
	fence, position int64
	until           time.Time
}

type ckptKey struct {
	consumer  string
	partition int16
}

type aggKey struct {
	generation      int
	tenant          uuid.UUID
	feature, period string
}

type simAgg struct{ amount, count, applied int64 }

// writes are the uncommitted changes of a transaction.
type writes struct {
	rows     []simRow
	heads    map[int16]simHead
	ckpt     map[ckptKey]int64
	aggs     map[aggKey]simAgg
	accounts map[domain.AccountKey]simAccount // what is added
	reserved map[domain.ReservationKey]events.ReservationState
	changes  []simChange
	withheld map[events.Position]bool // whether its consumer had read it
	more     []func(*simTx)           // changes that few transactions make
}

func (w *writes) clone() writes {
	return writes{slices.Clip(w.rows), maps.Clone(w.heads), maps.Clone(w.ckpt), maps.Clone(w.aggs), maps.Clone(w.accounts),
		maps.Clone(w.reserved), slices.Clip(w.changes), maps.Clone(w.withheld), slices.Clip(w.more)}
}

type rowLock struct {
	table     string
	partition int16
}

type simDB struct {
	simTables
	s     *sim
	locks map[rowLock]*simTx
}

func newSimDB(s *sim) *simDB {
	return &simDB{s: s, simTables: newSimTables(), locks: map[rowLock]*simTx{}}
}

func (db *simDB) free(tx *simTx, locks []rowLock) bool {
	for _, l := range locks {
		if holder := db.locks[l]; holder != nil && (tx == nil || holder != tx.root) {
			return false
		}
	}
	return true
}

func (db *simDB) take(tx *simTx, locks []rowLock) {
	if tx == nil || tx.root.gone != nil || !tx.root.open {
		return
	}
	for _, l := range locks {
		db.locks[l] = tx.root
	}
}

// simTx is a transaction or, with a saved state, a savepoint in one.
type simTx struct {
	p       *proc
	life    int // of the server that it was begun in
	root    *simTx
	open    bool
	gone    error // the connection was lost
	aborted bool  // a statement failed: the transaction can only roll back
	w       writes
	saved   *writes // of SAVEPOINT, or of this savepoint
}

func newSimTx(p *proc) *simTx {
	tx := &simTx{p: p, life: p.s.life, w: writes{heads: map[int16]simHead{}, ckpt: map[ckptKey]int64{}, aggs: map[aggKey]simAgg{},
		accounts: map[domain.AccountKey]simAccount{}, reserved: map[domain.ReservationKey]events.ReservationState{},
		withheld: map[events.Position]bool{}}}
	tx.root = tx
	return tx
}

// begin is under sim.mu, as lose and end are.
func (tx *simTx) begin() {
	if tx.gone == nil && !tx.open {
		tx.open = true
		tx.p.open = append(tx.p.open, tx)
	}
}

// lose rolls back the transaction: the server sees that the connection is lost.
func (tx *simTx) lose() {
	if tx == nil {
		return
	}
	tx.root.gone = errCut
	tx.root.end()
}

func (tx *simTx) end() {
	tx.open = false
	tx.p.open = slices.DeleteFunc(tx.p.open, func(o *simTx) bool { return o == tx })
	maps.DeleteFunc(tx.p.s.db.locks, func(_ rowLock, o *simTx) bool { return o == tx })
}

// commit is the effect of COMMIT.
func (tx *simTx) commit(f opOutcome) error {
	db := tx.p.s.db
	switch {
	case tx.gone != nil:
		return tx.gone
	case f == answeredLater:
		ghost := *tx
		ghost.root, ghost.p = &ghost, &proc{s: tx.p.s, name: "ghost"}
		for l, holder := range db.locks {
			if holder == tx {
				db.locks[l] = &ghost
			}
		}
		tx.p.s.later("end of a commit without an answer", time.Duration(tx.p.s.rng.IntN(6000))*time.Millisecond, func() {
			if tx.p.s.rng.IntN(2) == 0 && ghost.life == tx.p.s.life {
				tx.p.s.count("late commit")
				db.apply(&ghost)
			}
			ghost.end()
		})
		return errCut
	case f == unanswered && tx.p.s.rng.IntN(2) == 0:
		tx.p.s.count("commit lost")
		tx.end()
		return errCut
	case tx.aborted:
		tx.end()
		return errAborted
	}
	db.apply(tx)
	tx.end()
	return nil
}

// apply makes a transaction's writes visible to all.
func (db *simDB) apply(tx *simTx) {
	for i := range tx.w.rows {
		r := &tx.w.rows[i]
		p := r.at.Partition
		if db.locks[rowLock{"heads", p}] != tx {
			db.s.fail("%s was appended without its head's lock", r.at)
		}
		if int64(len(db.rows[p]))+1 != r.at.Number {
			db.s.fail("%s was appended behind %d events", r.at, len(db.rows[p]))
		}
		if r.previous != db.heads[p].topics[r.topic-1] {
			db.s.fail("%s names %d as the one before it on %s, which is %d", r.at, r.previous, r.topic.Name(),
				db.heads[p].topics[r.topic-1])
		}
		db.heads[p].topics[r.topic-1] = r.at.Number
		db.rows[p] = append(db.rows[p], *r)
		db.keys[r.key] = r
	}
	for p, h := range tx.w.heads {
		if h.position != int64(len(db.rows[p])) || h.topics != db.heads[p].topics {
			db.s.fail("the head of partition %d says %d, %v; the log says %d, %v", p, h.position, h.topics, len(db.rows[p]),
				db.heads[p].topics)
		}
		db.heads[p] = h
	}
	for _, r := range tx.w.rows {
		if _, ok := tx.w.heads[r.at.Partition]; !ok {
			db.s.fail("%s was appended and its head stayed", r.at)
		}
	}
	db.s.checkFold(tx)
	db.checkKeys(tx)
	for k, n := range tx.w.ckpt {
		if n < db.ckpt[k] {
			db.s.fail("the checkpoint of %s in %d went back from %d to %d", k.consumer, k.partition, db.ckpt[k], n)
		}
		db.ckpt[k] = n
	}
	for k, a := range tx.w.aggs {
		was := db.aggs[k]
		db.aggs[k] = simAgg{was.amount + a.amount, was.count + a.count, was.applied + a.applied}
	}
	db.addAccounts(&tx.w)
	db.addChanges(&tx.w)
	maps.Copy(db.withheld, tx.w.withheld)
	for _, change := range tx.w.more {
		change(tx)
	}
	db.sameGenerations()
}

var errAborted = &pgconn.PgError{Code: "25P02", Message: "simulated: current transaction is aborted"}

// copyRows is COPY into the log.
func (tx *simTx) copyRows(rows *server.Rows) error {
	if err := tx.usable(); err != nil {
		return err
	}
	for _, r := range parseCopy(rows) {
		_, taken := tx.p.s.db.keys[r.key]
		taken = taken || slices.ContainsFunc(tx.root.w.rows, func(o simRow) bool { return o.key == r.key })
		if taken {
			tx.p.s.count("unique violation")
			tx.root.aborted = true
			return &pgconn.PgError{Code: "23505", Message: "simulated: the key exists: " + r.key.key}
		}
		tx.root.w.rows = append(tx.root.w.rows, r)
	}
	return nil
}

func (tx *simTx) usable() error {
	switch {
	case tx.p.dead.Load():
		return errDead
	case tx.root.gone != nil:
		return tx.root.gone
	case !tx.root.open:
		return fmt.Errorf("simulated: the transaction is over")
	case tx.root.aborted:
		return errAborted
	}
	return nil
}

// head is a head as the transaction sees it.
func (tx *simTx) head(p int16) simHead {
	if h, ok := tx.root.w.heads[p]; ok {
		return h
	}
	return tx.p.s.db.heads[p]
}

func (tx *simTx) addUsage(k aggKey, amount string, count, applied int64) {
	n, _ := new(big.Int).SetString(amount, 10)
	was := tx.root.w.aggs[k]
	tx.root.w.aggs[k] = simAgg{was.amount + n.Int64(), was.count + count, was.applied + applied}
}

// stretch returns the rows that a read finds, with the values of readColumns.
func (db *simDB) stretch(p int16, after, upTo int64, limit int, wanted func(*simRow) bool) [][][]byte {
	var list [][][]byte
	for i := after; i < min(upTo, int64(len(db.rows[p]))) && len(list) < limit; i++ {
		r := &db.rows[p][i]
		if !wanted(r) {
			continue
		}
		v := append(slices.Clone(r.values[:colPartition]), r.values[colSubject], r.values[colKey], r.values[colBody],
			bytes.Clone(r.values[colReplay]))
		late, withheld := db.withheld[r.at]
		v = append(v, boolean(withheld), boolean(late))
		list = append(list, v)
	}
	return list
}

func boolean(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}
