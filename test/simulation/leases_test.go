package simulation

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// relayQuery executes the statements of the relay that change its cursors. Like
// consumerQuery it makes the comparisons that their text has.
func (db *simDB) relayQuery(text string, args []any) (effect func() *simRows, locks []rowLock) {
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has("c.partition, s.fence, s.was, s.becomes"):
		return func() *simRows { return db.moveCursors(has, args) }, locksOf("cursors", args[0].([]int16))
	case strings.HasPrefix(text, "SELECT c.partition FROM relay_cursors c"):
		return func() *simRows {
			out := simAnswer()
			for i, p := range args[0].([]int16) {
				c := db.cursors[p]
				if has("USING (partition, fence)") && c.fence != args[1].([]int64)[i] ||
					has("c.position = s.becomes") && c.position != args[2].([]int64)[i] {
					continue
				}
				out.list = append(out.list, []any{p})
			}
			return out
		}, nil
	case has("SET owner = $1"):
		return func() *simRows { return db.takeLeases(has, args) }, nil
	case has("SET lease_until = now() + $4"), has("SET owner = NULL"):
		return func() *simRows {
			out := simAnswer()
			for i, p := range args[1].([]int16) {
				c := &db.cursors[p]
				if has("c.owner = $1") && c.owner != args[0] || has("USING (partition, fence)") && c.fence != args[2].([]int64)[i] {
					continue
				}
				if has("SET owner = NULL") {
					c.owner = ""
				} else {
					c.until = time.Now().Add(args[3].(time.Duration))
				}
				out.list = append(out.list, []any{p, c.fence, c.position})
			}
			return out
		}, locksOf("cursors", args[1].([]int16))
	}
	return nil, nil
}

func (db *simDB) moveCursors(has func(string) bool, args []any) *simRows {
	out := simAnswer()
	for i, p := range args[0].([]int16) {
		fence, was, becomes := args[1].([]int64)[i], args[2].([]int64)[i], args[3].([]int64)[i]
		c := &db.cursors[p]
		fenced, inPlace := has("c.fence = s.fence") || has("c.fence = mine.fence"), has("c.position = s.was") ||
			has("c.position = mine.was")
		h := db.heads[p]
		lost := has("is_server_life") && h.life != db.s.life || has("h.position >= s.becomes") && h.position < becomes
		if lost || fenced && c.fence != fence || inPlace && c.position != was {
			db.s.count("cursor refused")
			continue
		}
		if c.fence != fence {
			db.s.fail("a relay without the lease moved the cursor of partition %d from %d to %d", p, c.position, becomes)
		}
		if becomes < c.position {
			db.s.fail("the cursor of partition %d went back from %d to %d", p, c.position, becomes)
		}
		for n := c.position + 1; n <= becomes; n++ {
			if n > int64(len(db.rows[p])) {
				db.s.fail("the cursor of partition %d passed %d, which the log has not", p, n)
				break
			}
			if !db.s.pipe.has(&db.rows[p][n-1]) {
				db.s.fail("the cursor of partition %d passed %d, which the topic has not", p, n)
			}
		}
		c.position = becomes
		out.list = append(out.list, []any{p})
	}
	return out
}

func (db *simDB) takeLeases(has func(string) bool, args []any) *simRows {
	out := simAnswer()
	for _, p := range db.s.plan.partitions {
		c := &db.cursors[p]
		loose := !has("owner IS NULL OR lease_until < now()") || c.owner == "" || c.until.Before(time.Now())
		if len(out.list) == args[1].(int) || !loose || !db.free(nil, locksOf("cursors", []int16{p})) {
			continue
		}
		if c.owner != "" {
			db.s.count("lease taken over")
		}
		if has("fence = c.fence + 1") {
			c.fence++
		}
		c.owner, c.until = args[0].(string), time.Now().Add(args[2].(time.Duration))
		out.list = append(out.list, []any{p, c.fence, c.position, db.heads[p].epoch})
	}
	return out
}

// lifeQuery takes the statements that raise an epoch.
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
