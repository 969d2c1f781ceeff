package simulation

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

var (
	pipeTenant   = uuid.UUID{7}
	pipeMay      = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	pipeVersions = projections.Versions[usage.Fold]{{Name: usage.V1, Fold: usage.FoldV1}, {Name: "usage_aggregates/v2", Fold: foldTwice}}
)

// foldTwice counts the amount of a verdict twice, late ones too, unless it is folded again.
func foldTwice(e *events.Envelope) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e)
	if e.Subject == events.UsageValidated {
		delta.Amount *= 2
	}
	return key, delta, err
}

// periodPipe is the service for one tenant without a database: a log, the service's decisions in every order, and the tables that they depend on.
type periodPipe struct {
	rng   *rand.Rand
	trace []string
	seen  map[string]int // counts of occurrences, over all seeds
	wrong error          // the first difference from the model

	log         []events.Envelope
	keys        map[string]int64
	granted     domain.History
	grants      []string // the snapshots of granted, in JSON
	periods     domain.PeriodHistory
	corrections map[int64][]*events.AppliedCorrection
	adjustments []pipeAdjustment
	snapshots   []domain.Snapshot
	frozen      []string // the figures of the snapshots when they were saved
	sagas       []*domain.Saga
	parked      map[int64]uuid.UUID // dead letters by the positions of the events that failed
	letters     []uuid.UUID
	failed      map[uuid.UUID]*domain.DeadLetter // the letters, as their last failure left them
	resolved    map[uuid.UUID]bool

	validated, aggregated int64
	rows                  map[usage.Key]pipeSum
	version, flips        int
	rebuilding            bool
	reconciled            int             // the last flip whose differences are proposed
	flipped               uuid.UUID       // the rebuild of the last flip
	ran                   map[string]bool // keys of reconciliations

	validator *validate.Validator
	retries   *commands.DeadLetters
	closes    *commands.Periods
	late      *commands.LateReconciles
	model     *periodModel
	ids       uint64
}

// pipeAdjustment is a row of adjustments.
type pipeAdjustment struct {
	events.Adjustment
	id       uuid.UUID
	position int64
	state    string
}

func newPeriodPipe(seed uint64, seen map[string]int) *periodPipe {
	p := &periodPipe{rng: rand.New(rand.NewPCG(seed, 7)), seen: seen, keys: map[string]int64{}, corrections: map[int64][]*events.AppliedCorrection{},
		parked: map[int64]uuid.UUID{}, failed: map[uuid.UUID]*domain.DeadLetter{}, resolved: map[uuid.UUID]bool{}, rows: map[usage.Key]pipeSum{}, ran: map[string]bool{}, model: newPeriodModel()}
	now := func() time.Time { return pipeMay.AddDate(0, 2, 0) }
	p.validator = &validate.Validator{NewID: p.newID, Histories: &validate.Histories{}}
	p.retries = &commands.DeadLetters{Store: pipeStore{p}, Now: now, NewID: p.newID}
	p.closes = &commands.Periods{Store: pipeStore{p}, Now: now, NewID: p.newID, Logger: slog.New(slog.DiscardHandler)}
	p.late = &commands.LateReconciles{Periods: p.closes, Logger: p.closes.Logger}
	p.grant("calls")
	return p
}

func (p *periodPipe) newID() (id uuid.UUID) {
	p.ids++
	binary.BigEndian.PutUint64(id[8:], p.ids)
	return id
}

func (p *periodPipe) note(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf("%3d ", len(p.log))+fmt.Sprintf(format, args...))
}

// did counts an occurrence, by the first word of the note.
func (p *periodPipe) did(what string) { p.seen[what]++ }

func (p *periodPipe) fail(format string, args ...any) {
	if p.wrong == nil {
		p.wrong = fmt.Errorf(format, args...)
	}
}

// grant replaces the tenant's subscription: the first half of May belongs to one, the second half to another.
func (p *periodPipe) grant(features ...string) {
	for half := range 2 {
		s := &domain.Subscription{ID: uuid.UUID{byte(half + 1)}, Status: domain.SubscriptionActive}
		for _, f := range features {
			s.Entitlements = append(s.Entitlements, domain.Grant{Entitlement: domain.Entitlement{Feature: f, ResetPeriod: domain.ResetMonthly}, Type: domain.FeatureQuota})
		}
		text, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		from := pipeMay.AddDate(-1, 0, 0)
		if half == 1 {
			from = pipeMay.AddDate(0, 0, 15)
		}
		p.granted = append(p.granted, domain.HistoryEntry{FromPosition: int64(len(p.log)), EffectiveFrom: from, Subscription: s})
		p.grants = append(p.grants, string(text))
	}
}

// append appends events with their effects on tables, as the log does: known keys have none.
func (p *periodPipe) append(list ...events.Pending) (positions []events.Position) {
	for i := range list {
		pending := &list[i]
		at, known := p.keys[pending.DedupeKey]
		if !known {
			at = int64(len(p.log) + 1)
			p.keys[pending.DedupeKey] = at
			p.log = append(p.log, events.Envelope{EventID: pending.EventID, Subject: pending.Subject, TenantID: pipeTenant, CausationID: pending.CausationID, DedupeKey: pending.DedupeKey,
				OccurredAt: pending.OccurredAt, Payload: codec.PayloadOf(pending), Position: events.Position{Partition: events.PartitionOf(pipeTenant), Number: at}})
			p.effects(pending, at)
			if err := p.model.see(&p.log[at-1]); err != nil {
				p.fail("%w", err)
			}
		}
		positions = append(positions, events.Position{Partition: events.PartitionOf(pipeTenant), Number: at})
	}
	return positions
}

// effects writes the rows of an event. An adjustment of a snapshot that is reopened is void; a recorded event adjusts a snapshot once.
func (p *periodPipe) effects(e *events.Pending, at int64) {
	if c := e.Correction; c != nil {
		p.corrections[c.TargetPosition] = append(p.corrections[c.TargetPosition], c)
	}
	if a := e.Adjustment; a != nil {
		row := pipeAdjustment{*a, e.EventID, at, events.AdjustmentPending}
		if row.Recorded == 0 {
			row.Recorded = at
		}
		known := false
		for _, o := range p.adjustments {
			known = known || o.PeriodKey == row.PeriodKey && o.Snapshot == row.Snapshot && o.Recorded == row.Recorded
		}
		if p.reopened(&row.Adjustment) {
			row.state = events.AdjustmentVoid
		}
		if !known {
			p.did(row.Kind + " " + row.state)
			p.adjustments = append(p.adjustments, row)
		}
	}
	for i := range p.adjustments {
		a, d := &p.adjustments[i], e.Decided
		if d == nil || a.state != events.AdjustmentPending && (d.Recorded == 0 || a.state == events.AdjustmentVoid || p.reopened(&a.Adjustment)) {
			continue
		}
		named := d.Recorded > 0 && a.Recorded == d.Recorded || d.Scope != nil && d.Scope.PeriodKey == a.PeriodKey && d.Snapshot == a.Snapshot && a.position <= d.Scope.UpTo.Number
		for _, id := range d.IDs {
			named = named || id == a.id
		}
		if named {
			p.did("decided " + d.State)
			a.state = d.State
		}
	}
}

// reopened reports whether the snapshot of an adjustment was reopened.
func (p *periodPipe) reopened(a *events.Adjustment) bool {
	return slices.ContainsFunc(p.periods.Changes, func(c domain.PeriodChange) bool {
		return c.PeriodKey == a.PeriodKey && c.Snapshot == a.Snapshot && c.Change == domain.PeriodReopened
	})
}

// park records that an event could not be published, or folded.
func (p *periodPipe) park(e *events.Envelope, subject events.Subject, stage string) {
	id := p.newID()
	key, letter := events.KeyEvent(id), id
	again, attempt := projections.RetryOf(e)
	if again != uuid.Nil {
		key, letter = events.KeyFailedAgain(again, attempt), again
	} else {
		p.letters = append(p.letters, id)
	}
	p.failed[letter] = &domain.DeadLetter{ID: letter, TenantID: pipeTenant, Stage: stage, Source: e.Position.Number, SourceSubject: e.Subject, RawPosition: readRaw(e)}
	f := projections.FollowUp(e, id, subject, events.Failed{SourcePosition: e.Position.Number, Stage: stage, DeadLetterID: letter, Attempt: attempt}, "test")
	f.DedupeKey = key
	p.parked[e.Position.Number] = letter
	p.note("parked %d", e.Position.Number)
	p.append(f)
}

// validate judges the next events. A few are parked before, which the validator then passes. The first results may be lost by a crash.
func (p *periodPipe) validate() {
	var batch []events.Envelope
	for n := 1 + p.rng.IntN(4); n > 0 && int(p.validated) < len(p.log); n-- {
		e := p.log[p.validated]
		p.validated++
		switch e.Subject {
		case events.UsageRecorded, events.UsageAdmitted, events.UsageCorrected, events.UsageRetracted, events.UsageRetried:
			if p.rng.IntN(8) == 0 {
				p.park(&e, events.PublishFailed, events.StagePublishing)
			} else {
				batch = append(batch, e)
			}
		default:
			n++
		}
	}
	if len(batch) == 0 {
		return
	}
	if p.rng.IntN(6) == 0 {
		p.did("crash of the validator")
		_, _ = p.validator.Apply(context.Background(), pipeReads{p: p}, projections.Generation{}, batch)
	}
	result, err := p.validator.Apply(context.Background(), pipeReads{p: p}, projections.Generation{}, batch)
	if err != nil || len(result.Failed) > 0 {
		p.fail("the validator: %v %+v", err, result.Failed)
		return
	}
	for i := range result.FollowUps {
		f := &result.FollowUps[i]
		if p.note("%s %s", f.DedupeKey, f.Payload); f.Subject == events.UsageRejected && strings.Contains(string(f.Payload), "period_closed") {
			p.did("refused as late")
		}
		if f.Subject == events.UsageRejected && p.keys[f.DedupeKey] == 0 {
			p.reject(f)
		}
	}
	p.append(result.FollowUps...)
}

// reject keeps the dead letter of a rejection, unless a retry of it is rejected again.
func (p *periodPipe) reject(f *events.Pending) {
	var r events.Rejected
	if err := json.Unmarshal(f.Payload, &r); err != nil {
		p.fail("%w", err)
	}
	if r.DeadLetterID == f.EventID {
		p.letters = append(p.letters, f.EventID)
		p.failed[f.EventID] = &domain.DeadLetter{ID: f.EventID, TenantID: pipeTenant, Stage: events.StageValidation, Source: r.RawPosition,
			SourceSubject: p.log[r.RawPosition-1].Subject, RawPosition: r.RawPosition}
	}
}

// aggregate folds the next verdicts. A few cannot be folded.
func (p *periodPipe) aggregate() {
	for n := 1 + p.rng.IntN(4); n > 0 && int(p.aggregated) < len(p.log); {
		e := &p.log[p.aggregated]
		p.aggregated++
		if e.Subject != events.UsageValidated && e.Subject != events.Reaggregated {
			continue
		}
		n--
		if p.rng.IntN(8) == 0 {
			p.park(e, events.AggregationFailed, events.StageAggregation)
			continue
		}
		read, _ := codec.VerdictOf(e)
		v := p.model.verdict(read.RawPosition)
		if v.folded {
			p.fail("%s is folded twice", read.EventID)
		}
		for i, version := range pipeVersions {
			var err error
			if v.key, v.deltas[i], err = version.Fold(e); err != nil {
				p.fail("fold: %w", err)
			}
		}
		v.folded = true
		p.note("folded %d", e.Position.Number)
		p.rows[v.key] = p.rows[v.key].add(v.deltas[p.version])
		if read.Late != nil && p.version > 0 {
			p.reconciled = -1 // the adjustment is what the first fold counts
		}
		if letter, _ := projections.RetryOf(e); letter != uuid.Nil {
			p.resolved[letter] = true
			p.append(projections.Closing(e, p.newID(), events.Closed{DeadLetterID: letter, Status: events.StatusResolved}, "test"))
		}
	}
}

// counts reports whether an adjustment is in the rows: its verdict is folded, and not parked.
func (p *periodPipe) counts(a *pipeAdjustment) bool {
	letter, parked := p.parked[a.position]
	return a.Kind == events.RebuiltFigure || a.position <= p.aggregated && (!parked || p.resolved[letter])
}

// pipeReads answers the reads of the validator.
type pipeReads struct {
	pgx.Tx
	p *periodPipe
}

func (r pipeReads) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "tenant_policies") {
		return r.histories(), nil
	}
	return r.targets(args), nil
}

func (r pipeReads) histories() *simRows {
	out := simAnswer()
	for i, g := range r.p.granted {
		out.list = append(out.list, []any{pipeTenant, g.FromPosition, "subscription", &g.EffectiveFrom, &r.p.grants[i], "", 0, nil, int64(0)})
	}
	for _, c := range r.p.periods.Changes {
		out.list = append(out.list, []any{pipeTenant, c.Position, c.Change, nil, nil, c.PeriodKey, c.Snapshot, nil, int64(0)})
	}
	for _, c := range r.p.periods.Policies {
		out.list = append(out.list, []any{pipeTenant, c.FromPosition, "policy", nil, nil, c.LateUsage, 0, nil, int64(0)})
	}
	return out
}

func (r pipeReads) targets(args []any) *simRows {
	out, p := simAnswer(), r.p
	for i, name := range args[2].([]string) {
		before, origin := args[3].([]int64)[i], args[4].([]int64)[i]
		at := p.keys[events.KeyUsage(name)]
		if at == 0 {
			continue
		}
		recorded := &p.log[at-1]
		var usedAt *time.Time
		var body []byte
		parked := false
		if v := p.keys[events.KeyValidated(at)]; v > 0 {
			usedAt, body = &p.log[v-1].OccurredAt, p.log[v-1].Payload
			if letter, failed := p.parked[v]; failed {
				end := p.keys[events.KeyClosed(letter)]
				parked = p.keys[events.KeyEvent(letter)] < before && (end == 0 || end >= before || !p.resolved[letter])
			}
		}
		last := &events.AppliedCorrection{CorrectedUsage: &events.CorrectedUsage{}}
		if all := p.corrections[at]; len(all) > 0 {
			last = all[len(all)-1]
		}
		done := before != origin && p.keys[events.KeyValidated(origin)] > 0
		out.list = append(out.list, []any{recorded.Position.Partition, before, pipeTenant, name, at, recorded.Subject, recorded.DedupeKey, recorded.OccurredAt, []byte(recorded.Payload),
			events.KeyValidated(at), usedAt, body, last.Number, last.Kind, last.After, parked, done})
	}
	return out
}
