package simulation

import (
	"context"
	"encoding/binary"
	"math/big"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections/usage"
)

// The conditions of a close, and the figures that it freezes, from the simulated tables.

// passed returns the position up to which the events of a partition are judged and folded.
func (db *simDB) passed(p int16) int64 {
	judged, folded := db.ckpt[ckptKey{events.GroupValidator, p}], db.ckpt[ckptKey{events.GroupAggregator, p}]
	at := db.heads[p].position
	for i := range db.rows[p] {
		r := &db.rows[p][i]
		switch {
		case r.topic == events.TopicUsageRaw && r.at.Number > judged:
			at = min(at, r.at.Number-1)
		case r.topic == events.TopicUsageValidated && r.at.Number > folded:
			at = min(at, db.causedBy(r)-1)
		}
	}
	return at
}

// causedBy returns the position of the event that led to a verdict, or of the retried fold itself.
func (db *simDB) causedBy(r *simRow) int64 {
	if r.subject == events.UsageValidated {
		for i := range db.rows[r.at.Partition] {
			if o := &db.rows[r.at.Partition][i]; o.id() == uuid.UUID(r.values[colCausation]).String() {
				return o.at.Number
			}
		}
	}
	return r.at.Number
}

// openLetters counts the dead letters that the close of a tenant's period waits for.
func (db *simDB) openLetters(tenant uuid.UUID, cut int64, snapshot int) *simRows {
	p := events.PartitionOf(tenant)
	failed, retried := 0, 0
	for i := range db.rows[p] {
		r := &db.rows[p][i]
		if r.key.tenant != tenant || r.subject != events.PublishFailed && r.subject != events.AggregationFailed {
			continue
		}
		f := r.fields()
		source := &db.rows[p][f.SourcePosition-1]
		by := actors[binary.BigEndian.Uint32(r.values[colOrigin])-1].ID
		if source.topic != events.TopicUsageRaw && source.topic != events.TopicUsageValidated || r.subject == events.AggregationFailed && by != events.GroupAggregator && by != events.GroupValidator {
			continue
		}
		s := source.fields()
		raw := max(s.RawPosition, s.Validated.RawPosition)
		if raw == 0 {
			raw = source.at.Number
		}
		late := lateOf(source)
		behind := raw > cut || late != nil && late.Snapshot == snapshot || source.subject == events.UsageRetried && s.Rejected && source.at.Number > cut
		if behind || db.keys[simKey{tenant, events.KeyClosed(r.letter())}] != nil {
			continue
		}
		next := events.KeyRetry(r.letter(), f.Attempt+1)
		rejected := source.topic == events.TopicUsageRaw && db.keys[simKey{tenant, events.KeyRejected(raw, f.Attempt+1)}] != nil
		switch {
		case db.keys[simKey{tenant, next}] == nil:
			failed++
		case db.keys[simKey{tenant, next + "/failed"}] == nil && !rejected:
			retried++
		}
	}
	return simAnswer([]any{failed, retried})
}

// missing answers whether the tenant has failures, a rebuild is open, and a verdict is not folded yet.
func (db *simDB) missing(tenant uuid.UUID, cut, folded int64) *simRows {
	p := events.PartitionOf(tenant)
	failures := slices.ContainsFunc(db.rows[p], func(r simRow) bool {
		return r.key.tenant == tenant && (r.subject == events.PublishFailed || r.subject == events.AggregationFailed)
	})
	open := slices.ContainsFunc(db.rebuilds, func(r domain.Rebuild) bool { return r.Open() })
	unfolded := slices.ContainsFunc(db.rows[p], func(r simRow) bool {
		return r.key.tenant == tenant && r.subject == events.UsageValidated && r.at.Number > folded && r.verdict().RawPosition <= cut
	})
	return simAnswer([]any{failures, open, unfolded})
}

// lateOf returns the lateness of a verdict, also of one that is folded again.
func lateOf(r *simRow) *events.Late {
	if r.topic != events.TopicUsageValidated {
		return nil
	}
	v := r.verdict()
	return v.Late
}

func (r *simRow) verdict() events.Validated {
	v, err := codec.VerdictOf(&events.Envelope{Subject: r.subject, DedupeKey: r.key.key, Payload: r.payload()})
	if err != nil {
		panic(err)
	}
	return v
}

// counts reports whether a verdict, or the retried fold of one, was folded, or will be.
func (db *simDB) counts(r *simRow) bool {
	if late, withheld := db.withheld[r.at]; withheld && !late {
		return false
	}
	for i := range db.rows[r.at.Partition] {
		f := &db.rows[r.at.Partition][i]
		if f.subject == events.AggregationFailed && f.fields().SourcePosition == r.at.Number && actors[binary.BigEndian.Uint32(f.values[colOrigin])-1].ID == events.GroupAggregator {
			return false
		}
	}
	return true
}

// simFigures computes figures of the simulated database.
type simFigures struct{ s *sim }

// OfLog implements store.PeriodFigures by the verdicts with a cause up to the cut.
func (f simFigures) OfLog(_ context.Context, _ pgx.Tx, c domain.Closing, h *domain.PeriodHistory) (figures domain.Figures, err error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	db, p, cut := f.s.db, events.PartitionOf(c.TenantID), h.Cut(c.PeriodKey, c.Snapshot)
	sums := map[string]simAgg{}
	for i := range db.rows[p] {
		r := &db.rows[p][i]
		if r.key.tenant != c.TenantID || r.topic != events.TopicUsageValidated || !db.counts(r) {
			continue
		}
		v := r.verdict()
		if cause := db.causeOf(r, h); cause <= cut {
			was := sums[v.Feature]
			sums[v.Feature] = simAgg{amount: was.amount + v.Amount, count: was.count + v.Count}
		}
	}
	figures = f.figures(c, sums)
	figures.LogicHash = strings.Repeat("0", 64)
	return figures, nil
}

// causeOf returns the cause of a verdict, also of one that is folded again.
func (db *simDB) causeOf(r *simRow, h *domain.PeriodHistory) int64 {
	raw := r.verdict().RawPosition
	judged := db.keys[simKey{r.key.tenant, events.KeyValidated(raw)}]
	cause, by := raw, &db.rows[r.at.Partition][db.causedBy(judged)-1]
	if by.subject == events.UsageRetried {
		cause = h.Cause(simPeriod, raw, &domain.RetriedUsage{Position: by.at.Number, Rejected: by.fields().Rejected})
	}
	if r.subject == events.Reaggregated {
		cause = h.Cause(simPeriod, cause, &domain.RetriedUsage{Position: r.at.Number})
	}
	return cause
}

// OfRows implements store.PeriodFigures by the live rows, less the late verdicts that they count.
func (f simFigures) OfRows(_ context.Context, _ pgx.Tx, c domain.Closing, _ *domain.LateVerdicts) (figures domain.Figures, err error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	db, p := f.s.db, events.PartitionOf(c.TenantID)
	sums := map[string]simAgg{}
	for k, a := range db.aggs {
		if k.generation == db.serving && k.tenant == c.TenantID {
			sums[k.feature] = simAgg{amount: a.amount, count: a.count}
		}
	}
	for _, a := range db.adjustments {
		if a.tenant != c.TenantID || a.snapshot != c.Snapshot {
			continue
		}
		for i := range db.rows[p] {
			r := &db.rows[p][i]
			if r.at.Number <= db.ckpt[ckptKey{events.GroupAggregator, p}] && r.topic == events.TopicUsageValidated && r.verdict().RawPosition == a.recorded && db.counts(r) {
				was := sums[a.feature]
				sums[a.feature] = simAgg{amount: was.amount - a.amount, count: was.count - a.count}
			}
		}
	}
	return f.figures(c, sums), nil
}

func (f simFigures) figures(c domain.Closing, sums map[string]simAgg) domain.Figures {
	figures := domain.Figures{Generation: f.s.db.serving, Logic: usage.V1}
	for feature, a := range sums {
		figures.Lines = append(figures.Lines, domain.FigureLine{Feature: feature, SubscriptionID: c.TenantID, Amount: big.NewInt(a.amount), EventCount: a.count})
	}
	slices.SortFunc(figures.Lines, func(a, b domain.FigureLine) int { return strings.Compare(a.Feature, b.Feature) })
	return figures
}
