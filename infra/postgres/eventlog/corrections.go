package eventlog

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// readTargetsSQL reads recorded events by their keys, and whether they are retracted. LATERAL with LIMIT forces one look-up for each.
const readTargetsSQL = `SELECT k.tenant_id, k.dedupe_key, l.position, l.subject, l.occurred_at, l.body,
  EXISTS (SELECT FROM usage_corrections c WHERE c.tenant_id = k.tenant_id AND c.target = l.position AND c.kind = 'retraction')
 FROM unnest($1::smallint[], $2::uuid[], $3::text[]) AS k (partition, tenant_id, dedupe_key)
 CROSS JOIN LATERAL (SELECT l.position, l.subject, l.occurred_at, l.body FROM event_log_rows l
  WHERE l.partition = k.partition AND l.tenant_id = k.tenant_id AND l.dedupe_key = k.dedupe_key LIMIT 1) l`

// targets are the events that corrections of a group name: those of the log, and those that the group stores before the correction.
type targets map[dedupe.Key]*domain.Target

// readingTargets returns the read of the targets of the group's corrections, behind the locks of the heads, and the targets that it fills;
// both are nil if the group has none.
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
	var read domain.Target
	var e events.Pending
	_, err := pgx.ForEachRow(rows, []any{&key.Tenant, &key.Key, &read.Position, &e.Subject, &e.OccurredAt, (*[]byte)(&e.Payload),
		&read.Retracted}, func() error {
		e.DedupeKey = key.Key
		target := read
		describe(&target, &e)
		t[key] = &target
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the targets of corrections: %w", err)
	}
	return nil
}

// describe sets the members of a target that follow from its event.
func describe(t *domain.Target, e *events.Pending) {
	usage := codec.UsageInRow(e.Subject, e.DedupeKey, e.OccurredAt, e.Payload)
	t.EventID, t.Feature, t.IsUsage = usage.EventID, usage.Feature, e.Subject.IsUsage()
}

// correct returns why a correction cannot be recorded after the members that are placed so far; nil if it can.
func (d *deciding) correct(m *member) *domain.Error {
	s := m.submitted
	return d.targets[dedupe.Key{Tenant: s.TenantID, Key: events.KeyUsage(s.Target.Ref)}].Correctable(s.Target.Ref, s.Target.Feature)
}

// note notes a placed member that is a target of corrections in the group, or that retracts one.
func (d *deciding) note(m *member) {
	s := m.submitted
	if s.Target != nil && s.Target.Retraction {
		d.targets[dedupe.Key{Tenant: s.TenantID, Key: events.KeyUsage(s.Target.Ref)}].Retracted = true
	}
	if _, named := d.targets[dedupe.KeyOf(&s.Pending)]; named {
		t := &domain.Target{Position: m.placement.Position.Number}
		describe(t, &s.Pending)
		d.targets[dedupe.KeyOf(&s.Pending)] = t
	}
}

// refuseTarget refuses member i, a correction whose target cannot be corrected.
func (d *deciding) refuseTarget(i int, refusal *domain.Error) {
	d.deny(i, refusal)
	d.group.promoteNext(i)
	d.denied = append(d.denied, i)
}
