package verify

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// late is the member of a verdict that is an adjustment.
type late struct {
	Snapshot int
	Kind     string
}

const kindRebuild = "REBUILD"

// adjusted holds the adjustments of a partition, as the log has them.
type adjusted struct {
	byID       map[uuid.UUID]*adjustment
	byPosition map[int64]*adjustment
	byRecorded map[int64][]*adjustment // of a recorded event: at most one of each snapshot
	bySnapshot map[*frozenSnapshot][]*adjustment
	letters    map[uuid.UUID][]int64 // the events that failed, by dead letter
}

// adjustment is a row of the table, as the log has it.
type adjustment struct {
	adjustmentRow
	seen bool
}

type adjustmentRow struct {
	id            uuid.UUID
	of            figure
	snapshot      int
	kind, amount  string
	count         int64
	position      int64
	recorded      int64
	source        string // eventId; "" for REBUILD
	rebuild       uuid.UUID
	state, reason string
	decided       int64 // 0: not decided
}

func newAdjusted() adjusted {
	return adjusted{byID: map[uuid.UUID]*adjustment{}, byPosition: map[int64]*adjustment{}, byRecorded: map[int64][]*adjustment{},
		bySnapshot: map[*frozenSnapshot][]*adjustment{}, letters: map[uuid.UUID][]int64{}}
}

// addAdjustment derives the adjustments of verdicts, of retried folds and of proposals, and their states.
func (x *pass) addAdjustment(r *row, s *content, err error) {
	if err == nil {
		switch r.subject {
		case validated:
			x.addLate(r, s)
		case reaggregated:
			x.addAfterFreeze(r, s)
		}
	}
	x.addDecision(r, s, err)
}

// addLate compares the lateness of a verdict with the periods, and notes the adjustment of a late one.
func (x *pass) addLate(r *row, s *content) {
	p := x.periods.of[periodKey{r.tenant, s.PeriodKey}]
	if p == nil {
		x.adjustments.expect(s.Late == nil, "%s is late for %.40s, which was never closed", x.at(r.position), s.PeriodKey)
		return
	}
	cause, retry := x.causeOf(p, r, s)
	var want, is late
	if n := p.closedAt(cause); n > 0 {
		want = late{n, x.kindOf(s, retry)}
	}
	if s.Late != nil {
		is = *s.Late
	}
	x.adjustments.expect(is == want, "%s, caused at %s, says that it is late for snapshot %d (%.20s); its period says snapshot %d (%s)",
		x.at(r.position), x.at(cause), is.Snapshot, is.Kind, want.Snapshot, want.Kind)
	x.adjustments.expect(want.Kind != "LATE_USAGE" || x.periods.adjustsUsage(r.tenant, cause),
		"%s accepts late usage, which the policy of its tenant refuses at %s", x.at(r.position), x.at(cause))
	if s.Late != nil {
		x.adjust(p, r, s, is)
	}
}

// kindOf is the kind of the adjustment that a late verdict is.
func (x *pass) kindOf(s *content, retry *retryOf) string {
	switch {
	case s.Kind == kindCorrection:
		return "CORRECTION"
	case s.Kind == kindRetraction:
		return "RETRACTION"
	case x.periods.commits.has(s.RawPosition):
		return "LATE_COMMIT"
	case retry != nil:
		return "RETRY"
	}
	return "LATE_USAGE"
}

// addAfterFreeze notes the adjustment that a retried fold is: its verdict is not in the frozen figure.
func (x *pass) addAfterFreeze(r *row, s *content) {
	v := s.Validated
	if v == nil {
		return
	}
	p := x.periods.of[periodKey{r.tenant, v.PeriodKey}]
	if p == nil {
		return
	}
	n := p.frozenAt(r.position)
	if n == 0 || v.Late != nil && v.Late.Snapshot == n {
		return
	}
	for _, a := range x.periods.adjusted.byRecorded[v.RawPosition] {
		if a.snapshot == n {
			return // an earlier retry of it failed again
		}
	}
	x.adjust(p, r, v, late{n, "RETRY"})
}

// adjust notes the adjustment that the event at r is. That of a snapshot which was reopened before is void.
func (x *pass) adjust(p *period, r *row, s *content, is late) {
	a := adjustmentRow{id: r.id, of: figure{r.tenant, s.ValidatedSubscriptionID, s.Feature, s.PeriodKey}, snapshot: is.Snapshot,
		kind:   is.Kind,
		amount: s.Amount.String(), count: s.Count, position: r.position, recorded: s.RawPosition, source: s.EventID}
	x.noteAdjustment(p, a)
}

func (x *pass) noteAdjustment(p *period, a adjustmentRow) {
	all := &x.periods.adjusted
	a.state = "PENDING"
	for _, c := range p.changes {
		if c.subject == periodReopened && c.snapshot == a.snapshot && c.position < a.position {
			a.state, a.decided = "VOID", c.position
		}
	}
	kept := &adjustment{adjustmentRow: a}
	all.byID[a.id], all.byPosition[a.position] = kept, kept
	all.byRecorded[a.recorded] = append(all.byRecorded[a.recorded], kept)
	n := p.numbered(a.snapshot)
	all.bySnapshot[n] = append(all.bySnapshot[n], kept)
}

// addProposal notes the adjustment that a flip of generations leads to.
func (x *pass) addProposal(r *row, c *periodContent) {
	p := x.periods.of[periodKey{r.tenant, c.PeriodKey}]
	if p == nil || p.frozenAt(r.position) != c.Snapshot || c.Kind != kindRebuild || c.AdjustmentID != r.id {
		x.adjustments.fault("%s proposes %.20q for snapshot %d of %s, which is not frozen", x.at(r.position), c.Kind, c.Snapshot,
			periodKey{r.tenant, c.PeriodKey})
		return
	}
	x.noteAdjustment(p, adjustmentRow{id: r.id, of: figure{r.tenant, c.SubscriptionID, c.Feature, c.PeriodKey}, snapshot: c.Snapshot,
		kind:   c.Kind,
		amount: c.Amount, count: c.EventCount, position: r.position, recorded: r.position, rebuild: c.RebuildID})
}

const adjustmentsSQL = `SELECT id, tenant_id, subscription_id, feature, period_key, snapshot, kind, amount::text, event_count, position,
	recorded,
 coalesce(source_event_id, ''), coalesce(rebuild_id, '00000000-0000-0000-0000-000000000000'), state, coalesce(reason, ''), coalesce(decided,
 0) FROM adjustments` + ofPartition

// compareAdjustments compares the table with the log: each late verdict is one adjustment, and each event counts once, in the frozen figure
// or as an adjustment.
func (x *pass) compareAdjustments(ctx context.Context, tx pgx.Tx) error {
	var is adjustmentRow
	err := each(ctx, tx, adjustmentsSQL, []any{x.p}, []any{&is.id, &is.of.tenant, &is.of.subscription, &is.of.feature, &is.of.period,
		&is.snapshot, &is.kind,
		&is.amount, &is.count, &is.position, &is.recorded, &is.source, &is.rebuild, &is.state, &is.reason, &is.decided}, func() error {
		x.adjustments.n++
		a := x.periods.adjusted.byID[is.id]
		if a == nil || a.seen {
			x.adjustments.fault("adjustments has %s for %s at %s, the log has no late result there", is.id, is.of, x.at(is.position))
			return nil
		}
		a.seen = true
		x.compareState(a, &is)
		is.state, is.reason, is.decided = a.state, a.reason, a.decided
		x.adjustments.expect(is == a.adjustmentRow,
			"adjustments has %s in %d events for %s (%s, snapshot %d) at %s, the log has %s in %d events for %s (%s, snapshot %d)",
			is.amount, is.count, is.of, is.kind, is.snapshot, x.at(is.position), a.amount, a.count, a.of, a.kind, a.snapshot)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read adjustments: %w", err)
	}
	for _, a := range x.periods.adjusted.byID {
		x.adjustments.expect(a.seen, "adjustments has no row for %s, which is late for snapshot %d of %s", x.at(a.position), a.snapshot,
			a.of)
	}
	x.checkPlaces()
	return nil
}

// checkPlaces checks that each event of a closed period is in the frozen figure or an adjustment, and never both.
func (x *pass) checkPlaces() {
	for _, p := range x.periods.of {
		n := p.present()
		if n == nil {
			continue
		}
		for _, a := range x.periods.adjusted.bySnapshot[n] {
			x.adjustments.expect(a.kind == kindRebuild || !x.periods.inFrozen(a.recorded),
				"%s counts in snapshot %d of %s and in the adjustment at %s", x.at(a.recorded), n.number, a.of, x.at(a.position))
		}
	}
	for recorded, folds := range x.periods.behind {
		x.adjustments.expect(folds <= 0 || x.adjusts(recorded) != nil,
			"%s counts after the cut of its closed period, and is no adjustment of its snapshot", x.at(recorded))
	}
}

// adjusts returns the adjustment that a recorded event is of the present snapshot of its period; nil if the snapshot counts it.
func (x *pass) adjusts(recorded int64) *adjustment {
	for _, a := range x.periods.adjusted.byRecorded[recorded] {
		n := x.periods.of[periodKey{a.of.tenant, a.of.period}].present()
		if n != nil && n.number == a.snapshot && a.state != "VOID" {
			return a
		}
	}
	return nil
}

func decodePeriod(r *row) (c periodContent, err error) {
	err = json.Unmarshal(r.body, &c)
	return c, err
}
