package simulation

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// The tables of periods and adjustments of the simulated database. All usage is of one period.

const simPeriod = "2000-01"

// simPeriodChange is a row of period_changes.
type simPeriodChange struct {
	tenant uuid.UUID
	domain.PeriodChange
}

// simAdjustment is a row of adjustments.
type simAdjustment struct {
	id, tenant    uuid.UUID
	snapshot      int
	feature, kind string
	amount, count int64
	position      int64
	recorded      int64
	state         string
	decided       int64
}

// simSnapshot is a row of period_snapshots, and its lines.
type simSnapshot struct {
	tenant      uuid.UUID
	snapshot    int
	cut, closed int64
	hash        string
	despite     []string
	lines       map[string]simAgg // by feature
}

// latePolicies are those of the plan's tenants: the first one adjusts late usage, all others refuse it.
func (s *sim) latePolicies(tenant uuid.UUID) []domain.LatePolicy {
	if tenant == s.plan.tenants[0] {
		return []domain.LatePolicy{{LateUsage: events.LateUsageAdjust}}
	}
	return nil
}

// periodHistory is the committed history of a tenant's periods.
func (db *simDB) periodHistory(tenant uuid.UUID) domain.PeriodHistory {
	h := domain.PeriodHistory{Policies: db.s.latePolicies(tenant)}
	for _, c := range db.periods {
		if c.tenant == tenant {
			h.Changes = append(h.Changes, c.PeriodChange)
		}
	}
	return h
}

// closing reports whether a close has not frozen its figures yet.
func (db *simDB) closing() (of []domain.Closing) {
	for _, tenant := range db.s.plan.tenants {
		h := db.periodHistory(tenant)
		if last := h.Last(simPeriod); last.State() == domain.StateClosing {
			of = append(of, domain.Closing{TenantID: tenant, PeriodKey: simPeriod, Snapshot: last.Snapshot})
		}
	}
	return of
}

// periodQuery executes the statements about periods and adjustments; nil for other statements.
func (tx *simTx) periodQuery(text string, args []any) *simRows {
	db := tx.p.s.db
	read := func(what string, locks []rowLock, effect func() *simRows) *simRows {
		var out *simRows
		err := tx.do(what, kindStep, locks, func() error { out = effect(); return nil })
		return orFailed(out, err)
	}
	switch {
	case strings.HasPrefix(text, addsAdjustments), strings.HasPrefix(text, decidesAdjustments):
		return tx.writeAdjustments(text, args)
	case strings.HasPrefix(text, "SET TRANSACTION"):
		return &simRows{}
	case strings.HasPrefix(text, "SELECT tenant_id, position, period_key, snapshot, change FROM period_changes"):
		return read("read the changes of periods", nil, func() *simRows { return db.changesOfPeriods(args[0].([]uuid.UUID)) })
	case strings.Contains(text, "FROM offboardings WHERE tenant_id = $1"):
		return &simRows{} // no tenant is offboarded
	case strings.HasPrefix(text, "INSERT INTO period_changes"):
		c := simPeriodChange{args[0].(uuid.UUID), domain.PeriodChange{Position: args[1].(int64), PeriodKey: args[2].(string), Snapshot: args[3].(int), Change: args[4].(string)}}
		tx.needHead(c.tenant, "a period")
		return tx.later(func(*simTx) { db.changePeriod(c) })
	case strings.HasPrefix(text, "INSERT INTO sagas"):
		return simAnswer([]any{args[0], args[1], args[2], args[3], args[4], domain.SagaRunning, 0, time.Now(), (*time.Time)(nil), []string(nil), args[6], "", 0, "", "", "", time.Now(), (*time.Time)(nil)})
	case strings.HasPrefix(text, "SELECT FROM consumer_checkpoints WHERE consumer = $1 AND partition = $2"):
		return read("lock figures", locksOf(args[0].(string), []int16{args[1].(int16)}), func() *simRows { return &simRows{} })
	case strings.HasPrefix(text, "SELECT s.head, s.decided"):
		return read("read how far figures are", nil, func() *simRows {
			at := db.passed(args[0].(int16))
			folded := db.ckpt[ckptKey{events.GroupAggregator, args[0].(int16)}]
			return simAnswer([]any{&at, &at, &at, &folded, &at, new(time.Time)})
		})
	case strings.HasPrefix(text, "SELECT EXISTS (SELECT FROM event_log_rows f WHERE f.subject IN"):
		return read("read what a close waits for", nil, func() *simRows {
			return db.missing(args[0].(uuid.UUID), args[2].(int64), db.ckpt[ckptKey{events.GroupAggregator, args[1].(int16)}])
		})
	case strings.HasPrefix(text, "WITH open AS MATERIALIZED"):
		return read("read the open dead letters of a close", nil, func() *simRows {
			return db.openLetters(args[0].(uuid.UUID), args[2].(int64), args[3].(int))
		})
	case strings.HasPrefix(text, "INSERT INTO period_snapshots"):
		n := &simSnapshot{tenant: args[0].(uuid.UUID), snapshot: args[2].(int), cut: args[3].(int64), closed: args[4].(int64), hash: args[8].(string), despite: args[10].([]string)}
		return tx.later(func(*simTx) { db.addSnapshot(n) })
	case strings.HasPrefix(text, "SELECT despite FROM period_snapshots"):
		return read("read what was missing at a freeze", nil, func() *simRows {
			for _, n := range db.snapshots {
				if n.tenant == args[0] && n.snapshot == args[2] {
					return simAnswer([]any{n.despite})
				}
			}
			return simAnswer()
		})
	case strings.HasPrefix(text, "INSERT INTO period_lines"):
		return tx.later(func(*simTx) { db.addLines(args) })
	case strings.HasPrefix(text, "SELECT") && strings.Contains(text, "FROM adjustments"):
		return read("read adjustments", nil, func() *simRows { return db.readAdjustments(text, args) })
	}
	return nil
}

// periodEvent returns the event of a change of a period; its events have no trace.
func (db *simDB) periodEvent(args []any) *simRows {
	for _, c := range db.periods {
		if c.tenant == args[1] && c.PeriodKey == args[2] && c.Snapshot == args[3] && c.Change == args[4] {
			return simAnswer([]any{uuid.MustParse(db.rows[args[0].(int16)][c.Position-1].id()), uuid.Nil})
		}
	}
	return simAnswer()
}

func (db *simDB) changesOfPeriods(tenants []uuid.UUID) *simRows {
	out := simAnswer()
	for _, t := range tenants {
		h := db.periodHistory(t)
		for _, c := range h.Changes {
			out.list = append(out.list, []any{t, c.Position, c.PeriodKey, c.Snapshot, c.Change})
		}
	}
	return out
}

// changePeriod is the effect of COMMIT on period_changes, whose keys are unique.
func (db *simDB) changePeriod(c simPeriodChange) {
	if slices.ContainsFunc(db.periods, func(o simPeriodChange) bool {
		return o.tenant == c.tenant && (o.Position == c.Position || o.Snapshot == c.Snapshot && o.Change == c.Change)
	}) {
		db.s.fail("the change %+v of a period exists", c)
	}
	db.s.count("periods " + c.Change)
	db.periods = append(db.periods, c)
}

func (db *simDB) addSnapshot(n *simSnapshot) {
	if slices.ContainsFunc(db.snapshots, func(o *simSnapshot) bool { return o.tenant == n.tenant && o.snapshot == n.snapshot }) {
		db.s.fail("snapshot %d of %s exists", n.snapshot, n.tenant)
	}
	db.snapshots = append(db.snapshots, n)
}

func (db *simDB) addLines(args []any) {
	for _, n := range db.snapshots {
		if n.tenant != args[0].(uuid.UUID) || n.snapshot != args[2].(int) {
			continue
		}
		n.lines = map[string]simAgg{}
		for i, feature := range args[3].([]string) {
			amount, _ := new(big.Int).SetString(args[5].([]string)[i], 10)
			n.lines[feature] = simAgg{amount: amount.Int64(), count: args[6].([]int64)[i]}
		}
	}
}

// Beginnings of the statements that write adjustments.
const (
	addsAdjustments    = "INSERT INTO adjustments"
	decidesAdjustments = "UPDATE adjustments a SET state"
)

// writeAdjustments executes the statements that the log sends with the rows of events. Their tenants' heads are locked.
func (tx *simTx) writeAdjustments(text string, args []any) *simRows {
	tenants := args[0].([]uuid.UUID)
	if strings.HasPrefix(text, addsAdjustments) {
		tenants = args[1].([]uuid.UUID)
	}
	for _, tenant := range tenants {
		tx.needHead(tenant, "an adjustment")
	}
	return tx.later(func(*simTx) {
		if strings.HasPrefix(text, addsAdjustments) {
			tx.p.s.db.addAdjustments(text, args)
		} else {
			tx.p.s.db.decideAdjustments(text, args)
		}
	})
}

// addAdjustments makes the comparisons that the statement's text has.
func (db *simDB) addAdjustments(text string, args []any) {
	for i, id := range args[0].([]uuid.UUID) {
		a := simAdjustment{id: id, tenant: args[1].([]uuid.UUID)[i], snapshot: int(args[3].([]int32)[i]), feature: args[4].([]string)[i], kind: args[6].([]string)[i],
			amount: args[7].([]pgtype.Numeric)[i].Int.Int64(), count: args[8].([]int64)[i], position: args[9].([]int64)[i], recorded: args[10].([]int64)[i], state: events.AdjustmentPending}
		same := func(o simAdjustment) bool {
			return o.tenant == a.tenant && o.snapshot == a.snapshot && o.recorded == a.recorded
		}
		if slices.ContainsFunc(db.adjustments, same) {
			if !strings.Contains(text, "ON CONFLICT (tenant_id, period_key, snapshot, recorded) DO NOTHING") {
				db.s.fail("the adjustment %+v exists", a)
			}
			db.s.count("adjusted by an earlier retry")
			continue
		}
		for _, c := range db.periods {
			if strings.Contains(text, "c.change = 'reopened'") && c.tenant == a.tenant && c.Snapshot == a.snapshot && c.Change == domain.PeriodReopened {
				a.state, a.decided = events.AdjustmentVoid, c.Position
			}
		}
		db.s.count("adjustments " + a.kind)
		db.adjustments = append(db.adjustments, a)
	}
}

// decideAdjustments makes the comparisons that the statement's text has.
func (db *simDB) decideAdjustments(text string, args []any) {
	for i, tenant := range args[0].([]uuid.UUID) {
		id, recorded, snapshot, upTo := args[4].([]uuid.UUID)[i], args[5].([]int64)[i], int(args[7].([]int32)[i]), args[10].([]int64)[i]
		feature, kind := args[8].([]string)[i], args[9].([]string)[i]
		for n := range db.adjustments {
			a := &db.adjustments[n]
			meant := a.snapshot == snapshot && a.position <= upTo && (feature == "" || feature == a.feature) && (kind == "" || kind == a.kind)
			switch {
			case id != uuid.Nil:
				meant = a.id == id
			case recorded > 0:
				meant = a.recorded == recorded
			}
			voids := recorded > 0 && strings.Contains(text, "u.recorded > 0 AND a.state <> 'VOID'") && db.keptOpen(a)
			if a.tenant == tenant && meant && (a.state == events.AdjustmentPending || voids || !strings.Contains(text, "a.state = 'PENDING'")) {
				a.state, a.decided = args[2].([]string)[i], args[1].([]int64)[i]
				db.s.count("adjustments " + a.state)
			}
		}
	}
}

// keptOpen reports whether an adjustment is not void, and its snapshot not reopened.
func (db *simDB) keptOpen(a *simAdjustment) bool {
	return a.state != events.AdjustmentVoid && !slices.ContainsFunc(db.periods, func(c simPeriodChange) bool {
		return c.tenant == a.tenant && c.Snapshot == a.snapshot && c.Change == domain.PeriodReopened
	})
}

// readAdjustments answers the reads of adjustments.
func (db *simDB) readAdjustments(text string, args []any) *simRows {
	out := simAnswer()
	var n, sum int64
	for _, a := range db.adjustments {
		switch {
		case strings.HasPrefix(text, "SELECT id, tenant_id FROM"):
			if slices.Contains(args[0].([]uuid.UUID), a.id) {
				out.list = append(out.list, []any{a.id, a.tenant})
			}
		case strings.HasPrefix(text, "SELECT id, tenant_id, period_key"):
			if a.tenant == args[0] && slices.Contains(args[1].([]uuid.UUID), a.id) {
				out.list = append(out.list, []any{a.id, a.tenant, simPeriod, a.snapshot, a.state, fmt.Sprint(a.amount)})
			}
		case strings.HasPrefix(text, "SELECT DISTINCT tenant_id"):
			if a.tenant == args[0] && a.recorded == args[1] && a.state == events.AdjustmentApproved {
				out.list = append(out.list, []any{a.tenant, simPeriod, a.snapshot})
			}
		case strings.Contains(text, "state = 'APPROVED'"):
			if a.tenant == args[0] && a.snapshot == args[2] && a.state == events.AdjustmentApproved {
				n++
			}
		case a.tenant == args[0] && a.snapshot == args[1] && a.state == events.AdjustmentPending && a.position <= args[3].(int64) && (args[4] == "" || args[4] == a.feature) && (args[5] == "" || args[5] == a.kind):
			n, sum = n+1, sum+a.amount
		}
	}
	switch {
	case strings.Contains(text, "state = 'APPROVED'"):
		return simAnswer([]any{n})
	case strings.HasPrefix(text, "SELECT count(*)"):
		return simAnswer([]any{n, fmt.Sprint(sum)})
	}
	return out
}
