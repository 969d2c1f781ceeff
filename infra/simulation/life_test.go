package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// lifeQuery takes the statements that raise an epoch, and the one that compares records with the log.
func (tx *simTx) lifeQuery(text string, args []any) *simRows {
	s, db := tx.p.s, tx.p.s.db
	switch {
	case strings.HasPrefix(text, "SELECT FROM relay_cursors WHERE partition = ANY"):
		return orFailed(&simRows{}, tx.do("lock cursors to raise epochs", kindStep, locksOf("cursors", args[0].([]int16)), nil))
	case strings.HasPrefix(text, "SELECT h.partition FROM relay_cursors c JOIN log_heads h"):
		out := simAnswer()
		err := tx.do("lock free heads to raise epochs", kindStep, nil, func() error {
			for _, p := range s.plan.partitions {
				locks := []rowLock{{"cursors", p}, {"heads", p}}
				if !slices.Contains(args[0].([]int16), p) && db.free(tx, locks) {
					db.take(tx, locks)
					out.list = append(out.list, []any{p})
				}
			}
			return nil
		})
		return orFailed(out, err)
	case strings.HasPrefix(text, "WITH stale AS"):
		var out *simRows
		err := tx.do("raise epochs", kindStep, nil, func() error { out = tx.raiseEpochs(text, args[0].([]int16)); return nil })
		return orFailed(out, err)
	case strings.HasPrefix(text, "SELECT pg_sleep"): // no two lives begin at one time
		return orFailed(&simRows{}, tx.do("end the epoch's second", kindStep, nil, nil))
	case strings.HasPrefix(text, "UPDATE relay_cursors c SET owner = NULL"):
		return tx.revokeLeases(args[0].([]int16), args[1].([]int32), args[2].([]int64))
	case strings.HasPrefix(text, "SELECT r.n - 1"):
		return tx.findGhosts(text, args)
	}
	return nil
}

// raiseEpochs executes the clauses that the statement's text has.
func (tx *simTx) raiseEpochs(text string, partitions []int16) *simRows {
	s, db, out := tx.p.s, tx.p.s.db, simAnswer()
	has := func(part string) bool { return strings.Contains(text, part) }
	for _, p := range partitions {
		h := db.heads[p]
		if h.life == s.life && has("IS DISTINCT FROM (s.system_identifier, s.timeline, s.started_at)") {
			continue
		}
		next := simEpoch{h.epoch + 1, h.position + 1}
		if has("clock_timestamp()") { // no two lives begin at one time
			next.epoch = max(next.epoch, int32(100*s.life))
		}
		out.list = append(out.list, []any{p, next.epoch, next.from, eventlog.ReasonPromoted})
		tx.later(func(*simTx) {
			s.count("epoch raised")
			db.epochs[p] = append(db.epochs[p], next)
			db.heads[p].epoch, db.heads[p].life = next.epoch, s.life
		})
	}
	return out
}

// revokeLeases ends the leases of partitions whose epoch is raised.
func (tx *simTx) revokeLeases(partitions []int16, epochs []int32, from []int64) *simRows {
	for i, p := range partitions {
		tx.later(func(*simTx) {
			c := &tx.p.s.db.cursors[p]
			c.position = min(c.position, from[i]-1)
			c.owner, c.until, c.fence = "", time.Time{}, max(c.fence+1, int64(epochs[i])<<24)
		})
	}
	return &simRows{tag: "UPDATE " + strconv.Itoa(len(partitions))}
}

// findGhosts makes the comparisons that the statement's text has.
func (tx *simTx) findGhosts(text string, args []any) *simRows {
	out := simAnswer()
	for i, p := range args[0].([]int16) {
		n := args[1].([]int64)[i]
		rows := tx.p.s.db.rows[p]
		missing := n > int64(len(rows))
		if missing || strings.Contains(text, "l.event_id IS DISTINCT FROM r.event_id") && rows[n-1].id() != fmt.Sprint(args[2].([]uuid.UUID)[i]) {
			out.list = append(out.list, []any{int64(i)})
		}
	}
	return out
}
