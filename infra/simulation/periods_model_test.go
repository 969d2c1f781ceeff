package simulation

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/usage"
)

// periodModel repeats the definitions of cut, cause, late and frozen on the events of a tenant's log, with code of its own.
type periodModel struct {
	recorded map[int64]*modelUsage
	ids      map[string]*modelUsage
	retries  map[uuid.UUID]int64 // positions by the events' ids
	rejected map[int64]bool      // recorded events that were rejected
	changes  []modelPeriod
	policies map[int64]string
	verdicts []*modelVerdict // one for each recorded event that counts
}

type modelUsage struct {
	EventID, Feature, Timestamp, Type, CorrectionRef string
	Amount                                           int64
	Admitted                                         *struct{ By string }

	position, present int64 // present is the amount after the corrections so far
}

type modelPeriod struct {
	position int64
	change   events.Subject
	events.CloseRequested
}

type modelVerdict struct {
	events.Validated
	key      usage.Key
	position int64 // of the verdict, or of its last retry
	cause    int64
	folded   bool
	deltas   [2]usage.Delta // by the versions of the fold
}

func newPeriodModel() *periodModel {
	return &periodModel{map[int64]*modelUsage{}, map[string]*modelUsage{}, map[uuid.UUID]int64{}, map[int64]bool{}, nil, map[int64]string{}, nil}
}

// last returns the last change of a period before a position.
func (m *periodModel) last(period string, position int64) (last modelPeriod) {
	for _, c := range m.changes {
		if c.PeriodKey == period && c.position < position {
			last = c
		}
	}
	return last
}

// closed returns the snapshot that an event at a position is late for, and whether its figures are frozen there.
func (m *periodModel) closed(period string, position int64) (snapshot int, frozen bool) {
	if last := m.last(period, position); last.change != events.PeriodReopened {
		return last.Snapshot, last.change == events.PeriodClosed
	}
	return 0, false
}

// see reads the next event of the log. It returns the fault of a wrong verdict.
func (m *periodModel) see(e *events.Envelope) (wrong error) {
	at := e.Position.Number
	read := func(into any) {
		if err := json.Unmarshal(e.Payload, into); err != nil {
			wrong = err
		}
	}
	switch e.Subject {
	case events.UsageRecorded, events.UsageAdmitted, events.UsageCorrected, events.UsageRetracted:
		u := &modelUsage{position: at}
		read(u)
		m.recorded[at], m.ids[u.EventID] = u, u
	case events.UsageRetried:
		m.retries[e.EventID] = at
	case events.TenantChanged:
		var policy struct{ LateUsage string }
		read(&policy)
		m.policies[at] = policy.LateUsage
	case events.PeriodCloseRequested, events.PeriodClosed, events.PeriodReopened:
		c := modelPeriod{position: at, change: e.Subject}
		read(&c.CloseRequested)
		m.changes = append(m.changes, c)
	case events.UsageRejected:
		var r events.Rejected
		read(&r)
		m.rejected[r.RawPosition] = true
		u := m.recorded[r.RawPosition]
		snapshot, _ := m.closed(u.Timestamp[:7], u.position)
		if r.Code == "period_closed" && (m.retries[e.CausationID] > 0 || u.Type != events.TypeUsage || snapshot == 0 || m.policy(u.position) == events.LateUsageAdjust) {
			return fmt.Errorf("%s is refused as late", u.EventID)
		}
	case events.UsageValidated:
		v := &modelVerdict{position: at}
		read(&v.Validated)
		m.verdicts = append(m.verdicts, v)
		return m.judge(v, m.retries[e.CausationID])
	case events.Reaggregated:
		var again events.Reaggregate
		read(&again)
		v := m.verdict(again.Validated.RawPosition)
		if v.position = at; m.frozenAt(v.PeriodKey, at) {
			v.cause = at
		}
	}
	return wrong
}

func (m *periodModel) frozenAt(period string, position int64) bool {
	_, frozen := m.closed(period, position)
	return frozen
}

func (m *periodModel) verdict(raw int64) *modelVerdict {
	for _, v := range m.verdicts {
		if v.RawPosition == raw {
			return v
		}
	}
	return nil
}

func (m *periodModel) policy(position int64) (policy string) {
	var last int64
	for at, p := range m.policies {
		if at < position && at > last {
			last, policy = at, p
		}
	}
	return policy
}

// judge finds the cause of a verdict, and compares the verdict with the definitions. retry is 0 without a retry.
func (m *periodModel) judge(v *modelVerdict, retry int64) error {
	u := m.recorded[v.RawPosition]
	if v.cause = u.position; retry > 0 && (m.rejected[u.position] || m.frozenAt(v.PeriodKey, retry)) {
		v.cause = retry
	}
	amount, count, month := u.Amount, int64(1), u.Timestamp[:7]
	if target := m.ids[u.CorrectionRef]; u.CorrectionRef != "" {
		amount, count, month, target.present = u.Amount-target.present, 0, target.Timestamp[:7], u.Amount
		if u.Type == events.TypeRetraction {
			count = -1
		}
	} else {
		u.present = u.Amount
	}
	snapshot, _ := m.closed(month, v.cause)
	late := events.Late{Snapshot: snapshot, Kind: map[string]string{events.TypeCorrection: events.LateCorrection, events.TypeRetraction: events.LateRetraction}[u.Type]}
	switch {
	case late.Kind != "":
	case u.Admitted != nil && u.Admitted.By == events.ByCommit:
		late.Kind = events.LateCommit
	case retry > 0:
		late.Kind = events.LateRetry
	default:
		late.Kind = events.LateUsage
	}
	switch {
	case v.Amount != amount || v.Count != count || v.PeriodKey != month:
		return fmt.Errorf("the verdict on %s adds %d and %d in %s instead of %d and %d in %s", u.EventID, v.Amount, v.Count, v.PeriodKey, amount, count, month)
	case (v.Late != nil) != (snapshot > 0) || v.Late != nil && *v.Late != late:
		return fmt.Errorf("the verdict on %s is late %+v; its cause %d is behind the cut of snapshot %d", u.EventID, v.Late, v.cause, snapshot)
	case snapshot > 0 && late.Kind == events.LateUsage && m.policy(v.cause) != events.LateUsageAdjust:
		return fmt.Errorf("late usage %s is accepted under the policy %s", u.EventID, m.policy(v.cause))
	}
	return nil
}

// frozen returns the figures of a period as known at a cut, by a version of the fold.
func (m *periodModel) frozen(period string, cut int64, version int) map[usage.Key]pipeSum {
	sums := map[usage.Key]pipeSum{}
	for _, v := range m.verdicts {
		if v.folded && v.PeriodKey == period && v.cause <= cut {
			sums[v.key] = sums[v.key].add(v.deltas[version])
		}
	}
	return sums
}

// pipeSum is a figure.
type pipeSum struct{ amount, count int64 }

func (s pipeSum) add(d usage.Delta) pipeSum { return pipeSum{s.amount + d.Amount, s.count + d.Count} }

func describeSums(sums map[usage.Key]pipeSum) string {
	var text []string
	for key, s := range sums {
		text = append(text, fmt.Sprintf("%s of %x in %s: %d in %d", key.Feature, key.SubscriptionID[:1], key.PeriodKey, s.amount, s.count))
	}
	return strings.Join(text, "; ")
}
