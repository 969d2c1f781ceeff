package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// periods follows the periods of a partition that were ever closed. Their changes are read before the pass, so that the pass knows of each
// verdict which snapshots count it.
type periods struct {
	of       map[periodKey]*period
	retries  map[uuid.UUID]retryOf // by the ids of the retries
	judged   map[int64]retryOf     // recorded events whose verdict a retry caused
	refused  bits                  // recorded events that were ever rejected
	commits  bits                  // recorded commits of reservations
	policies map[uuid.UUID][]latePolicy
	frozen   bits          // recorded events that the present snapshot of their period counts
	more     map[int64]int // verdicts that count in it beside the first fold, or less because that could not be folded
	behind   map[int64]int // by recorded events: folds up to the aggregator's checkpoint that count behind the cut of the present snapshot
	adjusted adjusted
}

type periodKey struct {
	tenant uuid.UUID
	period string
}

func (k periodKey) String() string { return fmt.Sprintf("%s/%.40s", k.tenant, k.period) }

// period is a period with its changes, in the order of the log.
type period struct {
	periodKey
	changes   []periodChange
	snapshots []*frozenSnapshot
	state     periodChange // the last change that the pass has met
}

type periodChange struct {
	position int64
	subject  int16 // periodRequested, periodClosed or periodReopened
	snapshot int
}

// frozenSnapshot holds the figures of a close, as the events have them and as the pass sums them up.
type frozenSnapshot struct {
	periodKey
	number      int
	cut, closed int64 // positions; closed is 0 before the figures are frozen
	logic       string
	end         periodContent // of the event that closed the period
	parts       int           // events with lines so far
	lines       []frozenLine
	charges     []frozenCharge
	sums        map[figure]*sum // of the verdicts with a cause up to the cut
	inTable     bool
}

// retryOf is the retry of a recorded event.
type retryOf struct {
	position int64
	refused  bool // the event was rejected before
}

type latePolicy struct {
	position int64
	late     string
}

// periodContent has the members of the payloads of periods and adjustments.
type periodContent struct {
	PeriodKey              string
	Snapshot               int
	Part, Parts            int
	Lines                  json.RawMessage // an array, or the number of lines
	Cut, Logic, LogicHash  string
	FiguresHash            string
	ChargesHash            string
	Charges                json.RawMessage // an array, or the number of charges
	Despite                []string
	Voided                 int64
	AdjustmentID           uuid.UUID
	Feature                string
	SubscriptionID         uuid.UUID
	Kind, Amount           string
	EventCount, Count      int64
	RebuildID              uuid.UUID
	IDs                    []uuid.UUID
	Scope                  *decidedScope
	Decision, Reason, From string
}

type decidedScope struct{ PeriodKey, Feature, Kind, UpTo string }

type frozenLine struct {
	Feature        string
	SubscriptionID uuid.UUID
	Amount         string
	EventCount     int64
	LastEventAt    time.Time
}

const periodsSQL = `SELECT position, tenant_id, subject, body ->> 'periodKey', body ->> 'snapshot', coalesce(body ->> 'logic', '')
	FROM event_log_rows
 WHERE partition = $1 AND topic = 7 AND subject IN (70, 72, 73) ORDER BY position`

func readPeriods(ctx context.Context, tx pgx.Tx, p int16) (periods, error) {
	all := newPeriods()
	var c periodChange
	var k periodKey
	var number, logic string
	err := each(ctx, tx, periodsSQL, []any{p}, []any{&c.position, &k.tenant, &c.subject, &k.period, &number, &logic}, func() (err error) {
		if c.snapshot, err = strconv.Atoi(number); err == nil {
			all.change(k, c, logic)
		}
		return err
	})
	if err != nil {
		return all, fmt.Errorf("read the changes of periods: %w", err)
	}
	return all, nil
}

func newPeriods() periods {
	return periods{of: map[periodKey]*period{}, retries: map[uuid.UUID]retryOf{}, judged: map[int64]retryOf{},
		policies: map[uuid.UUID][]latePolicy{},
		more:     map[int64]int{}, behind: map[int64]int{}, adjusted: newAdjusted()}
}

// change adds a change of a period.
func (all *periods) change(k periodKey, c periodChange, logic string) {
	p := all.of[k]
	if p == nil {
		p = &period{periodKey: k}
		all.of[k] = p
	}
	p.changes = append(p.changes, c)
	switch n := p.numbered(c.snapshot); {
	case c.subject == periodRequested && n == nil:
		p.snapshots = append(p.snapshots, &frozenSnapshot{periodKey: k, number: c.snapshot, cut: c.position, sums: map[figure]*sum{}})
	case c.subject == periodClosed && n != nil && n.closed == 0:
		n.closed, n.logic = c.position, logic
	}
}

// numbered returns a snapshot; nil if the number is unknown.
func (p *period) numbered(n int) *frozenSnapshot {
	for _, s := range p.snapshots {
		if s.number == n {
			return s
		}
	}
	return nil
}

// last returns the last change before a position.
func (p *period) last(position int64) (last periodChange) {
	for _, c := range p.changes {
		if c.position < position {
			last = c
		}
	}
	return last
}

// closedAt returns the snapshot behind whose cut a position is; 0 if the period is open there.
func (p *period) closedAt(position int64) int {
	if c := p.last(position); c.subject != periodReopened {
		return c.snapshot
	}
	return 0
}

// frozenAt returns the snapshot whose figures are frozen at a position; 0 without one.
func (p *period) frozenAt(position int64) int {
	if c := p.last(position); c.subject == periodClosed {
		return c.snapshot
	}
	return 0
}

// present returns the snapshot of a period that is closed now; nil if it is open, or still closing.
func (p *period) present() *frozenSnapshot {
	if c := p.changes[len(p.changes)-1]; c.subject == periodClosed {
		return p.numbered(c.snapshot)
	}
	return nil
}

// cause returns the position that decides whether a verdict is late: that of the recorded event; that of its retry if it had been rejected,
// or if the period was frozen before the retry.
func (p *period) cause(recorded int64, retry *retryOf) int64 {
	if retry != nil && (retry.refused || p.frozenAt(retry.position) > 0) {
		return retry.position
	}
	return recorded
}

// causeOf returns the cause of the verdict s, or of the retried fold of it, at r, and the retry that led to the verdict, if any.
func (x *pass) causeOf(p *period, r *row, s *content) (cause int64, retry *retryOf) {
	if by, ok := x.periods.judged[s.RawPosition]; ok {
		retry = &by
	}
	cause = p.cause(s.RawPosition, retry)
	if r.subject == reaggregated && p.frozenAt(r.position) > 0 {
		cause = r.position
	}
	return cause, retry
}

// addCauses notes the events on which the causes of later verdicts depend.
func (x *pass) addCauses(r *row, s *content, err error) {
	all := &x.periods
	if err != nil || len(all.of) == 0 {
		return
	}
	switch r.subject {
	case rejected:
		all.refused.set(s.RawPosition, x.head)
	case retried:
		refused := all.refused.has(s.RawPosition)
		all.retries[r.id] = retryOf{r.position, refused}
		if all.since(r.position) { // a retry of a release that knows no closed periods does not say it
			x.adjustments.expect(string(s.Rejected) == strconv.FormatBool(refused),
				"the retry at %s says that its event had been rejected: %.10s; the log says %v", x.at(r.position), s.Rejected, refused)
		}
	case validated:
		if by, ok := all.retries[r.cause]; ok {
			all.judged[s.RawPosition] = by
		}
	case admitted:
		if a, err := admissionOf(s); err == nil && a.By == "commit" {
			all.commits.set(r.position, x.head)
		}
	case tenantCreated, tenantChanged:
		all.policies[r.tenant] = append(all.policies[r.tenant], latePolicy{r.position, s.LateUsage})
	}
}

// since reports whether a close was requested in the partition before a position.
func (all *periods) since(position int64) bool {
	for _, p := range all.of {
		if p.changes[0].position < position {
			return true
		}
	}
	return false
}

// adjustsUsage reports whether the policy of a tenant at a position accepts late usage.
func (all *periods) adjustsUsage(tenant uuid.UUID, position int64) (adjusts bool) {
	for _, p := range all.policies[tenant] {
		if p.position < position {
			adjusts = p.late == "ADJUST"
		}
	}
	return adjusts
}
