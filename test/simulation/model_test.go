package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections/usage"
)

// Features, by the outcome of their usage.
const (
	featureCounts  = "calls"
	featureLate    = "late"   // not granted from lateFrom on
	featurePoison  = "poison" // the fold fails
	featureBoom    = "boom"   // the fold panics
	featureRefused = "refuse" // the database refuses the sum
	featureHuge    = "huge"   // the broker refuses the record
	featureNone    = "none"   // not in the plan: refused at the door

	lateFrom = 8 // position
)

// usageItem is a usage event as a client sends it.
type usageItem struct {
	id, feature string
	amount      int64
	ref, kind   string // of a correction or a retraction
}

type request struct {
	tenant uuid.UUID
	items  []usageItem
}

// plan holds the requests of a seed's clients. It does not depend on the faults.
type plan struct {
	tenants    []uuid.UUID // the first two live in one partition
	partitions []int16
	clients    [][]request // the last one's are messages on usage.commands
}

func newPlan(rng *rand.Rand, most int) plan {
	var p plan
	for i := 0; len(p.tenants) < 3; i++ {
		id := uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i))
		at := events.PartitionOf(id)
		if at == 0 || len(p.tenants) > 0 && (at == p.partitions[1]) != (len(p.tenants) == 1) {
			continue
		}
		if p.tenants = append(p.tenants, id); len(p.tenants) != 2 {
			p.partitions = append(p.partitions, at)
		}
		if len(p.partitions) == 1 {
			p.partitions = []int16{0, at}
		}
	}
	features := []string{featureCounts, featureCounts, featureCounts, featureCounts, featureCounts, featureLate, featurePoison, featureBoom,
		featureRefused, featureHuge, featureNone}
	for range 3 {
		var list []request
		for range 1 + rng.IntN(most) {
			r := request{tenant: p.tenants[rng.IntN(len(p.tenants))]}
			for range 1 + rng.IntN(4) {
				// Ids are few, so that they meet; another payload comes now and then.
				n := rng.IntN(16)
				r.items = append(r.items, usageItem{id: fmt.Sprint("e", n), feature: features[n%len(features)],
					amount: int64(1 + n + rng.IntN(10)/9)})
			}
			list = append(list, r)
		}
		p.clients = append(p.clients, list)
	}
	return p
}

// Cached and Fresh are the histories that ingest knows: fewer than the validator.
func (s *sim) Cached(_ context.Context, tenant uuid.UUID) (domain.TenantHistory, error) {
	return s.Fresh(context.Background(), tenant)
}

// Fresh implements metering.Histories.
func (s *sim) Fresh(_ context.Context, tenant uuid.UUID) (domain.TenantHistory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return domain.TenantHistory{History: s.db.history(tenant)[:1]}, nil
}

// foldPoisoned is the fold, except for events that cannot be folded.
func foldPoisoned(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e, v)
	switch key.Feature {
	case featurePoison:
		if e.Subject != events.Reaggregated { // by then it is resolved
			err = errors.New("poison")
		}
	case featureBoom:
		panic("boom")
	}
	return key, delta, err
}

// startAPI starts an instance of the door, with the writers of the log.
func (s *sim) startAPI(i int) {
	p := s.newProc(fmt.Sprint("api-", i))
	p.start = func() { s.startAPI(i) }
	s.doors[i] = s.ingestOf(p)
}

func (s *sim) ingestOf(p *proc) *metering.IngestUsage {
	return s.ingestOn(p, s.logOf(p))
}

// ingestOn starts the writers of a log.
func (s *sim) ingestOn(p *proc, l *eventlog.Log) *metering.IngestUsage {
	l.Start()
	p.onKill = func() { s.wait.Go(l.Close) }
	return &metering.IngestUsage{Log: l, Histories: s, Now: time.Now, Window: domain.TimestampWindow{Ahead: time.Hour,
		Behind: time.Hour * 24 * 365}, NewID: func(time.Time) uuid.UUID { return p.newID() }}
}

// client sends its requests in order, each until it is answered.
func (s *sim) client(name string, requests []request, answer func(request, []metering.EventVerdict)) {
	p := s.newProc(name)
	p.run(func() {
		for _, r := range requests {
			items, err := intake.DecodeBatch(r.body())
			if err != nil {
				panic(err)
			}
			var door *metering.IngestUsage
			var life int
			send := func(opOutcome) error {
				door, life = s.doors[s.rng.IntN(len(s.doors))], s.life
				s.model.send(r)
				return nil
			}
			for {
				if p.do(&operation{what: "send", effect: send}) != nil {
					return
				}
				verdicts, err := door.Do(p.ctx, commands.Caller{TenantID: r.tenant, Residency: events.ResidencyUnspecified}, items)
				if err == nil {
					_ = p.do(&operation{what: "answered", effect: func(opOutcome) error {
						if s.life == life { // a restore may have lost the earlier life's events
							answer(r, verdicts)
						}
						return nil
					}})
					break
				}
				s.count("sent again")
				if !p.idle("pause", 200*time.Millisecond, never) {
					return
				}
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; return nil }})
	})
}

func (r *request) body() []byte {
	var parts []string
	for _, i := range r.items {
		more := fmt.Sprintf(`,"amount":%d`, i.amount)
		if i.kind == events.TypeRetraction {
			more = ""
		}
		if i.ref != "" {
			more += fmt.Sprintf(`,"type":%q,"correctionRef":%q`, i.kind, i.ref)
		}
		parts = append(parts, fmt.Sprintf(`{"eventId":%q,"feature":%q,"timestamp":"2000-01-01T00:00:00Z"%s}`, i.id, i.feature, more))
	}
	return []byte(`{"events":[` + strings.Join(parts, ",") + `]}`)
}

// model holds the required result under any faults: each (tenant, eventId) counts once,
// with the payload that was recorded first, and every answer agrees with that.
type model struct {
	s        *sim
	open     int // clients that are not done, the producer of messages among them
	sent     map[simKey]map[usageItem]bool
	tries    map[simKey]int // how often it was sent
	accepted map[simKey]usageItem
	denials  []denial       // since the last restore
	sets     []limitRequest // requests with several items
}

func (m *model) done() bool { return m.open == 0 }

func (m *model) send(r request) {
	for _, i := range r.items {
		k := simKey{r.tenant, events.KeyUsage(i.id)}
		if m.sent[k] == nil {
			m.sent[k] = map[usageItem]bool{}
		}
		m.sent[k][i] = true
		m.tries[k]++
	}
}

// answer compares an answer with the log, which must have the event already.
func (m *model) answer(r request, verdicts []metering.EventVerdict) {
	for n, v := range verdicts {
		item := r.items[n]
		k := simKey{r.tenant, events.KeyUsage(item.id)}
		row := m.s.db.keys[k]
		if item.feature == featureNone {
			if v.Status != metering.StatusRejected || row != nil {
				m.s.fail("usage of a feature that is not granted was answered %s", v.Status)
			}
			continue
		}
		if row == nil || v.Position == nil || *v.Position != row.at {
			m.s.fail("%s %v was answered %s at %v, and the log has it not there", r.tenant, item, v.Status, v.Position)
			continue
		}
		same := itemOf(row) == item
		if _, twice := m.accepted[k]; v.Status == metering.StatusAccepted && twice {
			m.s.fail("%s %v was accepted twice", r.tenant, item)
		}
		if m.tries[k] == 1 && v.Status != metering.StatusAccepted {
			m.s.fail("%s %v was sent once and answered %s", r.tenant, item, v.Status)
		}
		if v.Status == metering.StatusAccepted {
			m.accepted[k] = item
		}
		if same == (v.Status == metering.StatusConflict) || v.Status == metering.StatusRejected {
			m.s.fail("%s %v was answered %s, and the log has %v", r.tenant, item, v.Status, itemOf(row))
		}
	}
}

// check compares the final state with the required one.
func (m *model) check() {
	s, want, terms := m.s, map[aggKey]simAgg{}, map[string]int64{}
	fixed := &correctionFold{m: m, usage: map[simKey]*correctedUsage{}}
	for _, p := range s.plan.partitions {
		for i := range s.db.rows[p] {
			row := &s.db.rows[p][i]
			if !s.pipe.has(row) {
				s.fail("%s is not on its topic", row.at)
			}
			if row.subject == events.UsageRetried || row.subject == events.Reaggregated {
				m.retried(fixed, row, terms, want)
			}
			if row.subject == events.UsageAdmitted {
				m.adds(want, row, itemOf(row).feature, itemOf(row).amount, 1)
				terms["accepted"]++
				terms["validated"]++
			}
			if row.subject != events.UsageRecorded && row.subject != events.UsageCorrected && row.subject != events.UsageRetracted {
				continue
			}
			item := itemOf(row)
			if !m.sent[row.key][item] {
				s.fail("%s is in the log and was never sent", row.at)
			}
			terms["accepted"]++
			if item.feature == featureFixed {
				m.corrected(fixed, row, terms, want)
				continue
			}
			late := s.db.withheld[row.at] // after a restore its consumer may be ahead of the relay
			switch {
			case item.feature == featureLate && row.at.Number >= lateFrom:
				terms["rejected"]++
			case item.feature == featureCounts || item.feature == featureLate || item.feature == featureHuge && late:
				m.adds(want, row, item.feature, item.amount, 1)
				terms["validated"]++
			case item.feature == featureHuge:
				terms["parked"]++
			default:
				terms["parked"]++
				terms["validated"]++
			}
		}
	}
	seen := maps.Clone(s.db.aggs)
	maps.DeleteFunc(seen, func(k aggKey, _ simAgg) bool { return k.generation != s.db.serving })
	if !maps.Equal(want, seen) {
		s.fail("the aggregates are %v, not %v", seen, want)
	}
	m.checkLimits()
	fixed.check()
	var counts events.Counts
	for _, h := range s.db.heads {
		counts.Accepted, counts.Validated = counts.Accepted+h.counts.Accepted, counts.Validated+h.counts.Validated
		counts.Rejected, counts.Parked = counts.Rejected+h.counts.Rejected, counts.Parked+h.counts.Parked
	}
	if counts != (events.Counts{Accepted: terms["accepted"], Validated: terms["validated"], Rejected: terms["rejected"],
		Parked: terms["parked"]}) {
		s.fail("the heads count %+v, not %v", counts, terms)
	}
}

func (m *model) adds(want map[aggKey]simAgg, row *simRow, feature string, amount, count int64) {
	k := aggKey{m.s.db.serving, row.key.tenant, feature, "2000-01"}
	a := want[k]
	want[k] = simAgg{a.amount + amount, a.count + count, a.applied + 1}
}

// checkFold checks the events that a consumer's transaction passed: each event of its
// topic had exactly one result, in this very transaction.
func (s *sim) checkFold(tx *simTx) {
	passed := map[string]int{}
	for k, n := range tx.w.ckpt {
		for i := s.db.ckpt[k]; i < min(n, int64(len(s.db.rows[k.partition]))); i++ {
			row := &s.db.rows[k.partition][i]
			want := map[string]events.Topic{events.GroupValidator: events.TopicUsageRaw, events.GroupAggregator: events.TopicUsageValidated,
				events.GroupCommands: events.TopicCommands}[k.consumer]
			late, withheld := s.db.withheld[row.at]
			if row.topic == want && (late || !withheld) && (want != events.TopicCommands || row.subject == events.RetryRequested) {
				passed[k.consumer]++
			}
		}
	}
	verdicts, folded, retries := 0, 0, 0
	for i := range tx.w.rows {
		switch row := &tx.w.rows[i]; row.subject {
		case events.UsageValidated, events.UsageRejected:
			verdicts++
		case events.AggregationFailed:
			folded++
		case events.DeadLetterRetried, events.RetryRefused:
			retries++
		}
	}
	for k, a := range tx.w.aggs {
		if k.generation == 1 {
			folded += int(a.applied)
		}
	}
	if verdicts != passed[events.GroupValidator] || folded != passed[events.GroupAggregator] || retries != passed[events.GroupCommands] {
		s.fail("a transaction passed %v and holds %d verdicts, %d sums and letters, %d retries", passed, verdicts, folded, retries)
	}
}

// settled reports whether every recorded event has passed the whole pipeline.
func (s *sim) settled() bool {
	for _, p := range s.plan.partitions {
		h := &s.db.heads[p]
		if s.db.cursors[p].position < h.position ||
			s.db.ckpt[ckptKey{events.GroupValidator, p}] < h.topics[events.TopicUsageRaw-1] ||
			s.retrying && s.db.ckpt[ckptKey{events.GroupCommands, p}] < h.topics[events.TopicCommands-1] ||
			s.db.ckpt[ckptKey{events.GroupAggregator, p}] < h.topics[events.TopicUsageValidated-1] {
			return false
		}
	}
	return true
}
