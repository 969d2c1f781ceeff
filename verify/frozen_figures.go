package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/gowebpki/jcs"
)

// addPeriod follows the changes of periods, and collects the figures that the events have.
func (x *pass) addPeriod(r *row, s *content, err error) {
	x.addCauses(r, s, err)
	if r.subject < periodRequested || r.subject > periodReopened {
		return
	}
	var c periodContent
	if err := json.Unmarshal(r.body, &c); err != nil {
		x.frozenFigures.fault("%s cannot be read: %v", x.at(r.position), err)
		return
	}
	k := periodKey{r.tenant, c.PeriodKey}
	p := x.periods.of[k]
	if p == nil {
		x.frozenFigures.fault("%s belongs to no period that was closed: %s", x.at(r.position), k)
		return
	}
	x.checkChangeOf(p, r, &c)
	n := p.numbered(c.Snapshot)
	if n == nil {
		return
	}
	switch r.subject {
	case periodFrozen:
		var lines []frozenLine
		err := json.Unmarshal(c.Lines, &lines)
		x.frozenFigures.expect(err == nil && c.Part == n.parts+1 && c.Part <= c.Parts && len(lines) <= 500,
			"%s is part %d of %d with %d lines after part %d, %v", x.at(r.position), c.Part, c.Parts, len(lines), n.parts, err)
		n.parts, n.lines = n.parts+1, append(n.lines, lines...)
		x.addCharges(n, r, &c)
	case periodClosed:
		n.end = c
		x.checkClosed(n, r, &c)
		x.checkCharges(n, r, &c)
	}
}

// checkChangeOf checks that a change follows the one before it: request, figures, close, reopening, and the next request.
func (x *pass) checkChangeOf(p *period, r *row, c *periodContent) {
	was, want := p.state, p.state.snapshot
	follows := map[int16]int16{periodRequested: periodReopened, periodFrozen: periodRequested, periodClosed: periodRequested,
		periodReopened: periodClosed}[r.subject] == was.subject
	if r.subject == periodRequested {
		want++
		follows = follows || was.subject == 0
	}
	x.frozenFigures.expect(follows && c.Snapshot == want, "%s, subject %d of snapshot %d of %s, follows subject %d of snapshot %d at %s",
		x.at(r.position), r.subject, c.Snapshot, p.periodKey, was.subject, was.snapshot, x.at(was.position))
	if r.subject != periodFrozen {
		p.state = periodChange{r.position, r.subject, c.Snapshot}
	}
}

// checkClosed compares the event that closes a period with the lines before it.
func (x *pass) checkClosed(n *frozenSnapshot, r *row, c *periodContent) {
	x.frozenFigures.n++
	cut := x.at(n.cut).String()
	x.frozenFigures.expect(c.Cut == cut, "%s has the cut %.40s, the close was requested at %s", x.at(r.position), c.Cut, cut)
	x.frozenFigures.expect(string(c.Lines) == strconv.Itoa(len(n.lines)), "%s has %.20s lines, the events before it %d", x.at(r.position),
		c.Lines, len(n.lines))
	hash := n.hash(cut, n.lines)
	x.frozenFigures.expect(c.FiguresHash == hash, "%s has the hash %.64s, its lines have %s", x.at(r.position), c.FiguresHash, hash)
	sorted := slices.IsSortedFunc(n.lines, func(a, b frozenLine) int {
		// equal ones are not sorted
		return cmp.Or(cmp.Compare(a.Feature, b.Feature), slices.Compare(a.SubscriptionID[:], b.SubscriptionID[:]), -1)
	})
	x.frozenFigures.expect(sorted, "the lines before %s are not in the order of feature and subscription, or one is there twice",
		x.at(r.position))
}

// hash returns the SHA-256 of a snapshot's figures, as docs/how-to/prove-an-invoice-line.md defines it.
func (n *frozenSnapshot) hash(cut string, lines []frozenLine) string {
	type line struct {
		Amount         string `json:"amount"`
		EventCount     int64  `json:"eventCount"`
		Feature        string `json:"feature"`
		SubscriptionID string `json:"subscriptionId"`
	}
	list := []line{}
	for _, l := range lines {
		list = append(list, line{l.Amount, l.EventCount, l.Feature, l.SubscriptionID.String()})
	}
	doc, err := json.Marshal(map[string]any{"tenantId": n.tenant.String(), "snapshot": n.number, "periodKey": n.period,
		"logic": n.end.Logic, "lines": list, "cut": cut})
	if err != nil {
		return err.Error()
	}
	doc, fault := jcs.Transform(doc)
	if fault != nil {
		return fault.Error()
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:])
}

const (
	ofPartition = ` WHERE CASE WHEN tenant_id = '00000000-0000-0000-0000-000000000000' THEN 0
	 ELSE get_byte(sha256(convert_to(tenant_id::text, 'UTF8')), 0) % 32 END = $1`

	periodChangesSQL = `SELECT tenant_id, period_key, position, snapshot,
		CASE change WHEN 'close_requested' THEN 70 WHEN 'closed' THEN 72 ELSE 73 END
 FROM period_changes` + ofPartition + ` ORDER BY tenant_id, period_key, position`

	snapshotsSQL = `SELECT tenant_id, period_key, snapshot, cut, frozen_position, logic, logic_hash, figures_hash, lines, despite
		FROM period_snapshots` + ofPartition

	frozenLinesSQL = `SELECT tenant_id, period_key, snapshot, feature, subscription_id, amount::text, event_count, last_event_at
		FROM period_lines` + ofPartition +
		` ORDER BY tenant_id, period_key, snapshot, feature, subscription_id`
)

// compareFrozen compares the tables of periods with the events.
func (x *pass) compareFrozen(ctx context.Context, tx pgx.Tx) error {
	if err := x.compareChangesOfPeriods(ctx, tx); err != nil {
		return fmt.Errorf("read period_changes: %w", err)
	}
	lines, err := x.readFrozenLines(ctx, tx)
	if err != nil {
		return fmt.Errorf("read period_lines: %w", err)
	}
	var k periodKey
	var number, count int
	var cut, closed int64
	var logic, logicHash, hash string
	var despite []string
	err = each(ctx, tx, snapshotsSQL, []any{x.p}, []any{&k.tenant, &k.period, &number, &cut, &closed, &logic, &logicHash, &hash, &count,
		&despite}, func() error {
		n := x.periods.snapshot(k, number)
		if n == nil || n.closed == 0 {
			x.frozenFigures.fault("period_snapshots has snapshot %d of %s, the log has not", number, k)
			return nil
		}
		n.inTable = true
		c := &n.end
		x.frozenFigures.expect(cut == n.cut && closed == n.closed && logic == c.Logic && logicHash == c.LogicHash &&
			hash == c.FiguresHash && count == len(n.lines) && slices.Equal(despite, c.Despite),
			"snapshot %d of %s differs from %s, the event that closed the period", number, k, x.at(n.closed))
		of := lines[n]
		recomputed := n.hash(x.at(n.cut).String(), of)
		x.frozenFigures.expect(recomputed == hash, "snapshot %d of %s has the hash %.64s, its %d lines have %s", number, k, hash, len(of),
			recomputed)
		same := slices.EqualFunc(of, n.lines, func(a, b frozenLine) bool {
			at := a.LastEventAt.Equal(b.LastEventAt)
			a.LastEventAt, b.LastEventAt = time.Time{}, time.Time{}
			return at && a == b
		})
		x.frozenFigures.expect(same, "the lines of snapshot %d of %s differ from those of its events before %s", number, k, x.at(n.closed))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read period_snapshots: %w", err)
	}
	for k, p := range x.periods.of {
		for _, n := range p.snapshots {
			x.frozenFigures.expect(n.closed == 0 || n.inTable, "period_snapshots has no snapshot %d of %s, the log has", n.number, k)
		}
	}
	return nil
}

// snapshot returns a snapshot; nil if the log does not have it.
func (all *periods) snapshot(k periodKey, number int) *frozenSnapshot {
	if p := all.of[k]; p != nil {
		return p.numbered(number)
	}
	return nil
}

func (x *pass) compareChangesOfPeriods(ctx context.Context, tx pgx.Tx) error {
	var k periodKey
	var c periodChange
	found := map[periodKey]int{}
	err := each(ctx, tx, periodChangesSQL, []any{x.p}, []any{&k.tenant, &k.period, &c.position, &c.snapshot, &c.subject}, func() error {
		p, n := x.periods.of[k], found[k]
		x.frozenFigures.expect(p != nil && n < len(p.changes) && p.changes[n] == c,
			"period_changes has subject %d of snapshot %d of %s at %s, the log has not", c.subject, c.snapshot, k, x.at(c.position))
		found[k]++
		return nil
	})
	for k, p := range x.periods.of {
		x.frozenFigures.expect(err != nil || found[k] == len(p.changes), "period_changes has %d of the %d changes of %s", found[k],
			len(p.changes), k)
	}
	return err
}

func (x *pass) readFrozenLines(ctx context.Context, tx pgx.Tx) (map[*frozenSnapshot][]frozenLine, error) {
	lines := map[*frozenSnapshot][]frozenLine{}
	var k periodKey
	var number int
	var l frozenLine
	err := each(ctx, tx, frozenLinesSQL, []any{x.p}, []any{&k.tenant, &k.period, &number, &l.Feature, &l.SubscriptionID, &l.Amount,
		&l.EventCount, &l.LastEventAt}, func() error {
		n := x.periods.snapshot(k, number)
		if n == nil {
			x.frozenFigures.fault("period_lines has %.60s of snapshot %d of %s, the log has not", l.Feature, number, k)
			return nil
		}
		lines[n] = append(lines[n], l)
		return nil
	})
	return lines, err
}

// figureOf is the figure of a line.
func (n *frozenSnapshot) figureOf(feature string, subscription uuid.UUID) figure {
	return figure{tenant: n.tenant, subscription: subscription, feature: feature, period: n.period}
}
