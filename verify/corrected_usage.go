package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const kindCorrection, kindRetraction = "correction", "retraction"

// target is corrected usage, as the verdicts on its corrections and retractions have it.
type target struct {
	tenant  uuid.UUID
	eventID string
	of      countedAs
	changes []change // in the order of the log
}

// countedAs has the members of a verdict that those on corrections repeat.
type countedAs struct {
	subscription                 uuid.UUID
	feature, featureType, period string
	at                           int64 // microseconds of Unix
}

func countedBy(s *content) countedAs {
	return countedAs{s.ValidatedSubscriptionID, s.Feature, s.FeatureType, s.PeriodKey, s.Timestamp.UnixMicro()}
}

// change is a correction or a retraction that a verdict counts.
type change struct {
	position, cause int64 // of the verdict, and of the event that it is on
	before, after   int64
	retracts        bool
}

func (c *change) kind() string {
	if c.retracts {
		return kindRetraction
	}
	return kindCorrection
}

// addCorrected notes the verdict on a correction or a retraction, and compares it with those before it on the same target.
func (x *pass) addCorrected(r *row, s *content, err error) {
	if r.subject != validated || err != nil || s.Kind == "" { // an unreadable verdict is a fault of verdicts
		return
	}
	x.correctedUsage.n++
	c := change{position: r.position, cause: s.RawPosition, before: s.Before, after: s.After, retracts: s.Kind == kindRetraction}
	x.checkChange(&c, s)
	t := x.targets[s.TargetPosition]
	if t == nil {
		t = &target{tenant: r.tenant, eventID: s.TargetEventID, of: countedBy(s)}
		x.targets[s.TargetPosition] = t
	} else {
		last := &t.changes[len(t.changes)-1]
		x.correctedUsage.expect(!last.retracts, "%s changes %s, which %s has retracted", x.at(r.position), x.at(s.TargetPosition),
			x.at(last.position))
		x.correctedUsage.expect(last.after == c.before, "%s changes %s from %d, %s has left %d", x.at(r.position), x.at(s.TargetPosition),
			c.before, x.at(last.position), last.after)
		x.correctedUsage.expect(t.tenant == r.tenant && t.eventID == s.TargetEventID && t.of == countedBy(s),
			"%s and %s differ in what they say of %s: subscription, feature, period, time or eventId", x.at(r.position),
			x.at(last.position), x.at(s.TargetPosition))
	}
	t.changes = append(t.changes, c)
}

// checkChange checks a verdict by itself.
func (x *pass) checkChange(c *change, s *content) {
	at, n := x.at(c.position), int64(0)
	if c.retracts {
		n = -1
	}
	x.correctedUsage.expect(s.Kind == c.kind(), "%s is of the unknown kind %.40q", at, s.Kind)
	x.correctedUsage.expect(s.TargetPosition < c.cause, "%s, a correction at %s, has a target at %s", at, x.at(c.cause),
		x.at(s.TargetPosition))
	x.correctedUsage.expect(c.after >= 0 && (!c.retracts || c.after == 0), "%s is a %s to %d", at, s.Kind, c.after)
	x.correctedUsage.expect(s.Amount.String() == strconv.FormatInt(c.after-c.before, 10) && s.Count == n,
		"%s counts %.40s in %d events for a %s from %d to %d", at, s.Amount, s.Count, s.Kind, c.before, c.after)
	x.correctedUsage.expect(len(s.Admitted) == 0, "%s is a %s that is admitted", at, s.Kind)
}

// compareCorrected compares the changes with the verdicts on their targets, and with the table.
func (x *pass) compareCorrected(ctx context.Context, tx pgx.Tx) error {
	for some := range slices.Chunk(slices.Sorted(maps.Keys(x.targets)), 1000) {
		if err := x.compareTargets(ctx, tx, some); err != nil {
			return fmt.Errorf("read the targets of corrections: %w", err)
		}
	}
	return x.compareChanges(ctx, tx)
}

// keyedSQL reads rows by their keys. LATERAL with LIMIT forces one look-up for each.
const keyedSQL = `SELECT l.* FROM unnest($2::uuid[], $3::text[]) AS k (of_tenant, of_key) CROSS JOIN LATERAL (
 SELECT ` + rowColumns + ` FROM event_log_rows WHERE partition = $1 AND tenant_id = k.of_tenant AND dedupe_key = k.of_key LIMIT 1) l`

// compareTargets compares the first change of each target with the target and the verdict on it.
func (x *pass) compareTargets(ctx context.Context, tx pgx.Tx, which []int64) error {
	var tenants []uuid.UUID
	var keys []string
	for _, n := range which {
		t := x.targets[n]
		tenants, keys = append(tenants, t.tenant, t.tenant), append(keys, "u/"+t.eventID, "v/"+strconv.FormatInt(n, 10))
	}
	rows, err := tx.Query(ctx, keyedSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, x.p, tenants, keys)
	if err != nil {
		return err
	}
	defer rows.Close()
	isUsage, counts := map[int64]bool{}, map[int64]bool{}
	for rows.Next() {
		var r row
		if err := r.read(rows.RawValues()); err != nil {
			return err
		}
		s, err := r.decode()
		switch {
		case r.subject == recorded || r.subject == admitted:
			isUsage[r.position] = true
		case r.subject == validated && err == nil && s.Kind == "" && x.targets[s.RawPosition] != nil:
			counts[s.RawPosition] = true
			x.compareFirst(&r, &s)
		}
	}
	for _, n := range which {
		first := x.targets[n].changes[0].position
		x.correctedUsage.expect(isUsage[n], "%s changes %s, which is no recorded usage %.80q of its tenant", x.at(first), x.at(n),
			x.targets[n].eventID)
		x.correctedUsage.expect(counts[n], "%s changes %s, which no result counts", x.at(first), x.at(n))
	}
	return rows.Err()
}

// compareFirst compares the first change of a target with the verdict on the target.
func (x *pass) compareFirst(r *row, s *content) {
	t := x.targets[s.RawPosition]
	first := &t.changes[0]
	x.correctedUsage.expect(r.position < first.position, "%s changes %s before the result of it, %s", x.at(first.position),
		x.at(s.RawPosition), x.at(r.position))
	x.correctedUsage.expect(s.Amount.String() == strconv.FormatInt(first.before, 10), "%s changes %s from %d, its result counts %.40s",
		x.at(first.position), x.at(s.RawPosition), first.before, s.Amount)
	x.correctedUsage.expect(t.of == countedBy(s), "%s has another subscription, feature, period or time than %s, the result of its target",
		x.at(first.position), x.at(r.position))
}

const changesSQL = `SELECT tenant_id, target, n, cause, position, kind, before, after FROM usage_corrections
 WHERE CASE WHEN tenant_id = '00000000-0000-0000-0000-000000000000' THEN 0 ELSE get_byte(sha256(convert_to(tenant_id::text, 'UTF8')),
 0) % 32 END = $1`

// compareChanges compares the table with the changes.
func (x *pass) compareChanges(ctx context.Context, tx pgx.Tx) error {
	var tenant uuid.UUID
	var of int64
	var n int
	var kind string
	var c change
	seen := map[int64]int{}
	err := each(ctx, tx, changesSQL, []any{x.p}, []any{&tenant, &of, &n, &c.cause, &c.position, &kind, &c.before, &c.after}, func() error {
		c.retracts = kind == kindRetraction
		t := x.targets[of]
		if t == nil || t.tenant != tenant || n < 1 || n > len(t.changes) || t.changes[n-1] != c {
			x.correctedUsage.fault("usage_corrections has change %d of %s by %s as a %s from %d to %d, the log has not", n, x.at(of),
				x.at(c.position), kind, c.before, c.after)
			return nil
		}
		seen[of]++
		return nil
	})
	if err != nil {
		return fmt.Errorf("read usage_corrections: %w", err)
	}
	for of, t := range x.targets {
		x.correctedUsage.expect(seen[of] == len(t.changes), "usage_corrections has %d of the %d changes of %s", seen[of], len(t.changes),
			x.at(of))
	}
	return nil
}
