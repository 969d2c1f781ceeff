package simulation

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// periodFold folds closed periods from the log, in its order, with definitions of its own.
type periodFold struct {
	m           *model
	tenant      uuid.UUID
	rows        []simRow
	requested   int // the present snapshot; 0: the period is open
	frozenNow   bool
	number      int
	cuts        map[int]int64
	closed      map[int]int64
	frozen      map[int]map[string]simAgg // by snapshot and feature, as the events have them
	adjustments map[uuid.UUID]*simAdjustment
	refused     map[int64]bool            // recorded events that were rejected
	retries     map[string]simCause       // by the ids of the retries
	causes      map[int64]simCause        // of the verdicts on recorded events
	folds       map[int]map[string]simAgg // the expected lines of each snapshot
	parked      map[int64]bool            // verdicts that could not be folded
	letters     map[uuid.UUID][]int64     // failed events
}

type simCause struct {
	at      int64
	refused bool
	retry   bool
}

// checkPeriods compares the snapshots and the adjustments of each tenant with the fold, and the live figures with both.
func (m *model) checkPeriods() {
	for _, tenant := range m.s.plan.tenants {
		f := &periodFold{m: m, tenant: tenant, rows: m.s.db.rows[events.PartitionOf(tenant)], cuts: map[int]int64{}, closed: map[int]int64{}, frozen: map[int]map[string]simAgg{},
			adjustments: map[uuid.UUID]*simAdjustment{}, refused: map[int64]bool{}, retries: map[string]simCause{}, causes: map[int64]simCause{}, folds: map[int]map[string]simAgg{},
			parked: map[int64]bool{}, letters: map[uuid.UUID][]int64{}}
		f.findFailures()
		for i := range f.rows {
			if f.rows[i].key.tenant == tenant {
				f.add(&f.rows[i])
			}
		}
		f.check()
	}
}

// refuses reports whether the policy of a tenant refuses late usage.
func (m *model) refuses(tenant uuid.UUID) bool { return len(m.s.latePolicies(tenant)) == 0 }

// rejectsLate reports whether recorded usage is refused, because it is behind the cut of its closed period.
func (m *model) rejectsLate(row *simRow) (late bool) {
	if !m.refuses(row.key.tenant) || len(m.s.db.periods) == 0 {
		return false
	}
	for i := range m.s.db.rows[row.at.Partition][:row.at.Number-1] {
		r := &m.s.db.rows[row.at.Partition][i]
		if r.key.tenant == row.key.tenant && (r.subject == events.PeriodCloseRequested || r.subject == events.PeriodReopened) {
			late = r.subject == events.PeriodCloseRequested
		}
	}
	return late
}

// findFailures notes the verdicts that were never folded, whenever that was reported.
func (f *periodFold) findFailures() {
	for at, late := range f.m.s.db.withheld {
		if at.Partition == events.PartitionOf(f.tenant) && !late {
			f.parked[at.Number] = true
		}
	}
	for i := range f.rows {
		if r := &f.rows[i]; r.subject == events.AggregationFailed && actors[binary.BigEndian.Uint32(r.values[colOrigin])-1].ID == events.GroupAggregator {
			f.parked[r.fields().SourcePosition] = true
		}
	}
}

func (f *periodFold) add(r *simRow) {
	switch r.subject {
	case events.PeriodCloseRequested:
		f.number++
		f.requested, f.frozenNow = f.number, false
		f.cuts[f.number], f.frozen[f.number], f.folds[f.number] = r.at.Number, map[string]simAgg{}, map[string]simAgg{}
	case events.PeriodFrozen:
		var c events.Frozen
		f.read(r, &c)
		for _, l := range c.Lines {
			var amount int64
			_, _ = fmt.Sscan(l.Amount, &amount)
			f.frozen[c.Snapshot][l.Feature] = simAgg{amount: amount, count: l.EventCount}
		}
	case events.PeriodClosed:
		f.closed[f.requested], f.frozenNow = r.at.Number, true
		f.freeze(f.requested, r.at.Number)
	case events.PeriodReopened:
		f.decide(r, events.AdjustmentVoid, func(a *simAdjustment) bool { return a.snapshot == f.requested })
		f.requested, f.frozenNow = 0, false
	case events.AdjustmentDecided:
		f.choose(r)
	case events.UsageRejected:
		f.refused[r.fields().RawPosition] = true
	case events.UsageRetried:
		f.retries[r.id()] = simCause{r.at.Number, f.refused[r.fields().RawPosition], true}
	case events.PublishFailed, events.AggregationFailed:
		f.letters[r.letter()] = append(f.letters[r.letter()], r.fields().SourcePosition)
	case events.UsageValidated, events.Reaggregated:
		f.verdict(r)
	}
}

func (f *periodFold) read(r *simRow, into any) {
	if err := json.Unmarshal(r.payload(), into); err != nil {
		f.m.s.fail("%s cannot be read: %v", r.at, err)
	}
}

// freeze sums up the verdicts before a position whose causes are not behind the cut of a snapshot.
func (f *periodFold) freeze(n int, before int64) {
	for i := range f.rows {
		r := &f.rows[i]
		if r.key.tenant != f.tenant || r.topic != events.TopicUsageValidated || r.at.Number > before || f.parked[r.at.Number] {
			continue
		}
		v := r.verdict()
		if cause := f.causes[r.at.Number]; cause.at <= f.cuts[n] {
			was := f.folds[n][v.Feature]
			f.folds[n][v.Feature] = simAgg{amount: was.amount + v.Amount, count: was.count + v.Count}
		}
	}
}

// verdict finds the cause of a verdict, or of the retried fold of one, and the adjustment that it is.
func (f *periodFold) verdict(r *simRow) {
	v := r.verdict()
	cause := simCause{at: v.RawPosition}
	if r.subject == events.Reaggregated {
		cause = f.causes[f.m.s.db.keys[simKey{f.tenant, events.KeyValidated(v.RawPosition)}].at.Number]
		if f.frozenAt(r.at.Number) {
			cause.at = r.at.Number
		}
	} else if retry, ok := f.retries[uuid.UUID(r.values[colCausation]).String()]; ok {
		cause.retry = true
		if retry.refused || f.frozenAt(retry.at) {
			cause.at = retry.at
		}
	}
	f.causes[r.at.Number] = cause
	n, kind := f.snapshotAt(cause.at), f.kindOf(r, &v, cause.retry)
	if r.subject == events.UsageValidated {
		if is := v.Late; (is == nil) != (n == 0) || is != nil && (is.Snapshot != n || is.Kind != kind) {
			f.m.s.fail("%s is late for %+v, its cause at %d says %d, %s", r.at, is, cause.at, n, kind)
		}
		if kind == events.LateUsage && n > 0 && f.m.refuses(f.tenant) {
			f.m.s.fail("%s accepts late usage against the policy", r.at)
		}
	} else if n, kind = f.snapshotOfFreeze(r.at.Number), events.LateRetry; n == 0 || v.Late != nil && v.Late.Snapshot == n {
		return
	}
	if n == 0 {
		return
	}
	for _, a := range f.adjustments {
		if a.snapshot == n && a.recorded == v.RawPosition {
			return
		}
	}
	a := &simAdjustment{id: uuid.UUID(r.values[colEventID]), tenant: f.tenant, snapshot: n, feature: v.Feature, kind: kind, amount: v.Amount, count: v.Count,
		position: r.at.Number, recorded: v.RawPosition, state: events.AdjustmentPending}
	if at := f.reopenedBefore(n, r.at.Number); at > 0 {
		a.state, a.decided = events.AdjustmentVoid, at
	}
	f.adjustments[a.id] = a
}

// changeBefore returns the last change of the period before a position.
func (f *periodFold) changeBefore(position int64) (subject events.Subject, snapshot int) {
	for i := range f.rows[:max(0, position-1)] {
		r := &f.rows[i]
		if r.key.tenant != f.tenant {
			continue
		}
		switch r.subject {
		case events.PeriodCloseRequested:
			subject, snapshot = r.subject, snapshot+1
		case events.PeriodClosed, events.PeriodReopened:
			subject = r.subject
		}
	}
	return subject, snapshot
}

func (f *periodFold) snapshotAt(position int64) int {
	if subject, n := f.changeBefore(position); subject != events.PeriodReopened {
		return n
	}
	return 0
}

func (f *periodFold) snapshotOfFreeze(position int64) int {
	if subject, n := f.changeBefore(position); subject == events.PeriodClosed {
		return n
	}
	return 0
}

func (f *periodFold) frozenAt(position int64) bool { return f.snapshotOfFreeze(position) > 0 }

func (f *periodFold) reopenedBefore(n int, position int64) int64 {
	number := 0
	for i := range f.rows[:position-1] {
		r := &f.rows[i]
		if r.key.tenant == f.tenant && r.subject == events.PeriodCloseRequested {
			number++
		}
		if r.key.tenant == f.tenant && r.subject == events.PeriodReopened && number == n {
			return r.at.Number
		}
	}
	return 0
}

func (f *periodFold) kindOf(r *simRow, v *events.Validated, retried bool) string {
	recorded := &f.rows[v.RawPosition-1]
	switch recorded.subject {
	case events.UsageCorrected:
		return events.LateCorrection
	case events.UsageRetracted:
		return events.LateRetraction
	case events.UsageAdmitted:
		var u events.Admitted
		f.read(recorded, &u)
		if u.Admitted.By == events.ByCommit {
			return events.LateCommit
		}
	}
	if retried {
		return events.LateRetry
	}
	return events.LateUsage
}

func (f *periodFold) decide(r *simRow, state string, meant func(*simAdjustment) bool) (n int64, sum int64) {
	for _, a := range f.adjustments {
		if a.state == events.AdjustmentPending && meant(a) {
			a.state, a.decided = state, r.at.Number
			n, sum = n+1, sum+a.amount
		}
	}
	return n, sum
}

func (f *periodFold) choose(r *simRow) {
	var c events.DecidedAdjustments
	f.read(r, &c)
	n, sum := f.decide(r, c.Decision, func(a *simAdjustment) bool {
		if c.Scope == nil {
			return slices.Contains(c.IDs, a.id)
		}
		return a.snapshot == f.requested && a.position <= c.Scope.UpTo.Number && c.Scope.Feature == "" && c.Scope.Kind == ""
	})
	if n != c.Count || fmt.Sprint(sum) != c.Amount || n == 0 {
		f.m.s.fail("%s decides %d adjustments of %s, and %d of %d were pending", r.at, c.Count, c.Amount, n, sum)
	}
}

// check compares the tables with the fold.
func (f *periodFold) check() {
	s, db := f.m.s, f.m.s.db
	got := map[uuid.UUID]simAdjustment{}
	for _, a := range db.adjustments {
		if a.tenant == f.tenant {
			got[a.id] = a
		}
	}
	want := map[uuid.UUID]simAdjustment{}
	for id, a := range f.adjustments {
		want[id] = *a
	}
	if !maps.Equal(got, want) {
		s.fail("the adjustments of %s are %+v, not %+v", f.tenant, got, want)
	}
	empty := func(_ string, a simAgg) bool { return a == simAgg{} }
	for n := range f.closed {
		maps.DeleteFunc(f.frozen[n], empty)
		maps.DeleteFunc(f.folds[n], empty)
		if !maps.Equal(f.frozen[n], f.folds[n]) {
			s.fail("snapshot %d of %s is %v, the verdicts up to its cut are %v", n, f.tenant, f.frozen[n], f.folds[n])
		}
		at := slices.IndexFunc(db.snapshots, func(o *simSnapshot) bool { return o.tenant == f.tenant && o.snapshot == n })
		if at < 0 || db.snapshots[at].cut != f.cuts[n] || db.snapshots[at].closed != f.closed[n] {
			s.fail("period_snapshots has no snapshot %d of %s with the cut %d", n, f.tenant, f.cuts[n])
		}
	}
	if f.requested > 0 && f.frozenNow {
		f.reconcile()
	}
}

// reconcile compares the live figures of a closed period with the frozen ones and the adjustments that count.
func (f *periodFold) reconcile() {
	db, want := f.m.s.db, maps.Clone(f.frozen[f.requested])
	counted := map[int64]bool{} // recorded events with a fold behind the cut
	for i := range f.rows {
		r := &f.rows[i]
		if r.key.tenant == f.tenant && r.topic == events.TopicUsageValidated && !f.parked[r.at.Number] && (r.at.Number > f.closed[f.requested] || f.causes[r.at.Number].at > f.cuts[f.requested]) {
			counted[r.verdict().RawPosition] = true
		}
	}
	for _, a := range f.adjustments {
		if a.snapshot == f.requested && a.state != events.AdjustmentVoid && counted[a.recorded] {
			was := want[a.feature]
			want[a.feature] = simAgg{amount: was.amount + a.amount, count: was.count + a.count}
		}
	}
	rows := map[string]simAgg{}
	for k, a := range db.aggs {
		if k.generation == db.serving && k.tenant == f.tenant {
			rows[k.feature] = simAgg{amount: a.amount, count: a.count}
		}
	}
	empty := func(_ string, a simAgg) bool { return a == simAgg{} }
	maps.DeleteFunc(rows, empty)
	maps.DeleteFunc(want, empty)
	if f.m.s.count("closed periods reconciled"); !maps.Equal(rows, want) {
		f.m.s.fail("the figures of %s are %v, snapshot %d and its adjustments are %v", f.tenant, rows, f.requested, want)
	}
}
