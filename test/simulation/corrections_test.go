package simulation

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// featureFixed is the feature whose usage two clients correct. Its usage always counts.
const featureFixed = "fixed"

// simChange is a row of usage_corrections.
type simChange struct {
	tenant        uuid.UUID
	target        int64
	n             int
	cause         int64
	kind          string
	before, after int64
}

// writesCorrections begins the statement that writes corrections.
const writesCorrections = "INSERT INTO usage_corrections"

// writeCorrections keeps the changes of usage.
func (tx *simTx) writeCorrections(args []any) *simRows {
	for i, tenant := range args[0].([]uuid.UUID) {
		tx.needHead(tenant, "corrected usage")
		tx.root.w.changes = append(tx.root.w.changes, simChange{tenant, args[1].([]int64)[i], int(args[2].([]int32)[i]),
			args[3].([]int64)[i],
			args[5].([]string)[i], args[6].([]int64)[i], args[7].([]int64)[i]})
	}
	return &simRows{}
}

// addChanges is the effect of COMMIT on usage_corrections, whose key is unique.
func (db *simDB) addChanges(w *writes) {
	for _, c := range w.changes {
		if slices.ContainsFunc(db.changes, func(o simChange) bool { return o.tenant == c.tenant && o.target == c.target && o.n == c.n }) {
			db.s.fail("change %d of %d exists", c.n, c.target)
		}
	}
	db.changes = append(db.changes, w.changes...)
}

// changesOf returns the changes of a target, in their order.
func (db *simDB) changesOf(tenant uuid.UUID, target int64) (list []simChange) {
	for _, c := range db.changes {
		if c.tenant == tenant && c.target == target {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b simChange) int { return a.n - b.n })
	return list
}

// targetRows answers the read of the log: the targets of a group's corrections.
func (db *simDB) targetRows(text string, args []any) *simRows {
	out := simAnswer()
	for i, tenant := range args[1].([]uuid.UUID) {
		key := simKey{tenant, args[2].([]string)[i]}
		row := db.keys[key]
		if row == nil {
			continue
		}
		retracted := strings.Contains(text, "c.kind = 'retraction'") &&
			slices.ContainsFunc(db.changesOf(tenant, row.at.Number), func(c simChange) bool { return c.kind == events.TypeRetraction })
		out.list = append(out.list, []any{tenant, key.key, row.subject, row.occurred(), row.values[colBody], retracted})
	}
	return out
}

// judgedRows answers the read of the validator: the targets of a batch's corrections, with their verdicts and last changes.
func (db *simDB) judgedRows(args []any) *simRows {
	out := simAnswer()
	for i, tenant := range args[1].([]uuid.UUID) {
		name, before, origin := args[2].([]string)[i], args[3].([]int64)[i], args[4].([]int64)[i]
		row := db.keys[simKey{tenant, events.KeyUsage(name)}]
		if row == nil {
			continue
		}
		verdict := db.keys[simKey{tenant, events.KeyValidated(row.at.Number)}]
		var usedAt *time.Time
		var body []byte
		if verdict != nil {
			at := verdict.occurred()
			usedAt, body = &at, verdict.values[colBody]
		}
		last := simChange{}
		if all := db.changesOf(tenant, row.at.Number); len(all) > 0 {
			last = all[len(all)-1]
		}
		done := before != origin && db.keys[simKey{tenant, events.KeyValidated(origin)}] != nil
		out.list = append(out.list, []any{args[0].([]int16)[i], before, tenant, name, row.at.Number, row.subject, row.key.key,
			row.occurred(), row.values[colBody],
			events.KeyValidated(row.at.Number), usedAt, body, last.n, last.kind, last.after, false, done})
	}
	return out
}

// correctionQuery executes the statements about corrections; nil for other statements.
func (tx *simTx) correctionQuery(text string, args []any) *simRows {
	var read func() *simRows
	switch {
	case strings.HasPrefix(text, writesCorrections):
		return tx.writeCorrections(args)
	case strings.HasPrefix(text, "SELECT k.tenant_id, k.dedupe_key, l.subject"):
		read = func() *simRows { return tx.p.s.db.targetRows(text, args) }
	case strings.HasPrefix(text, "SELECT g.partition, g.before"):
		read = func() *simRows { return tx.p.s.db.judgedRows(args) }
	default:
		return nil
	}
	var out *simRows
	err := tx.do("read the targets of corrections", kindStep, nil, func() error { out = read(); return nil })
	return orFailed(out, err)
}

// correctionPlan draws the batches of two clients, which correct the usage of each other.
func correctionPlan(rng *rand.Rand, tenants []uuid.UUID, most int) (clients [][]request) {
	for c := range 2 {
		var list []request
		for n := range 2 + rng.IntN(2*most) {
			r := request{tenant: tenants[rng.IntN(2)]}
			for k := range 1 + rng.IntN(3) {
				item := usageItem{id: fmt.Sprint("f", rng.IntN(4)), feature: featureFixed, amount: 10}
				if rng.IntN(3) > 0 {
					item = usageItem{id: fmt.Sprint("c", c, "-", n, "-", k), feature: featureFixed, amount: int64(rng.IntN(30)),
						ref: item.id, kind: events.TypeCorrection}
				}
				if item.ref != "" && rng.IntN(5) == 0 {
					item.kind, item.amount = events.TypeRetraction, 0
				}
				r.items = append(r.items, item)
			}
			list = append(list, r)
		}
		clients = append(clients, list)
	}
	return clients
}

// answerCorrections compares an answer with the log.
func (m *model) answerCorrections(r request, verdicts []metering.EventVerdict) {
	for n, v := range verdicts {
		row := m.s.db.keys[simKey{r.tenant, events.KeyUsage(r.items[n].id)}]
		switch {
		case v.Status == metering.StatusRejected && (v.Code == "correction_target_unknown" || v.Code == "correction_target_retracted"):
			m.s.count("refused: " + v.Code)
			if row != nil {
				m.s.fail("%v was refused (%s), and the log has it at %s", r.items[n], v.Code, row.at)
			}
		case row == nil || v.Position == nil || *v.Position != row.at || v.Status == metering.StatusRejected ||
			v.Status == metering.StatusConflict:
			m.s.fail("%v was answered %+v, and the log has it not there", r.items[n], v)
		}
	}
}

// correctedUsage is usage as the corrections before left it.
type correctedUsage struct {
	at        int64
	amount    int64
	retracted bool
	changes   int
}

// correctionFold is an independent fold of corrections from the log.
type correctionFold struct {
	m       *model
	usage   map[simKey]*correctedUsage
	changes []simChange
}

// recorded applies a recorded event of featureFixed, and returns what it adds; not ok if it has to be rejected.
func (f *correctionFold) recorded(row *simRow) (amount, count int64, ok bool) {
	item := itemOf(row)
	if item.ref == "" {
		f.usage[row.key] = &correctedUsage{at: row.at.Number, amount: item.amount}
		return item.amount, 1, true
	}
	return f.correction(row.key.tenant, row.at.Number, item)
}

// correction applies a correction or a retraction recorded at a position.
func (f *correctionFold) correction(tenant uuid.UUID, recorded int64, item usageItem) (amount, count int64, ok bool) {
	target := f.usage[simKey{tenant, events.KeyUsage(item.ref)}]
	if target == nil {
		f.m.s.fail("%d corrects %s, which is not in the log before it", recorded, item.ref)
		return 0, 0, false
	}
	if target.retracted {
		f.m.s.count("corrections behind a retraction")
		return 0, 0, false
	}
	f.m.s.count(item.kind + "s")
	target.changes++
	f.changes = append(f.changes, simChange{tenant, target.at, target.changes, recorded, item.kind, target.amount, item.amount})
	amount = item.amount - target.amount
	target.amount = item.amount
	if item.kind == events.TypeRetraction {
		target.retracted, count = true, -1
	}
	return amount, count, true
}

// corrected applies a recorded event of featureFixed.
func (m *model) corrected(fixed *correctionFold, row *simRow, terms map[string]int64, want map[aggKey]simAgg) {
	amount, count, ok := fixed.recorded(row)
	if !ok {
		terms["rejected"]++
		return
	}
	m.adds(want, row, featureFixed, amount, count)
	terms["validated"]++
}

// retried applies the retry of a rejected event of featureFixed; not ok if it is rejected again.
func (f *correctionFold) retried(row *simRow) (amount, count int64, ok bool) {
	r := row.fields()
	recorded := &f.m.s.db.rows[row.at.Partition][r.RawPosition-1]
	item := itemOf(recorded)
	if item.ref == "" {
		f.m.s.fail("%s retries usage that counts", row.at)
		return 0, 0, false
	}
	return f.correction(row.key.tenant, r.RawPosition, item)
}

// check compares the table with the fold.
func (f *correctionFold) check() {
	byKey := func(a, b simChange) int {
		return strings.Compare(fmt.Sprintf("%s/%09d/%09d", a.tenant, a.target, a.n), fmt.Sprintf("%s/%09d/%09d", b.tenant, b.target, b.n))
	}
	want, got := slices.SortedFunc(slices.Values(f.changes), byKey), slices.SortedFunc(slices.Values(f.m.s.db.changes), byKey)
	if !slices.Equal(want, got) {
		f.m.s.fail("usage_corrections is %v, not %v", got, want)
	}
}

// correctionOf returns a recorded correction or retraction as it was sent.
func correctionOf(r *simRow) usageItem {
	c, err := codec.CorrectionOf(r.payload())
	if err != nil {
		panic(err)
	}
	item := usageItem{id: c.EventID, feature: c.Feature, ref: c.CorrectionRef, kind: c.Type}
	if c.Amount != nil {
		item.amount = *c.Amount
	}
	return item
}

// isCorrection reports whether the payload of a retry is that of a correction or a retraction.
func isCorrection(payload json.RawMessage) bool {
	var c events.Correction
	if err := json.Unmarshal(payload, &c); err != nil {
		panic(errors.Join(errors.New("a retry holds no usage"), err))
	}
	return c.CorrectionRef != ""
}
