package eventlog

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// readTargetsSQL reads recorded events by their keys, and whether they are retracted. LATERAL with LIMIT forces one look-up for each.
const readTargetsSQL = `SELECT k.tenant_id, k.dedupe_key, l.subject, l.occurred_at, l.body,
  EXISTS (SELECT FROM usage_corrections c WHERE c.tenant_id = k.tenant_id AND c.target = l.position AND c.kind = 'retraction')
 FROM unnest($1::smallint[], $2::uuid[], $3::text[]) AS k (partition, tenant_id, dedupe_key)
 CROSS JOIN LATERAL (SELECT l.position, l.subject, l.occurred_at, l.body FROM event_log_rows l
  WHERE l.partition = k.partition AND l.tenant_id = k.tenant_id AND l.dedupe_key = k.dedupe_key LIMIT 1) l`

// targets are the events that corrections of a group name: those of the log, and those that the group stores before the correction.
type targets map[dedupe.Key]*domain.Target

// readingTargets returns the read of the targets of the group's corrections, behind the locks of the heads, and the targets that it fills;
// both are nil if the group has no corrections.
func (g *group) readingTargets() ([]*LockedRead, targets) {
	if !g.hasTargets {
		return nil, nil
	}
	var partitions []int16
	var tenants []uuid.UUID
	var keys []string
	for i := range g.members {
		if s := g.members[i].submitted; s.Target != nil {
			partitions, tenants = append(partitions, events.PartitionOf(s.TenantID)), append(tenants, s.TenantID)
			keys = append(keys, events.KeyUsage(s.Target.Ref))
		}
	}
	found := make(targets, len(keys))
	for i := range keys {
		found[dedupe.Key{Tenant: tenants[i], Key: keys[i]}] = nil
	}
	return []*LockedRead{alongIndexes(), {server.Statement{SQL: readTargetsSQL, Args: []any{partitions, tenants, keys}}, found.scan}}, found
}

func (t targets) scan(rows pgx.Rows) error {
	var key dedupe.Key
	var retracted bool
	var e events.Pending
	_, err := pgx.ForEachRow(rows, []any{&key.Tenant, &key.Key, &e.Subject, &e.OccurredAt, (*[]byte)(&e.Payload),
		&retracted}, func() error {
		e.DedupeKey = key.Key
		t[key] = targetOf(&e)
		t[key].Retracted = retracted
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the targets of corrections: %w", err)
	}
	return nil
}

// targetOf returns an event as a target of corrections.
func targetOf(e *events.Pending) *domain.Target {
	usage := codec.UsageInRow(e.Subject, e.DedupeKey, e.OccurredAt, e.Payload)
	return &domain.Target{Feature: usage.Feature, IsUsage: e.Subject.IsUsage()}
}

// notedTarget is a target before a change of its state in the group.
type notedTarget struct {
	key    dedupe.Key
	before *domain.Target
}

// correct refuses the corrections among members that are stored together, and that may be stored, whose targets cannot be corrected after
// the members before. It returns false if it refuses one.
func (d *deciding) correct(from, to int) bool {
	if d.noted = d.noted[:0]; d.targets == nil {
		return true
	}
	corrected := true
	for k := from; k < to; k++ {
		m := &d.group.members[k]
		s := m.submitted
		if m.outcome.Status != metering.Unknown || d.group.firstOf(k) != k {
			continue
		}
		if s.Target != nil {
			key := dedupe.Key{Tenant: s.TenantID, Key: events.KeyUsage(s.Target.Ref)}
			if refusal := d.targets[key].Correctable(s.Target.Ref, s.Target.Feature); refusal != nil {
				d.deny(k, refusal)
				corrected = false
				continue
			}
			if s.Target.Retraction {
				retracted := *d.targets[key]
				retracted.Retracted = true
				d.note(key, &retracted)
			}
		}
		if key := dedupe.KeyOf(&s.Pending); d.targets.has(key) {
			t := targetOf(&s.Pending)
			if s.Quota != nil { // its payload is completed by the decision
				t.Feature = s.Quota.Feature
			}
			d.note(key, t)
		}
	}
	return corrected
}

func (t targets) has(key dedupe.Key) bool {
	_, named := t[key]
	return named
}

// note changes the state of a target.
func (d *deciding) note(key dedupe.Key, t *domain.Target) {
	d.noted = append(d.noted, notedTarget{key, d.targets[key]})
	d.targets[key] = t
}

// forgetTargets takes the last changes of targets back: their members are not stored.
func (d *deciding) forgetTargets() {
	for _, n := range slices.Backward(d.noted) {
		d.targets[n.key] = n.before
	}
}
