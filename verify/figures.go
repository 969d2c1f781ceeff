package verify

import (
	"context"
	"fmt"
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// figureSums sums the verdicts by the keys of the figures.
type figureSums struct {
	upTo, usedUpTo int64 // checkpoints of the aggregates and of the entitlements
	sums           map[figure]*sum
	byGrant        map[grantFigure]*sum // of the verdicts that name a grant; events counts the verdicts
	used           map[figure]*sum      // admitted usage and other verdicts, less those in discarded dead letters
	hours          hourSums
	held           map[figure]*sum     // held amounts, up to usedUpTo
	parked         map[uuid.UUID]int64 // verdicts in dead letters
	closed         map[int64]bool      // those that are discarded
	consumed       int64               // verdicts up to the checkpoint
	failed         map[int64]bool      // verdicts that the aggregator could not fold
	failedUsed     map[int64]bool      // verdicts that the entitlement reads could not fold
	unread         map[int64]bool      // verdicts with an unreadable body: allowed only if they failed to fold
	redone         map[uuid.UUID][]int64
}

// figure is the key of an aggregate. The use of an entitlement has no subscription.
type figure struct {
	tenant, subscription uuid.UUID
	feature, period      string
}

type sum struct {
	amount big.Int
	events int64
	seen   int // the last generation compared with it
}

func newFigureSums(upTo, usedUpTo, hoursUpTo int64) figureSums {
	return figureSums{upTo: upTo, usedUpTo: usedUpTo, hours: newHourSums(hoursUpTo), sums: map[figure]*sum{},
		byGrant: map[grantFigure]*sum{}, used: map[figure]*sum{}, held: map[figure]*sum{},
		parked: map[uuid.UUID]int64{}, closed: map[int64]bool{}, failed: map[int64]bool{},
		failedUsed: map[int64]bool{}, unread: map[int64]bool{}, redone: map[uuid.UUID][]int64{}}
}

func (m *figureSums) add(x *pass, r *row, s *content, err error) {
	if r.subject == aggregationFailed {
		switch x.services[r.origin] {
		case aggregator:
			m.failed[s.SourcePosition] = true
		case entitlements:
			m.failedUsed[s.SourcePosition] = true
		}
	}
	m.park(x, r, s)
	m.hours.addLetter(x, r, s)
	if (r.subject == recorded || r.subject == admitted) && err == nil {
		m.hours.groups.add(r, s, x.head)
	}
	if r.subject == admitted && err == nil {
		m.countAdmitted(x, r, s, 1)
	}
	m.countHeld(r, s, err, 1)
	if r.topic != topicValidated {
		return
	}
	if r.position <= m.upTo {
		m.consumed++
		if r.subject == reaggregated {
			m.redone[s.DeadLetterID] = append(m.redone[s.DeadLetterID], r.position)
		}
	}
	if err != nil {
		m.unread[r.position] = true
		return
	}
	m.count(x, r.subject, r.position, r.tenant, s, 1)
}

// park notes the verdicts that the aggregates never count: their dead letter is discarded.
func (m *figureSums) park(x *pass, r *row, s *content) {
	switch {
	case r.subject == publishFailed, r.subject == aggregationFailed && x.services[r.origin] == aggregator:
		if s.DeadLetterID == r.id { // its first failure
			m.parked[r.id] = s.SourcePosition
		}
	case r.subject == letterClosed && s.Status == stateDiscarded && r.position <= m.usedUpTo:
		if at, ok := m.parked[s.DeadLetterID]; ok {
			m.closed[at] = true
		}
	}
}

// countAdmitted adds admitted usage at its recording; a sign of -1 subtracts it.
func (m *figureSums) countAdmitted(x *pass, r *row, s *content, sign int64) {
	a, err := admissionOf(s)
	amount, ok := amountOf(s, sign)
	if err != nil || !ok {
		x.entitlementUsage.fault("%s has no readable admission, or the amount %.20q", x.at(r.position), s.Amount)
		return
	}
	if r.position <= m.usedUpTo && (sign > 0 || m.failedUsed[r.position]) {
		of := figure{tenant: r.tenant, feature: s.Feature, period: a.PeriodKey}
		add(m.used, of, amount, sign)
		if a.FeatureType == "QUOTA" {
			m.hold(of, big.NewInt(-sign*a.HeldAmount), sign)
		}
	}
}

// maxDigits is far more digits than an amount has; parsing a million digits takes long.
const maxDigits = 100

// count adds a verdict to its figures; a sign of -1 subtracts it.
func (m *figureSums) count(x *pass, subject int16, position int64, tenant uuid.UUID, s *content, sign int64) {
	if subject == reaggregated {
		if s.Validated == nil {
			return
		}
		s = s.Validated
	}
	amount, ok := amountOf(s, sign)
	if !ok {
		x.usageAggregates.fault("%s has the amount %.20q", x.at(position), s.Amount)
		return
	}
	if position <= m.upTo && !x.withheld[position] && (sign > 0 || m.failed[position]) {
		f := figure{tenant, s.ValidatedSubscriptionID, s.Feature, s.PeriodKey}
		if m.sums[f] == nil {
			x.totals.figures[f.whole()] = append(x.totals.figures[f.whole()], f)
		}
		add(m.sums, f, amount, sign*s.Count)
		if s.Grant != 0 {
			add(m.byGrant, grantFigure{f, s.Grant}, amount, sign)
		}
		if sign < 0 {
			x.totals.subtract(position, f, amount, sign*s.Count)
		}
	}
	m.hours.count(position, tenant, s, amount, sign)
	of := figure{tenant: tenant, feature: s.Feature, period: s.PeriodKey}
	if subject != validated || string(s.Admitted) == "true" { // admitted usage counts when it is recorded, and stays
		return
	}
	if position <= m.usedUpTo && (sign > 0 || m.failedUsed[position]) {
		add(m.used, of, amount, sign*s.Count)
	}
	if sign < 0 && m.closed[position] {
		add(m.used, of, amount, sign*s.Count)
	}
}

// amountOf reads the amount of a payload, times the sign.
func amountOf(s *content, sign int64) (amount *big.Int, ok bool) {
	if len(s.Amount) > maxDigits {
		return nil, false
	}
	if amount, ok = new(big.Int).SetString(s.Amount.String(), 10); ok {
		amount.Mul(amount, big.NewInt(sign))
	}
	return amount, ok
}

func add[K comparable](to map[K]*sum, key K, amount *big.Int, n int64) {
	s := to[key]
	if s == nil {
		s = new(sum)
		to[key] = s
	}
	s.amount.Add(&s.amount, amount)
	s.events += n
}

const rowsSQL = `SELECT ` + rowColumns + ` FROM event_log_rows WHERE partition = $1 AND position = ANY ($2::bigint[])`

// settleFailed subtracts the verdicts that could not be folded, which only a later event
// reports. It also checks that every unreadable verdict was parked.
func (x *pass) settleFailed(ctx context.Context, tx pgx.Tx) error {
	m := &x.figures
	var which []int64
	seen := map[int64]bool{}
	for _, set := range []map[int64]bool{m.failed, m.failedUsed, m.closed, m.hours.uncounted, m.hours.failed} {
		for n := range set {
			if !m.unread[n] && !seen[n] {
				seen[n] = true
				which = append(which, n)
			}
		}
	}
	rows, err := tx.Query(ctx, rowsSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, x.p, which)
	if err != nil {
		return fmt.Errorf("read the failed results: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := r.read(rows.RawValues()); err != nil {
			return err
		}
		switch s, err := r.decode(); {
		case err == nil && r.topic == topicValidated:
			m.count(x, r.subject, r.position, r.tenant, &s, -1)
			if m.failed[r.position] && !x.withheld[r.position] {
				x.countFrozen(&r, &s, -1)
			}
		case err == nil && r.subject == admitted:
			m.countAdmitted(x, &r, &s, -1)
		default:
			m.countHeld(&r, &s, err, -1)
		}
	}
	for n := range m.unread {
		x.usageAggregates.expect(n > m.upTo || m.failed[n] || x.withheld[n], "the result at %s cannot be read, and was not parked",
			x.at(n))
	}
	return rows.Err()
}

func (x *pass) compareFigure(t *tally, sums map[figure]*sum, g *candidate, f figure, amount string, n int64) {
	s := sums[f]
	switch {
	case g.replacedBy(f) != 0:
	case !g.has(f) || partitionOf(f.tenant) != x.p:
		t.fault("generation %d has %s, which does not belong to it in partition %d", g.number, f, x.p)
	case s == nil:
		t.fault("generation %d has %s for %s, the log has no result for it", g.number, amount, f)
	case s.amount.String() != amount || n >= 0 && s.events != n:
		s.seen = g.number
		t.fault("generation %d has %s in %d events for %s, the log has %s in %d", g.number, amount, n, f, s.amount.String(), s.events)
	default:
		s.seen = g.number
	}
}

func (x *pass) missing(t *tally, sums map[figure]*sum, g *candidate) {
	for f, s := range sums {
		if s.seen != g.number && g.has(f) && g.replacedBy(f) == 0 && (s.events != 0 || s.amount.Sign() != 0) {
			t.fault("generation %d has no row for %s, the log has %s", g.number, f, s.amount.String())
		}
	}
}

func (f figure) String() string {
	text := fmt.Sprintf("%s/%.60s/%s", f.tenant, f.feature, f.period)
	if f.subscription != uuid.Nil {
		text += "/" + f.subscription.String()
	}
	return text
}
