package simulation

import (
	"strings"
	"time"
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
				if has("USING (partition, fence)") && c.fence != args[1].([]int64)[i] || has("c.position = s.becomes") && c.position != args[2].([]int64)[i] {
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
		fenced, inPlace := has("c.fence = s.fence") || has("c.fence = mine.fence"), has("c.position = s.was") || has("c.position = mine.was")
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
